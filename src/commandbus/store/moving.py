"""Commands on their way from one store to another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import msgspec

from commandbus.store.documents import Document
from commandbus.store.op import Op
from commandbus.store.records import NewCommand

KIND = "moving"
"""Documents: what left its queues here and has not surely arrived elsewhere."""


class Parking(msgspec.Struct, frozen=True):
    """How a parked command came there; `error` is JSON text."""

    worker: str | None
    started_at: int | None
    finished_at: int
    error: str | None
    reason: str | None


class Moving(msgspec.Struct, frozen=True):
    """A command that waits or is parked, with everything that its new store has to know. In `command`,
    `due_at` is when it may run next; times are microseconds."""

    command: NewCommand
    created_at: int
    due_at: int
    attempts: int
    crashes: int
    releases: int
    parking: Parking | None
    audit: list[tuple[str, int, str]]
    """Kind, moment and details (JSON text) of what the trail keeps."""
    steps: list[tuple[str, str, int]] = []
    """Name, result (JSON text) and moment of the steps that its handler has recorded."""
    case: Document | None = None
    """What lists show of what people said and arranged about it."""


class Survey(msgspec.Struct, frozen=True):
    """What there is to move, and what stays."""

    waiting: int
    parked: int
    in_transit: int
    running: int
    in_batches: int
    """Live commands of batches: their counts are kept where the batch is."""
    in_processes: int
    """Live commands of processes that have not ended."""


class Departure(msgspec.Struct, frozen=True):
    """So many were taken out; None as the last sequence at the end."""

    gone: int
    last: int | None


@runtime_checkable
class DepartingStore(Protocol):
    """A store that commands can be moved from."""

    def survey(self) -> Op[Survey]: ...

    def depart(self, to: str, after: int, limit: int) -> Op[Departure]:
        """Take out what waits or is parked, in order of sequence: it ends here as CANCELED, moved,
        and is kept as a document of KIND instead, in the same transaction."""
        ...


@runtime_checkable
class ArrivingStore(Protocol):
    """A store that commands can be moved to."""

    def arrive(self, commands: Sequence[Moving]) -> Op[list[Moving]]:
        """Add commands with their attempts and their past, unless they have come before; returns those
        that were new. Raises InvalidOperationError, and adds none, when the unique key of one is
        held by another command here."""
        ...
