"""Rows of the PostgreSQL tables as values of the port."""

from __future__ import annotations

from typing import Any

from commandbus.domain.command import CommandRecord, Progress
from commandbus.domain.lifecycle import CommandStatus
from commandbus.domain.moment import as_datetime, as_optional_datetime
from commandbus.store.reading import noted_failure, read_columns, read_details, read_failure
from commandbus.store.settling import Member
from commandbus.store.trail import Facts

Running = dict[int, tuple[str, int, Member]]
"""Worker, time of the claim and member of each command under lease, by sequence."""


def is_running(row: Any) -> bool:
    """Of a row of the query `records`: it has neither an outcome nor a place in a queue."""
    return row[16] is None and row[26] is None


def as_record(row: Any, running: Running) -> CommandRecord:
    """A row of the query `records`."""
    (
        seq, domain, command_type, command_id, data, correlation_id, causation_id, reply_to,
        priority, max_attempts, created_at, due_at, expires_at, unique_key, tags, headers,
        status, attempts, crashes, _lease_id, worker, started_at, finished_at, result, error, reason,
        waiting_attempts, waiting_crashes, waiting_until, percent, message, reported_at, last_note,
        batch_id, group_key, requires,
    ) = row  # fmt: skip
    if status is None and waiting_attempts is not None:
        status, attempts, crashes = CommandStatus.PENDING, waiting_attempts, waiting_crashes
    elif status is None:
        status = CommandStatus.IN_PROGRESS
        worker, started_at, member = running.get(seq, (None, None, None))
        attempts, crashes = (member.attempt, member.crashes) if member else (0, 0)
    columns = read_columns(data, result, tags, headers)
    return CommandRecord(
        domain=domain,
        command_type=command_type,
        command_id=command_id,
        status=CommandStatus(status),
        data=columns.data,
        correlation_id=correlation_id,
        causation_id=causation_id,
        reply_to=reply_to,
        priority=priority,
        attempts=attempts,
        crashes=crashes,
        max_attempts=max_attempts,
        created_at=as_datetime(created_at),
        due_at=as_datetime(due_at if waiting_until is None else waiting_until),
        expires_at=as_optional_datetime(expires_at),
        started_at=as_optional_datetime(started_at),
        finished_at=as_optional_datetime(finished_at),
        worker=worker,
        result=columns.result,
        error=read_failure(error) or noted_failure(last_note),
        reason=reason,
        unique_key=unique_key,
        tags=columns.tags,
        headers=columns.headers,
        progress=None if percent is None else Progress(percent, message, as_datetime(reported_at)),
        sequence=seq,
        batch_id=batch_id,
        group_key=group_key,
        requires=tuple(requires.split(",")) if requires else (),
        unreadable=columns.unreadable,
    )


def as_facts(row: Any, running: Running) -> Facts:
    """A row of the query `records`, as far as it belongs in the trail."""
    status, attempts, lease_id, worker, started_at, finished_at = (
        row[16], row[17], row[19], row[20], row[21], row[22],
    )  # fmt: skip
    completed = now_running = None
    if status == CommandStatus.COMPLETED and lease_id is not None:
        completed = (started_at, finished_at, worker, attempts)
    if is_running(row) and row[0] in running:
        name, claimed_at, member = running[row[0]]
        now_running = (claimed_at, name, member.attempt)
    return Facts(
        domain=row[1],
        command_id=row[3],
        command_type=row[2],
        created_at=row[10],
        correlation_id=row[5],
        causation_id=row[6],
        reply_to=row[7],
        priority=row[8],
        headers=read_details(row[15]) if row[15] else {},
        completed=completed,
        running=now_running,
    )
