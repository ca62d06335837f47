"""Pages of the things that have a name: workers, schedules, breakers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from commandbus.domain.names import as_text
from commandbus.domain.page import Page, as_limit
from commandbus.operations.scope import Scope
from commandbus.store.documents import Document
from commandbus.store.op import Op

T = TypeVar("T")


def list_named(
    scope: Scope,
    kind: str,
    read: Callable[[Sequence[Document]], list[T]],
    after: str | None,
    limit: int | None,
) -> Op[Page[T]]:
    """The documents of a kind by their keys: all that follow `after`, or at most `limit`."""
    cursor = None if after is None else as_text(after, "after")
    if limit is not None:
        as_limit(limit)
        page = yield from scope.store.list_documents(kind, after=cursor, limit=limit)
        return Page(read(page), page[-1].key if len(page) == limit else None)
    found: list[T] = []
    while page := (yield from scope.store.list_documents(kind, after=cursor)):
        found += read(page)
        cursor = page[-1].key
    return Page(found)
