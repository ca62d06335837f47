"""The PostgreSQL engine's documents."""

from __future__ import annotations

from collections.abc import Sequence

from commandbus.engines.postgres.arrays import texts
from commandbus.engines.postgres.context import Part
from commandbus.engines.postgres.statements import Autocommit
from commandbus.store.documents import Document
from commandbus.store.op import Op, Read, scalar


class Documents(Part):
    def now(self) -> Op[int]:
        return int(scalar((yield Read(self._sql.now))))

    def ledger_mark(self) -> Op[int | None]:
        rows = yield Read(self._sql.ledger_mark)
        return int(scalar(rows)) if rows else None

    def get_document(self, kind: str, key: str) -> Op[Document | None]:
        rows = yield Read(self._sql.get_document, (kind, key))
        return next((Document(*row) for row in rows), None)

    def get_documents(self, kind: str, keys: Sequence[str]) -> Op[list[Document]]:
        rows = yield Read(self._sql.get_documents, (kind, texts(keys)))
        return [Document(*row) for row in rows]

    def put_document(self, document: Document) -> Op[bool]:
        place = (document.kind, document.key)
        content = (document.status, document.due_at, document.body)
        if document.version == 0:
            return bool((yield Autocommit(self._sql.add_document, place + content)))
        change = (*place, *content, document.version)
        return bool((yield Autocommit(self._sql.change_document, change)))

    def delete_document(self, kind: str, key: str) -> Op[bool]:
        return bool((yield Autocommit(self._sql.remove_document, (kind, key))))

    def list_documents(
        self,
        kind: str,
        *,
        status: str | None = None,
        after: str | None = None,
        limit: int = 100,
        backwards: bool = False,
    ) -> Op[list[Document]]:
        sql = self._sql.list_documents_backwards if backwards else self._sql.list_documents
        rows = yield Read(sql, (kind, status, after, limit))
        return [Document(*row) for row in rows]

    def due_documents(self, kind: str, limit: int = 100) -> Op[list[Document]]:
        rows = yield Read(self._sql.due_documents, (kind, limit))
        return [Document(*row) for row in rows]

    def next_document_due(self, kind: str) -> Op[int | None]:
        due: int | None = scalar((yield Read(self._sql.next_document_due, (kind,))))
        return due
