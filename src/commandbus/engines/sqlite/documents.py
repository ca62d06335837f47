"""The SQLite engine's documents."""

from __future__ import annotations

from collections.abc import Sequence

from commandbus.domain.moment import Clock
from commandbus.engines.sqlite.queries import load_queries
from commandbus.engines.sqlite.rows import as_json
from commandbus.store.documents import Document
from commandbus.store.op import Op, Statement, scalar

SQL = load_queries("documents.sql")


class SqliteDocuments:
    _clock: Clock

    def now(self) -> Op[int]:
        yield from ()
        return self._clock()

    def ledger_mark(self) -> Op[int | None]:
        yield from ()
        return None  # a program that can write the links can write everything

    def get_document(self, kind: str, key: str) -> Op[Document | None]:
        rows = yield Statement(SQL.get, (kind, key))
        return next((Document(*row) for row in rows), None)

    def get_documents(self, kind: str, keys: Sequence[str]) -> Op[list[Document]]:
        rows = yield Statement(SQL.get_many, (kind, as_json(keys)))
        return [Document(*row) for row in rows]

    def put_document(self, document: Document) -> Op[bool]:
        place = (document.kind, document.key)
        content = (document.status, document.due_at, document.body)
        if document.version == 0:
            return bool((yield Statement(SQL.add, place + content)))
        return bool((yield Statement(SQL.change, (*content, *place, document.version))))

    def delete_document(self, kind: str, key: str) -> Op[bool]:
        return bool((yield Statement(SQL.remove, (kind, key))))

    def list_documents(
        self,
        kind: str,
        *,
        status: str | None = None,
        after: str | None = None,
        limit: int = 100,
        backwards: bool = False,
    ) -> Op[list[Document]]:
        rows = yield Statement(
            SQL.list_backwards if backwards else SQL.list,
            {"kind": kind, "status": status, "after": after, "limit": limit},
        )
        return [Document(*row) for row in rows]

    def due_documents(self, kind: str, limit: int = 100) -> Op[list[Document]]:
        rows = yield Statement(SQL.due, (kind, self._clock(), limit))
        return [Document(*row) for row in rows]

    def next_document_due(self, kind: str) -> Op[int | None]:
        due: int | None = scalar((yield Statement(SQL.next_due, (kind,))))
        return due
