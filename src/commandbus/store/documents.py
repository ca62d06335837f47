"""Documents: small named states that the fleet shares, such as schedules, breakers and processes.

What they mean is decided above the port, once for all engines; an engine only keeps them, and guards
each change by the version that the writer has seen.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeVar

import msgspec

from commandbus.store.op import Op

logger = logging.getLogger("commandbus.store")
T = TypeVar("T")


class Document(msgspec.Struct, frozen=True):
    """`body` is JSON text; `due_at` in microseconds of the store's clock, None for never."""

    kind: str
    key: str
    version: int
    status: str
    due_at: int | None
    body: str


class DocumentStore(Protocol):
    def now(self) -> Op[int]:
        """The store's clock, in microseconds."""
        ...

    def get_document(self, kind: str, key: str) -> Op[Document | None]: ...

    def get_documents(self, kind: str, keys: Sequence[str]) -> Op[list[Document]]:
        """Those of these keys that exist, in any order."""
        ...

    def put_document(self, document: Document) -> Op[bool]:
        """Write a document whose `version` is the one that was read, or 0 for a new one. False, and
        nothing changed, when another writer was first."""
        ...

    def delete_document(self, kind: str, key: str) -> Op[bool]: ...

    def list_documents(
        self,
        kind: str,
        *,
        status: str | None = None,
        after: str | None = None,
        limit: int = 100,
        backwards: bool = False,
    ) -> Op[list[Document]]:
        """In order of their keys, or against it, beginning after one."""
        ...

    def due_documents(self, kind: str, limit: int = 100) -> Op[list[Document]]:
        """Those whose time has come, in order of time."""
        ...

    def next_document_due(self, kind: str) -> Op[int | None]:
        """When the next one is due."""
        ...


def readable(documents: Iterable[Document], read: Callable[[Document], T]) -> list[T]:
    """What documents say. One that another program wrote, and that cannot be read, is named in the log
    and left out: it must not hide the others."""
    found: list[T] = []
    for document in documents:
        try:
            found.append(read(document))
        except (msgspec.DecodeError, ValueError, OverflowError, RecursionError) as error:
            logger.warning(
                "the document %r of kind %r cannot be read: %s", document.key, document.kind, error
            )
    return found
