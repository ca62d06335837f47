"""Processes in the store: a row each, guarded by its version, and the events of its steps.

What a process does is decided above the port. A row is locked while it is decided about, so many
routers can work at once; a writer names the version that was read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol
from uuid import UUID

import msgspec

from commandbus.domain.process.values import ProcessEventType, ProcessStatus
from commandbus.store.op import Op


class ProcessRow(msgspec.Struct, frozen=True):
    """`state`, `progress` and `error` are JSON text; times are microseconds of the store's clock.
    `seq` and `created_at` of a new row, and `updated_at` of every write, are the store's choice."""

    process_id: UUID
    process_type: str
    reply_to: str
    status: ProcessStatus
    version: int
    state: str
    progress: str
    error: str | None = None
    due_in: int | None = None
    """When time matters next, in microseconds after `created_at`."""
    batch_id: UUID | None = None
    parent_id: UUID | None = None
    ended: bool = False
    created_at: int = 0
    updated_at: int = 0
    finished_at: int | None = None
    seq: int = 0
    age: int = 0
    """Read only: microseconds since `created_at`."""
    parked: bool = False
    """Read only: whether a command of the process waits for an operator."""


class ProcessEventRow(msgspec.Struct, frozen=True):
    """One event of a process; `details` is JSON text. The time is the store's when it is written."""

    process_id: UUID
    kind: ProcessEventType
    step: str | None
    command_id: UUID | None
    details: str
    at: int = 0


class ProcessFilter(msgspec.Struct, frozen=True):
    """All given conditions hold. `before` is the sequence after which the next page begins."""

    process_type: str | None = None
    status: ProcessStatus | None = None
    batch_id: UUID | None = None
    parent_id: UUID | None = None
    created_after: int | None = None
    created_before: int | None = None
    before: int | None = None
    limit: int = 100


class ProcessStore(Protocol):
    def add_processes(
        self, rows: Sequence[ProcessRow], events: Sequence[ProcessEventRow]
    ) -> Op[list[UUID]]:
        """Add processes with their first events, all or none. When some exist already nothing is
        added, and ids of such are returned."""
        ...

    def put_processes(
        self, rows: Sequence[ProcessRow], events: Sequence[ProcessEventRow]
    ) -> Op[list[UUID]]:
        """Write processes whose `version` is the one that was read, and add events, also of
        processes that are not among them. Returns the ids of rows that another router wrote
        meanwhile: these are unchanged."""
        ...

    def lock_processes(self, process_ids: Iterable[UUID]) -> Op[list[ProcessRow]]:
        """Read processes to decide about them; no other router can until the transaction ends."""
        ...

    def due_processes(self, types: Sequence[str], limit: int) -> Op[list[ProcessRow]]:
        """Processes of these types whose time has come, locked; those that others have locked
        are left out."""
        ...

    def next_process_due(self, types: Sequence[str]) -> Op[float | None]:
        """Seconds until the next one is due, 0 or less when it is."""
        ...

    def get_process(self, process_id: UUID) -> Op[ProcessRow | None]: ...

    def query_processes(self, wanted: ProcessFilter) -> Op[list[ProcessRow]]:
        """Newest first, at most `limit`. A process that is not ended and has a parked command counts
        as waiting for troubleshooting."""
        ...

    def count_processes(self, limit: int) -> Op[dict[tuple[str, ProcessStatus], int]]:
        """How many have not ended, by type and by the status that `query_processes` shows; of the
        newest `limit` such processes."""
        ...

    def process_events(self, process_id: UUID) -> Op[list[ProcessEventRow]]:
        """Everything that was written about a process, in order."""
        ...


class RecordedStore(Protocol):
    """Results of durable steps inside handlers."""

    def recorded_steps(self, seq: int) -> Op[dict[str, str]]:
        """What the handler of a command has recorded so far, as JSON text by name."""
        ...

    def record_step(self, seq: int, lease_id: int, name: str, result: str) -> Op[bool]:
        """Keep a result once; False, and nothing is kept, when the lease is gone."""
        ...


def shown_status(row: ProcessRow) -> ProcessStatus:
    """A process whose command is parked waits, whatever it does otherwise."""
    if row.parked and not row.ended:
        return ProcessStatus.WAITING_FOR_TROUBLESHOOTING
    return row.status
