"""Rows of the PostgreSQL tables as values of the port."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple
from uuid import UUID

from commandbus.store.reading import Known
from commandbus.store.records import NewCommand
from commandbus.store.resolving import Standing, standing_of

_STATE_FIELDS = len(Known.__struct_fields__) - 1


def as_known(row: Sequence[Any]) -> Known:
    """A row of the query `records`."""
    domain, command_type, command_id, data, correlation_id, priority, *optional = row[_STATE_FIELDS:]
    required = domain, command_type, command_id, data, correlation_id, priority
    return Known(NewCommand(*required, 0, None, *optional), *row[:_STATE_FIELDS])


class StandingRow(NamedTuple):
    """A row of the query `standing`: where a command stands."""

    seq: int
    priority: int
    data: str
    keyed: bool
    status: str | None
    attempts: int
    crashes: int
    error: str | None
    waiting_attempts: int
    waiting_crashes: int
    ready: bool
    scheduled: bool
    batch_id: UUID | None

    @property
    def waits(self) -> bool:
        return self.ready or self.scheduled

    @property
    def standing(self) -> Standing:
        return standing_of(self)


class Depth(NamedTuple):
    """A row of the query `stats`: what waits and runs in a domain."""

    now: int
    ready: int
    scheduled: int
    due: int
    running: int
    oldest: int | None
    next_due: int | None
    paused_at: int | None
    paused_reason: str | None
    held: int = 0
    tagged: int = 0
