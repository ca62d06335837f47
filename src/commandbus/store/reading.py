"""Stored commands as records, and their columns as values. One that cannot be read becomes a marker
with the reason, so that a bad row hides neither itself nor the others of its list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from commandbus.domain import payload
from commandbus.domain.audit import AuditEventType
from commandbus.domain.command import CommandRecord, Progress
from commandbus.domain.failure import Failure, FailureKind
from commandbus.domain.lifecycle import PARKED, CommandStatus
from commandbus.domain.moment import as_datetime, as_optional_datetime
from commandbus.domain.payload import Unreadable
from commandbus.store.columns import Column, among
from commandbus.store.records import OPTIONAL, NewCommand
from commandbus.store.settling import Member
from commandbus.store.trail import Facts, Kept, read_details

UNREADABLE = "UNREADABLE"
"""The code of an error that cannot be read."""

_STATUSES, _KINDS = frozenset(CommandStatus), frozenset(AuditEventType)
_SHOWN = among(OPTIONAL, CommandRecord)
_failures = msgspec.json.Decoder(Failure)


Running = dict[int, tuple[str, int, Member]]
"""Worker, time of the claim and member of each command under lease, by sequence."""


class Known(msgspec.Struct, frozen=True):
    """A stored command, and what the other tables say about it. The attempts are there with a status;
    of what waits and of its progress, the other columns are there with the first one. `result`,
    `error` and `last_note` are JSON text; times are microseconds."""

    command: NewCommand
    seq: int
    created_at: int
    due_at: int
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

    @property
    def is_running(self) -> bool:
        """It has neither an outcome nor a place in a queue."""
        return self.status is None and self.waiting_attempts is None


def as_record(known: Known, running: Running) -> CommandRecord:
    status, attempts, crashes = known.status, known.attempts, known.crashes
    worker, started_at = known.worker, known.started_at
    if status is None and known.waiting_attempts is not None:
        status, attempts, crashes = CommandStatus.PENDING, known.waiting_attempts, known.waiting_crashes
    elif status is None:
        status = CommandStatus.IN_PROGRESS
        worker, started_at, member = running.get(known.seq, (None, None, None))
        attempts, crashes = (member.attempt, member.crashes) if member else (0, 0)
    progress = None
    if known.percent is not None:
        progress = Progress(known.percent, known.message, as_datetime(known.reported_at))
    return make_record(
        known.command,
        known.result,
        [] if status in _STATUSES else [f"status: {status!r}"],
        sequence=known.seq,
        status=read_status(status),
        attempts=attempts,
        crashes=crashes,
        created_at=as_datetime(known.created_at),
        due_at=as_datetime(known.due_at if known.waiting_until is None else known.waiting_until),
        started_at=as_optional_datetime(started_at),
        finished_at=as_optional_datetime(known.finished_at),
        worker=worker,
        error=read_failure(known.error) or noted_failure(known.last_note),
        reason=known.reason,
        progress=progress,
    )


def make_record(
    command: NewCommand, result: str | None, problems: Sequence[str] = (), **state: Any
) -> CommandRecord:
    """The record of a command: its columns, the JSON text of its result, and `state`, which are the
    other fields. `problems` are what of the state could not be read."""
    unreadable: list[str] = []
    data = read_json("data", command.data, unreadable)
    ended = read_json("result", result, unreadable)
    optional = {
        column.name: read_column(column, getattr(command, column.name), unreadable) for column in _SHOWN
    }
    return CommandRecord(
        domain=command.domain,
        command_type=command.command_type,
        command_id=command.command_id,
        data=data,
        correlation_id=command.correlation_id,
        priority=command.priority,
        result=ended,
        unreadable=(*unreadable, *problems),
        **optional,
        **state,
    )


def as_facts(known: Known, running: Running) -> Facts:
    """What of it belongs in the trail."""
    completed: Any = None
    now_running = None
    if known.status == CommandStatus.COMPLETED and known.lease_id is not None:
        completed = (known.started_at, known.finished_at, known.worker, known.attempts)
    if known.is_running and known.seq in running:
        name, claimed_at, member = running[known.seq]
        now_running = (claimed_at, name, member.attempt)
    return Facts(known.command, known.created_at, completed, now_running)


def read_column(column: Column, value: Any, problems: list[str]) -> Any:
    """The value of an optional column, as records have it."""
    match column.content:
        case "plain":
            return value
        case "moment":
            return as_optional_datetime(value)
        case "words":
            return tuple(value.split(",")) if value else ()
        case "list":
            return tuple(str(one) for one in read_json(column.name, value, problems, list) or ())
        case "object":
            return read_json(column.name, value, problems, dict) or {}


def read_json(name: str, text: str | None, problems: list[str], kind: type[Any] = object) -> Any:
    """A value of a JSON text; what is wrong with it is added to the problems."""
    if text is None:
        return None
    value = payload.read(text)
    if not isinstance(value, Unreadable) and not isinstance(value, kind):
        value = Unreadable(f"it is no {'list' if kind is list else 'object'}")
    if isinstance(value, Unreadable):
        problems.append(f"{name}: {value.reason}")
        return value if kind is object else None
    return value


def read_failure(text: str | None) -> Failure | None:
    if text is None:
        return None
    try:
        return _failures.decode(text)
    except (ValueError, TypeError, RecursionError) as error:
        return _unreadable(error)


def read_status(text: str) -> CommandStatus:
    """The status of an outcome; one that is none of ours is for an operator."""
    return CommandStatus(text) if text in _STATUSES else PARKED


def read_entry(kind: str, at: int, text: str) -> Kept:
    """One row of the audit."""
    if kind in _KINDS:
        return Kept(AuditEventType(kind), at, read_details(text))
    return Kept(AuditEventType.UNREADABLE, at, read_details(text) | {"kind": kind})


def noted_failure(text: str | None) -> Failure | None:
    """The error in an entry of the audit."""
    noted = None if text is None else read_details(text).get("error")
    try:
        return None if noted is None else msgspec.convert(noted, Failure)
    except msgspec.ValidationError as error:
        return _unreadable(error)


def _unreadable(error: Exception) -> Failure:
    message = f"What the store keeps of this error cannot be read: {error}."
    return Failure(FailureKind.PERMANENT, UNREADABLE, message)
