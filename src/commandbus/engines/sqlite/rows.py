"""Rows of the SQLite file as values of the port, and back."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from commandbus.domain.command import CommandRecord, Progress
from commandbus.domain.failure import Failure, FailureKind
from commandbus.domain.lifecycle import CommandStatus
from commandbus.domain.moment import as_datetime, as_optional_datetime
from commandbus.domain.payload import Unreadable
from commandbus.store.op import Rows
from commandbus.store.reading import noted_failure, read_columns, read_failure
from commandbus.store.records import Claimed, NewCommand
from commandbus.store.resolving import Standing, standing_of
from commandbus.store.settling import Member, OutcomeRow

_encode = msgspec.json.Encoder().encode
_members = msgspec.json.Decoder(list[Member])
_uuid = msgspec.msgpack.Decoder(UUID).decode


def as_json(value: object) -> str:
    return _encode(value).decode()


def as_id(raw: bytes) -> UUID:
    # Six times as fast as UUID(bytes=raw): as a value of MessagePack, of type bin with 16 bytes.
    return _uuid(b"\xc4\x10" + raw)


def as_optional_id(raw: bytes | None) -> UUID | None:
    return None if raw is None else as_id(raw)


def as_members(packed: str) -> dict[int, Member]:
    return {member.seq: member for member in _members.decode(packed)}


class Head(NamedTuple):
    """A row of the query `head`: one of the first commands of a queue. The columns of the command are
    None where it is missing or damaged."""

    seq: int
    priority: int
    attempts: int
    crashes: int
    releases: int
    command_type: str | None
    command_id: bytes
    data: str
    correlation_id: bytes
    causation_id: bytes | None
    reply_to: str | None
    max_attempts: int | None
    created_at: int
    expires_at: int | None
    keyed: bool
    tags: str | None
    headers: str | None
    batch_id: bytes | None
    due_at: int
    available_at: int

    @property
    def standing(self) -> Standing:
        return Standing(self.seq, CommandStatus.PENDING, self.attempts, self.crashes)

    def is_unfit(self, now: int) -> bool:
        """Whether it has no sound command, or one that has expired."""
        expires_at = self.expires_at
        return self.command_type is None or (expires_at is not None and expires_at <= now)


# Half the time of Head._make, which counts the columns; each claim reads many.
_head: Any = partial(tuple.__new__, Head)


def as_heads(rows: Rows) -> list[Head]:
    return [*map(_head, rows)]


class KnownCommand(NamedTuple):
    """A row of the query `records`. Columns of a file may have values of any type."""

    seq: int
    domain: Any
    command_type: Any
    command_id: Any
    data: Any
    correlation_id: Any
    causation_id: Any
    reply_to: Any
    priority: Any
    max_attempts: Any
    created_at: Any
    due_at: Any
    expires_at: Any
    unique_key: Any
    tags: Any
    headers: Any
    status: Any
    attempts: Any
    crashes: Any
    lease_id: Any
    worker: Any
    started_at: Any
    finished_at: Any
    result: Any
    error: Any
    reason: Any
    waiting_attempts: Any
    waiting_crashes: Any
    waiting_until: Any
    percent: Any
    message: Any
    reported_at: Any
    last_note: Any
    batch_id: Any
    group_key: Any
    requires: Any

    @property
    def is_running(self) -> bool:
        """It has neither an outcome nor a place in a queue."""
        return self.status is None and self.waiting_attempts is None


class StandingRow(NamedTuple):
    """A row of the query `standing`: where a command stands."""

    seq: int
    priority: int
    data: str
    status: str | None
    attempts: int
    crashes: int
    error: str | None
    waiting_attempts: int
    waiting_crashes: int
    waits: bool
    requires: str | None

    @property
    def standing(self) -> Standing:
        return standing_of(self)


class Lease(NamedTuple):
    """A row of the query `leases`."""

    lease_id: int
    domain: str
    worker: str
    claimed_at: int
    until: int
    packed: str


def as_member(head: Head, keyed: bool, chain: int) -> Member:
    """A command of the queue, on its way under a lease."""
    attempt, has_key = head.attempts + 1, keyed or bool(head.keyed)
    return Member(head.seq, attempt, head.crashes, head.releases, has_key, chain)


def as_claimed(domain: str, lease_id: int, row: Head, now: int, member: Member) -> Claimed:
    """A command of the queue, now under lease."""
    (
        seq, priority, attempts, crashes, releases, command_type, command_id, data, correlation_id,
        causation_id, reply_to, max_attempts, created_at, _, _, tags, headers, batch_id, due_at, _,
    ) = row  # fmt: skip
    assert command_type is not None
    own_id = as_id(command_id)
    return Claimed(
        seq,
        lease_id,
        domain,
        command_type,
        own_id,
        data,
        own_id if correlation_id == command_id else as_id(correlation_id),
        as_optional_id(causation_id),
        reply_to,
        priority,
        max_attempts,
        created_at,
        tags,
        headers,
        attempts + 1,
        crashes,
        releases,
        as_optional_id(batch_id),
        now - due_at,
        member.keyed,
        member.chain,
    )


def command_params(seq: int, command: NewCommand, now: int, due_at: int) -> tuple[Any, ...]:
    return (
        seq,
        command.command_id.bytes,
        command.domain,
        command.command_type,
        command.data,
        command.correlation_id.bytes,
        command.causation_id.bytes if command.causation_id else None,
        command.reply_to,
        command.priority,
        command.max_attempts,
        now,
        due_at,
        command.expires_at,
        command.unique_key,
        command.tags,
        command.headers,
        command.batch_id.bytes if command.batch_id else None,
        command.group_key,
        command.requires,
    )


def outcome_params(row: OutcomeRow, now: int) -> tuple[Any, ...]:
    return (
        row.seq,
        row.status,
        row.attempts,
        row.crashes,
        row.lease_id,
        row.worker,
        None if row.lease_id is None else now - row.ran,
        now,
        row.result,
        None if row.error is None else as_json(row.error),
        row.reason,
    )


def as_record(row: KnownCommand, running: dict[int, tuple[str, int, Member]]) -> CommandRecord:
    """A damaged row is shown as far as it can be read, so that the others of its list can be seen."""
    try:
        return _record(row, running)
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        return _damaged_record(row, error)


def _damaged_record(row: KnownCommand, error: Exception) -> CommandRecord:
    seq, status = row.seq, row.status
    known = status in tuple(CommandStatus)
    message = f"Row {seq} of commandbus_command was changed by hand and cannot be read: {error}."
    beginning = as_datetime(0)
    return CommandRecord(
        domain=str(row.domain),
        command_type=str(row.command_type),
        command_id=_id_or_number(row.command_id, seq),
        status=CommandStatus(status) if known else CommandStatus.IN_TROUBLESHOOTING_QUEUE,
        data=Unreadable(message),
        correlation_id=_id_or_number(row.correlation_id, seq),
        causation_id=None,
        reply_to=None,
        priority=0,
        attempts=0,
        crashes=0,
        max_attempts=None,
        created_at=beginning,
        due_at=beginning,
        expires_at=None,
        started_at=None,
        finished_at=None,
        worker=None,
        result=None,
        error=Failure(FailureKind.PERMANENT, "DAMAGED", message),
        reason="PERMANENT",
        unique_key=None,
        tags=(),
        headers={},
        progress=None,
        sequence=seq,
        unreadable=(message,),
    )


def _id_or_number(raw: object, seq: int) -> UUID:
    return UUID(bytes=raw) if isinstance(raw, bytes) and len(raw) == 16 else UUID(int=seq)


def _record(row: KnownCommand, running: dict[int, tuple[str, int, Member]]) -> CommandRecord:
    """`running` has worker, claim time and member of commands under
    lease, by sequence; the others are where their columns say."""
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
        command_id=as_id(command_id),
        status=CommandStatus(status),
        data=columns.data,
        correlation_id=as_id(correlation_id),
        causation_id=as_optional_id(causation_id),
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
        batch_id=as_optional_id(batch_id),
        group_key=group_key,
        requires=tuple(requires.split(",")) if requires else (),
        unreadable=columns.unreadable,
    )
