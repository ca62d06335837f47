"""Looking at commands: by id, by filter, and their audit trails."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from commandbus.domain import payload
from commandbus.domain.audit import AuditEvent
from commandbus.domain.command import (
    CommandRecord,
    CommandRef,
    SendResult,
)
from commandbus.domain.contract import CommandType
from commandbus.domain.ids import as_id, as_optional_id
from commandbus.domain.lifecycle import CommandStatus
from commandbus.domain.moment import as_microseconds
from commandbus.domain.names import as_member, as_name, as_text
from commandbus.domain.page import Page, as_cursor, as_limit
from commandbus.domain.reply import reply_outcome
from commandbus.errors import (
    CommandNotFoundError,
    InvalidArgumentError,
    InvalidOperationError,
)
from commandbus.operations.scope import Scope
from commandbus.store.batching import TOPIC as BATCHES
from commandbus.store.op import Op
from commandbus.store.records import Capacity, CommandFilter
from commandbus.store.replies import reply_command

R = TypeVar("R")
_PATH = re.compile(r"[\w-]{1,100}(\.[\w-]{1,100}){0,9}\Z")


def get_command(
    scope: Scope,
    command_id: SendResult[R] | CommandRecord[Any] | UUID | str,
    *,
    domain: str | None = None,
) -> Op[CommandRecord[R] | None]:
    """Everything known about a command, or None when there is none with this id. `domain` is needed
    only where several domains have a command with it; else InvalidOperationError names them. Given
    what `send` of a typed command returned, the result is decoded; see `wait`."""
    contract = command_id.contract if isinstance(command_id, SendResult) else None
    wanted, where = place_of(command_id, domain)
    records = yield from scope.store.find(wanted, where)
    if not records:
        return None
    return decoded_record(contract, complete_record(scope, only_one(records, wanted, where)))


def query_commands(
    scope: Scope,
    *,
    domain: str | None = None,
    command_type: str | None = None,
    status: CommandStatus | str | None = None,
    tag: str | None = None,
    correlation_id: UUID | str | None = None,
    batch_id: UUID | str | None = None,
    created_after: datetime | None = None,
    created_before: datetime | None = None,
    error: str | None = None,
    data: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
    after: str | None = None,
    scan: int | None = None,
    limit: int = 100,
) -> Op[Page[CommandRecord]]:
    """Commands that meet all conditions, newest first, a page at a time.

    `error` is a code, or the name of an exception, with which they ended or are parked; `data` maps
    paths into the payload, keys with dots between, to the text of the value there, and `headers`
    paths into the headers. `after` is the
    `next` of the page before; pages neither repeat nor skip a command that was there when the first
    page was read, however many are added meanwhile. With `scan`, no more than so many commands are
    looked at, and `next` goes on where the look ended.
    """
    as_limit(limit)
    wanted = CommandFilter(
        domain=None if domain is None else as_name(domain, "domain"),
        command_type=None if command_type is None else as_name(command_type, "command_type"),
        status=as_member(CommandStatus, status),
        tag=None if tag is None else as_text(tag, "tag"),
        correlation_id=as_optional_id(correlation_id, "correlation_id"),
        batch_id=as_optional_id(batch_id, "batch_id"),
        created_after=None
        if created_after is None
        else as_microseconds(created_after, "created_after"),
        created_before=None
        if created_before is None
        else as_microseconds(created_before, "created_before"),
        error=error,
        data=_values(data),
        headers=_values(headers),
        before=as_cursor(after),
        limit=limit + 1,
    )
    if scan is not None:
        begin = wanted.before or (yield from scope.store.last_sequence()) + 1
        wanted = msgspec.structs.replace(wanted, lowest=begin - scan)
    records = yield from scope.store.query(wanted)
    page = [complete_record(scope, record) for record in records[:limit]]
    if len(records) > limit:
        return Page(page, str(page[-1].sequence))
    return Page(page, str(wanted.lowest) if wanted.lowest and wanted.lowest > 1 else None)


def _values(wanted: Mapping[str, str] | None) -> tuple[tuple[str, str], ...]:
    return tuple((as_path(path), str(text)) for path, text in (wanted or {}).items())


def as_path(path: str) -> str:
    """A path into a payload, or InvalidArgumentError."""
    if not _PATH.match(path):
        raise InvalidArgumentError(
            f"{path!r} is not a path into a payload: write keys of letters, digits, _ and - with dots "
            "between, such as customer.id."
        )
    return path


def get_audit_trail(
    scope: Scope, command_id: CommandRef, *, domain: str | None = None
) -> Op[list[AuditEvent]]:
    """Everything that happened to a command, in order: sent, received, failed, retried, completed,
    and what operators did. Empty when there is no such command."""
    return (yield from scope.store.audit_trail(*place_of(command_id, domain)))


def reply_to_sender(scope: Scope, domain: str, command_id: UUID) -> Op[None]:
    """Tell the sender how a command ended that no worker ended; in the same transaction."""
    record = (yield from scope.store.find(command_id, domain))[0]
    if record.batch_id is not None:
        yield from scope.store.announce(BATCHES)
    outcome = reply_outcome(record.status)
    if record.reply_to is None or outcome is None:
        return
    reply = reply_command(
        record.reply_to,
        command_id=record.command_id,
        domain=record.domain,
        command_type=record.command_type,
        correlation_id=record.correlation_id,
        outcome=outcome,
        result=None if record.result is None else payload.encode(record.result),
        reason=record.reason,
    )
    yield from scope.insert([reply], Capacity())


def place_of(
    command_id: CommandRef, domain: str | None, name: str = "command_id"
) -> tuple[UUID, str | None]:
    """The id and the domain of a command that is given by its id, its record, or what its send
    returned."""
    if isinstance(command_id, SendResult | CommandRecord):
        domain, command_id = domain or command_id.domain, command_id.command_id
    return as_id(command_id, name), None if domain is None else as_name(domain, "domain")


def find_one(scope: Scope, command_id: CommandRef, domain: str | None) -> Op[CommandRecord]:
    """The command with this id; `domain` only narrows. Raises CommandNotFoundError, and
    InvalidOperationError when several domains have one."""
    wanted, name = place_of(command_id, domain)
    return only_one((yield from scope.store.find(wanted, name)), wanted, name)


def only_one(records: Sequence[CommandRecord], command_id: UUID, domain: str | None) -> CommandRecord:
    """The one command that an id without a domain means."""
    if not records:
        raise CommandNotFoundError(domain, command_id)
    if len(records) > 1:
        names = ", ".join(record.domain for record in records)
        raise InvalidOperationError(
            f"Several domains have a command {command_id} ({names}); say which with domain=."
        )
    return records[0]


def complete_record(scope: Scope, record: CommandRecord[R]) -> CommandRecord[R]:
    """The record with the bus's limit of attempts where the command has none of its own."""
    if record.max_attempts is not None:
        return record
    return msgspec.structs.replace(record, max_attempts=scope.settings.max_attempts)


def decoded_record(
    contract: CommandType[..., R] | None, record: CommandRecord[Any]
) -> CommandRecord[R]:
    """The record with its result as the contract says."""
    if contract is None or record.status is not CommandStatus.COMPLETED:
        return record
    return msgspec.structs.replace(record, result=contract.decode_result(record.result))
