"""Ids by some of their digits: what lists show of an id is enough to find it again."""

from __future__ import annotations

from typing import Literal
from uuid import UUID

from commandbus.domain.ids import IdPart, as_id, as_id_parts
from commandbus.domain.page import Page
from commandbus.errors import InvalidArgumentError
from commandbus.operations.batch_documents import KIND as BATCH
from commandbus.operations.scope import Scope
from commandbus.store.op import Op

SCAN = 50_000
"""So many ids are looked at in one transaction."""
MANY = 100
"""Digits of a beginning fit every id that the index leads to: more of them say nothing new."""
_LAST = UUID(int=2**128 - 1)

Kind = Literal["command", "batch", "process"]


def look_up(
    scope: Scope, digits: str, kind: Kind = "command", *, after: str | None = None
) -> Op[Page[UUID]]:
    """The ids of commands, batches or processes that have these digits: a short id as lists show it,
    `019a8b1c2d…86a515`, or four digits or more from the beginning or the end of one. Newest first.

    The index leads to digits from the beginning at once. Those from the end alone are looked for among
    all ids, a page of 50,000 at a time: `next` goes on where the look ended. Raises
    InvalidArgumentError for text that is no part of an id.
    """
    parts = list(as_id_parts(digits))
    if not parts:
        raise InvalidArgumentError(
            f"{digits[:60]!r} is no part of an id: give what a list shows, such as "
            "019a8b1c2d…86a515, or four digits or more from the beginning or the end."
        )
    if after is None and len(parts) > 1:  # digits of a beginning, unless no id begins like this
        page = yield from _look_up(scope, parts[0], kind, _LAST)
        if page or page.next is not None:
            return page
    return (yield from _look_up(scope, parts[-1], kind, as_id(after, "after") if after else _LAST))


def _look_up(scope: Scope, part: IdPart, kind: Kind, below: UUID) -> Op[Page[UUID]]:
    if kind == "batch":
        return (yield from _among_batches(scope, part, below))
    looked = yield from scope.store.look_up(kind, part, below, SCAN if part.tail else MANY)
    return Page(looked.found, str(UUID(int=looked.next.int - 1)) if looked.next else None)


def _among_batches(scope: Scope, part: IdPart, below: UUID) -> Op[Page[UUID]]:
    """A batch is a document, whose key is its id."""
    found: list[UUID] = []
    cursor: str | None = str(min(below, part.highest)) + "~"  # the key itself included
    while cursor is not None:
        page = yield from scope.store.list_documents(BATCH, after=cursor, backwards=True)
        keys = [UUID(document.key) for document in page if document.key >= str(part.lowest)]
        found += [key for key in keys if part.fits(key)]
        cursor = page[-1].key if page and len(keys) == len(page) else None
    return Page(found)
