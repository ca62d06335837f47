"""What a bulk send of very many commands answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar, overload
from uuid import UUID

from commandbus.domain.command import SendResult
from commandbus.domain.contract import CommandType

R = TypeVar("R")

ID_BYTES = 16
Kind = tuple[str, bool, CommandType[..., Any] | None]
"""Everything about a result but its id."""


class SendResults(Sequence[SendResult[R]], Generic[R]):
    """Results in 24 bytes each, made when they are looked at: a million of them as objects would take
    about 170 MB, several times what the send itself needs."""

    def __init__(self) -> None:
        self._ids = bytearray()
        self._kinds: list[Kind] = []
        """Of each result: one tuple for all that are alike."""
        self._known: dict[Kind, Kind] = {}

    def add(self, results: Iterable[SendResult[R]]) -> None:
        for one in results:
            self._ids += one.command_id.bytes
            kind = one.domain, one.duplicate, one.contract
            self._kinds.append(self._known.setdefault(kind, kind))

    def __len__(self) -> int:
        return len(self._kinds)

    def __iter__(self) -> Iterator[SendResult[R]]:
        return map(self._at, range(len(self)))

    @overload
    def __getitem__(self, index: int) -> SendResult[R]: ...
    @overload
    def __getitem__(self, index: slice) -> list[SendResult[R]]: ...
    def __getitem__(self, index: int | slice) -> SendResult[R] | list[SendResult[R]]:
        found = range(len(self))[index]
        return self._at(found) if isinstance(found, int) else [self._at(one) for one in found]

    def __repr__(self) -> str:
        return f"<results of {len(self):,} commands>"

    def _at(self, position: int) -> SendResult[R]:
        begin = position * ID_BYTES
        command_id = UUID(bytes=bytes(self._ids[begin : begin + ID_BYTES]))
        return SendResult(command_id, *self._kinds[position])
