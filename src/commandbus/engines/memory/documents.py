"""The memory engine's documents."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from commandbus.domain.moment import Clock
from commandbus.engines.memory.state import State
from commandbus.store.documents import Document
from commandbus.store.op import Op


class MemoryDocuments:
    _state: State
    _clock: Clock

    def now(self) -> Op[int]:
        yield from ()
        return self._clock()

    def ledger_mark(self) -> Op[int | None]:
        yield from ()
        return None  # a program that can write the links can write everything

    def get_document(self, kind: str, key: str) -> Op[Document | None]:
        yield from ()
        return self._state.documents.get((kind, key))

    def get_documents(self, kind: str, keys: Sequence[str]) -> Op[list[Document]]:
        yield from ()
        found = (self._state.documents.get((kind, key)) for key in keys)
        return [document for document in found if document is not None]

    def put_document(self, document: Document) -> Op[bool]:
        yield from ()
        place = (document.kind, document.key)
        present = self._state.documents.get(place)
        if document.version != (present.version if present else 0):
            return False
        version = document.version + 1
        self._state.journal.entry(self._state.documents, place)
        self._state.documents[place] = msgspec.structs.replace(document, version=version)
        return True

    def delete_document(self, kind: str, key: str) -> Op[bool]:
        yield from ()
        self._state.journal.entry(self._state.documents, (kind, key))
        return self._state.documents.pop((kind, key), None) is not None

    def list_documents(
        self,
        kind: str,
        *,
        status: str | None = None,
        after: str | None = None,
        limit: int = 100,
        backwards: bool = False,
    ) -> Op[list[Document]]:
        yield from ()
        found = [
            document
            for document in self._of(kind)
            if status in (None, document.status)
            and (after is None or (document.key < after if backwards else document.key > after))
        ]
        return sorted(found, key=lambda document: document.key, reverse=backwards)[:limit]

    def due_documents(self, kind: str, limit: int = 100) -> Op[list[Document]]:
        yield from ()
        now = self._clock()
        due = [(d.due_at, d.key) for d in self._of(kind) if d.due_at is not None and d.due_at <= now]
        by_key = {document.key: document for document in self._of(kind)}
        return [by_key[key] for _, key in sorted(due)[:limit]]

    def next_document_due(self, kind: str) -> Op[int | None]:
        yield from ()
        return min((d.due_at for d in self._of(kind) if d.due_at is not None), default=None)

    def _of(self, kind: str) -> list[Document]:
        return [d for (known, _), d in self._state.documents.items() if known == kind]
