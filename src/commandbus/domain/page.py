"""A page of a list."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar, overload

from commandbus.domain.counts import as_count
from commandbus.errors import InvalidArgumentError

LIMIT_MAX = 1_000

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Page(Sequence[T_co]):
    """A part of a list: a sequence of its items, newest first, or by name if they have one. `next` is
    the cursor of the following page, to be given as `after=`, or None at the end; a page may be short
    and still have a next one."""

    items: Sequence[T_co]
    next: str | None = None

    def __len__(self) -> int:
        return len(self.items)

    @overload
    def __getitem__(self, index: int) -> T_co: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T_co]: ...
    def __getitem__(self, index: int | slice) -> T_co | Sequence[T_co]:
        return self.items[index]


def as_limit(limit: int) -> int:
    """How many items a page may have."""
    return as_count(limit, "limit", highest=LIMIT_MAX)


def as_cursor(after: str | None) -> int | None:
    """The cursor of a list whose items have numbers."""
    if after is None:
        return None
    if not isinstance(after, str) or not after.isdecimal() or len(after) > 18:
        raise InvalidArgumentError(f"{after!r} is not the `next` of a page.")
    return int(after)
