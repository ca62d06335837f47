"""The undo journal of the memory engine: what an op has changed, so that a failed op leaves nothing.

The store notes each value before it changes it. Work that is atomic by itself (`store.op.autocommit`)
checks everything before it changes anything, so it runs without a journal and pays one look at a flag.
Heaps need no notes for what is pushed: an item whose entry is not in `Domain.waiting` is dead.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_ABSENT: Any = object()


class Journal:
    __slots__ = ("_undo", "active")

    def __init__(self) -> None:
        self.active = False
        self._undo: list[Callable[[], object]] = []

    def begin(self) -> None:
        self.active = True

    def end(self) -> None:
        """Keep what was done."""
        self.active = False
        self._undo.clear()

    def undo(self) -> None:
        """Take back what was done, the last change first."""
        self.active = False
        while self._undo:
            self._undo.pop()()

    def note(self, take_back: Callable[[], object]) -> None:
        if self.active:
            self._undo.append(take_back)

    def entry(self, mapping: dict[K, V], key: K) -> None:
        """An entry of a dictionary is about to be set or removed."""
        if self.active:
            before: Any = mapping.get(key, _ABSENT)
            self._undo.append(lambda: _restore_entry(mapping, key, before))

    def fields(self, row: object, *names: str) -> None:
        """Fields of a row are about to be set."""
        if self.active:
            before = [(name, getattr(row, name)) for name in names]
            self._undo.append(lambda: _restore_fields(row, before))

    def contents(self, *containers: dict[Any, Any] | list[Any] | set[Any]) -> None:
        """Any part of these is about to change, also their order."""
        if self.active:
            for container in containers:
                self._undo.append(_restorer(container))


def _restore_entry(mapping: dict[K, V], key: K, before: V) -> None:
    if before is _ABSENT:
        mapping.pop(key, None)
    else:
        mapping[key] = before


def _restore_fields(row: object, before: list[tuple[str, Any]]) -> None:
    for name, value in before:
        setattr(row, name, value)


def _restorer(container: Any) -> Callable[[], None]:
    before = container.copy()

    def restore() -> None:
        container.clear()
        if isinstance(container, list):
            container.extend(before)
        else:
            container.update(before)

    return restore
