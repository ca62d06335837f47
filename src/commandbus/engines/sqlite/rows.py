"""Rows of the SQLite file as values of the port, and back."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from commandbus.domain.command import CommandRecord
from commandbus.domain.failure import Failure, FailureKind
from commandbus.domain.lifecycle import CommandStatus
from commandbus.domain.moment import as_datetime
from commandbus.domain.payload import Unreadable
from commandbus.store.op import Rows
from commandbus.store.reading import (
    Known,
    Running,
    as_record,
    make_record,
    read_status,
)
from commandbus.store.records import CLAIMED, OPTIONAL, Claimed, NewCommand
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


_ID_NAMES = tuple(column.name for column in OPTIONAL if column.kind == "uuid")
_CLAIMED_IDS = tuple(column.kind == "uuid" for column in CLAIMED)
_NO_OPTIONAL, _NO_CLAIMED = (None,) * len(OPTIONAL), (None,) * len(CLAIMED)
_optional = attrgetter(*(column.name for column in OPTIONAL))


class Head(NamedTuple):
    """A row of the query `head`: one of the first commands of a queue. The columns of the command are
    None where it is missing or damaged. After these fields come the optional columns that a claim
    returns, in their order."""

    seq: int
    priority: int
    attempts: int
    crashes: int
    releases: int
    available_at: int
    command_type: str | None
    command_id: bytes
    data: str
    correlation_id: bytes
    created_at: int
    due_at: int
    expires_at: int | None
    keyed: bool

    @property
    def optional(self) -> tuple[Any, ...]:
        """The optional columns, as `Claimed` has them."""
        columns: tuple[Any, ...] = self[_HEAD_FIELDS:]
        if columns == _NO_CLAIMED:
            return columns
        return tuple(
            [
                as_id(value) if is_id and value is not None else value
                for value, is_id in zip(columns, _CLAIMED_IDS, strict=True)
            ]
        )

    def column(self, name: str) -> Any:
        """One of the optional columns, by name."""
        return dict(zip(_CLAIMED_NAMES, self.optional, strict=True))[name]

    @property
    def standing(self) -> Standing:
        return Standing(self.seq, CommandStatus.PENDING, self.attempts, self.crashes)

    def is_unfit(self, now: int) -> bool:
        """Whether it has no sound command, or one that has expired."""
        expires_at = self.expires_at
        return self.command_type is None or (expires_at is not None and expires_at <= now)


_HEAD_FIELDS = len(Head._fields)
_CLAIMED_NAMES = tuple(column.name for column in CLAIMED)


# Half the time of Head._make, which counts the columns; each claim reads many.
_head: Any = partial(tuple.__new__, Head)


def as_heads(rows: Rows) -> list[Head]:
    return [*map(_head, rows)]


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
    assert row.command_type is not None
    own_id = as_id(row.command_id)
    return Claimed(
        row.seq,
        lease_id,
        domain,
        row.command_type,
        own_id,
        row.data,
        own_id if row.correlation_id == row.command_id else as_id(row.correlation_id),
        row.priority,
        row.created_at,
        row.attempts + 1,
        row.crashes,
        row.releases,
        now - row.due_at,
        member.keyed,
        member.chain,
        *row.optional,
    )


def command_params(seq: int, command: NewCommand, now: int, due_at: int) -> tuple[Any, ...]:
    """The parameters of `insert_command`."""
    optional = _optional(command)
    if optional != _NO_OPTIONAL:
        optional = tuple([one.bytes if isinstance(one, UUID) else one for one in optional])
    return (
        seq,
        now,
        due_at,
        command.command_id.bytes,
        command.domain,
        command.command_type,
        command.data,
        command.correlation_id.bytes,
        command.priority,
        *optional,
    )


def as_command(columns: Sequence[Any]) -> NewCommand:
    """The columns of a stored command: the required ones, then the optional ones; its ids are bytes."""
    domain, command_type, command_id, data, correlation_id, priority, *optional = columns
    required = domain, command_type, command_id, data, correlation_id, priority
    return NewCommand(*required, 0, None, *optional)


def with_ids(command: NewCommand) -> NewCommand:
    """A stored command with its ids. Raises what `as_id` raises for a damaged one."""
    raw: Any = command
    ids = {name: as_optional_id(getattr(raw, name)) for name in _ID_NAMES}
    required = {"command_id": as_id(raw.command_id), "correlation_id": as_id(raw.correlation_id)}
    return msgspec.structs.replace(command, **required, **ids)


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


def as_known(row: Sequence[Any]) -> Known:
    """A row of the query `records`; the ids of its command are bytes, and any of its columns may have a
    value of another type."""
    return Known(as_command(row[_STATE_FIELDS:]), *row[:_STATE_FIELDS])


_STATE_FIELDS = len(Known.__struct_fields__) - 1


def readable(known: Known) -> Known:
    """The same with ids. Raises what `as_id` raises for a damaged one."""
    return msgspec.structs.replace(known, command=with_ids(known.command))


def as_shown(known: Known, running: Running) -> CommandRecord:
    """A damaged row is shown as far as it can be read, so that the others of its list can be seen."""
    try:
        return as_record(readable(known), running)
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        return _damaged_record(known, error)


def _damaged_record(known: Known, error: Exception) -> CommandRecord:
    seq, status = known.seq, known.status
    raw: Any = known.command
    message = f"Row {seq} of commandbus_command was changed by hand and cannot be read: {error}."
    beginning = as_datetime(0)
    command = NewCommand(
        str(raw.domain),
        str(raw.command_type),
        _id_or_number(raw.command_id, seq),
        "null",
        _id_or_number(raw.correlation_id, seq),
        0,
    )
    record = make_record(
        command,
        None,
        [message],
        status=read_status(str(status)),
        attempts=0,
        crashes=0,
        created_at=beginning,
        due_at=beginning,
        started_at=None,
        finished_at=None,
        worker=None,
        error=Failure(FailureKind.PERMANENT, "DAMAGED", message),
        reason="PERMANENT",
        progress=None,
        sequence=seq,
    )
    return msgspec.structs.replace(record, data=Unreadable(message))


def _id_or_number(raw: object, seq: int) -> UUID:
    return UUID(bytes=raw) if isinstance(raw, bytes) and len(raw) == 16 else UUID(int=seq)
