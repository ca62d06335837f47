"""Rows of the PostgreSQL tables as values of the port."""

from __future__ import annotations

from typing import Any, NamedTuple
from uuid import UUID

from commandbus.domain.command import CommandRecord, Progress
from commandbus.domain.lifecycle import CommandStatus
from commandbus.domain.moment import as_datetime, as_optional_datetime
from commandbus.store.reading import (
    noted_failure,
    read_columns,
    read_details,
    read_failure,
    read_status,
)
from commandbus.store.resolving import Standing, standing_of
from commandbus.store.settling import Member
from commandbus.store.trail import Facts

_STATUSES = frozenset(CommandStatus)
Running = dict[int, tuple[str, int, Member]]
"""Worker, time of the claim and member of each command under lease, by sequence."""


class KnownCommand(NamedTuple):
    """A row of the query `records`. The attempts are there with a status, other columns of what waits
    and of its progress with the first of them."""

    seq: int
    domain: str
    command_type: str
    command_id: UUID
    data: str
    correlation_id: UUID
    causation_id: UUID | None
    reply_to: str | None
    priority: int
    max_attempts: int | None
    created_at: int
    due_at: int
    expires_at: int | None
    unique_key: str | None
    tags: str | None
    headers: str | None
    status: str | None
    attempts: int
    crashes: int
    lease_id: int | None
    worker: str | None
    started_at: int | None
    finished_at: int | None
    result: str | None
    error: str | None
    reason: str | None
    waiting_attempts: int | None
    waiting_crashes: int
    waiting_until: int | None
    percent: float | None
    message: str
    reported_at: int
    last_note: str | None
    batch_id: UUID | None
    group_key: str | None
    requires: str | None

    @property
    def is_running(self) -> bool:
        """It has neither an outcome nor a place in a queue."""
        return self.status is None and self.waiting_attempts is None


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


def as_record(row: KnownCommand, running: Running) -> CommandRecord:
    status, attempts, crashes = row.status, row.attempts, row.crashes
    worker, started_at = row.worker, row.started_at
    if status is None and row.waiting_attempts is not None:
        status, attempts, crashes = CommandStatus.PENDING, row.waiting_attempts, row.waiting_crashes
    elif status is None:
        status = CommandStatus.IN_PROGRESS
        worker, started_at, member = running.get(row.seq, (None, None, None))
        attempts, crashes = (member.attempt, member.crashes) if member else (0, 0)
    columns = read_columns(row.data, row.result, row.tags, row.headers)
    progress = None
    if row.percent is not None:
        progress = Progress(row.percent, row.message, as_datetime(row.reported_at))
    return CommandRecord(
        domain=row.domain,
        command_type=row.command_type,
        command_id=row.command_id,
        status=read_status(status),
        data=columns.data,
        correlation_id=row.correlation_id,
        causation_id=row.causation_id,
        reply_to=row.reply_to,
        priority=row.priority,
        attempts=attempts,
        crashes=crashes,
        max_attempts=row.max_attempts,
        created_at=as_datetime(row.created_at),
        due_at=as_datetime(row.due_at if row.waiting_until is None else row.waiting_until),
        expires_at=as_optional_datetime(row.expires_at),
        started_at=as_optional_datetime(started_at),
        finished_at=as_optional_datetime(row.finished_at),
        worker=worker,
        result=columns.result,
        error=read_failure(row.error) or noted_failure(row.last_note),
        reason=row.reason,
        unique_key=row.unique_key,
        tags=columns.tags,
        headers=columns.headers,
        progress=progress,
        sequence=row.seq,
        batch_id=row.batch_id,
        group_key=row.group_key,
        requires=tuple(row.requires.split(",")) if row.requires else (),
        unreadable=columns.unreadable + (() if status in _STATUSES else (f"status: {status!r}",)),
    )


def as_facts(row: KnownCommand, running: Running) -> Facts:
    """What of it belongs in the trail."""
    completed: Any = None
    now_running = None
    if row.status == CommandStatus.COMPLETED and row.lease_id is not None:
        completed = (row.started_at, row.finished_at, row.worker, row.attempts)
    if row.is_running and row.seq in running:
        name, claimed_at, member = running[row.seq]
        now_running = (claimed_at, name, member.attempt)
    return Facts(
        domain=row.domain,
        command_id=row.command_id,
        command_type=row.command_type,
        created_at=row.created_at,
        correlation_id=row.correlation_id,
        causation_id=row.causation_id,
        reply_to=row.reply_to,
        priority=row.priority,
        headers=read_details(row.headers) if row.headers else {},
        completed=completed,
        running=now_running,
    )
