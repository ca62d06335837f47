"""A page of a list."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar, overload

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
