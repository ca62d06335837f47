"""Edits of operators: another due time or priority for a waiting command, and an ended one sent again.

A waiting command keeps everything else: attempts, unique key, batch, group and limits. A command that
ended stays as it is; its successor is a new command that names it as its cause.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime
from typing import Any, TypedDict, Unpack, cast
from uuid import UUID

import msgspec

from commandbus.domain import payload
from commandbus.domain.audit import AuditEventType
from commandbus.domain.command import CommandRecord, CommandRef, SendOptions, SendResult
from commandbus.domain.counts import as_count
from commandbus.domain.lifecycle import FINAL, PARKED, CommandStatus
from commandbus.domain.moment import SECOND, Duration, as_datetime, as_microseconds, as_seconds
from commandbus.domain.names import as_member, as_reason
from commandbus.domain.payload import Unreadable
from commandbus.domain.priority import Priority, as_priority
from commandbus.errors import CommandNotFoundError, InvalidArgumentError, InvalidOperationError
from commandbus.operations.bulk_troubleshooting import BULK_MAX
from commandbus.operations.choosing import as_ids, choose
from commandbus.operations.commands import find_one
from commandbus.operations.ledger import link_event
from commandbus.operations.scope import Flow, Scope, Send
from commandbus.operations.sending import send
from commandbus.operations.troubleshooting import UNCHANGED, check_edit, encode_edit
from commandbus.store.columns import among
from commandbus.store.op import Op
from commandbus.store.records import OPTIONAL, WaitingEdit

EXAMPLES = 5


class Selection(TypedDict, total=False):
    """Which commands: those named, or those that meet all conditions; see `query_commands`."""

    command_ids: Iterable[CommandRef] | None
    domain: str | None
    command_type: str | None
    tag: str | None
    correlation_id: UUID | str | None
    batch_id: UUID | str | None
    created_after: datetime | None
    created_before: datetime | None
    error: str | None
    data: dict[str, str] | None
    headers: dict[str, str] | None
    limit: int | None
    preview: bool
    progress: Callable[[int, int], bool | None] | None


class EditReport(msgspec.Struct, frozen=True):
    """What an edit of many commands did; with preview, only what it would have done."""

    matched: int
    done: int
    refused: int
    """Those whose state had changed when their turn came."""
    stopped: bool
    examples: list[CommandRecord] = []
    """The newest ones that matched, as they were before."""


def reschedule(
    scope: Scope,
    command_id: CommandRef,
    *,
    due_at: datetime | None = None,
    delay: Duration | None = None,
    domain: str | None = None,
    reason: str | None = None,
) -> Op[None]:
    """Let a waiting command become due at another time: at `due_at`, or `delay` seconds from now; 0 is
    now. It keeps its attempts, unique key, batch, group and limits.

    Raises CommandNotFoundError, InvalidArgumentError, or InvalidOperationError when the command does
    not wait, or would expire before it is due.
    """
    edit, because = _edit_of_time(due_at, delay), as_reason(reason)
    record = yield from find_one(scope, command_id, domain)
    now = yield from scope.store.now()
    moment = as_datetime(edit.moment(now, now))
    if record.expires_at is not None and record.expires_at <= moment:
        raise InvalidOperationError(
            f"Command {record.command_id} expires at {record.expires_at.isoformat()}, before it would "
            f"be due ({moment.isoformat()}); choose an earlier time, or resend it without an expiry."
        )
    changed = {"due_at": moment.isoformat(), "due_at_before": record.due_at.isoformat()}
    yield from _edit(scope, record, edit, changed, because)


def reprioritise(
    scope: Scope,
    command_id: CommandRef,
    priority: Priority,
    *,
    domain: str | None = None,
    reason: str | None = None,
) -> Op[None]:
    """Give a waiting command another priority: a label such as "high", or a number; lower runs first.
    It keeps everything else, and within its new priority its place by age. With the priority that it
    has, nothing is done.

    Raises CommandNotFoundError, InvalidArgumentError, or InvalidOperationError when the command does
    not wait.
    """
    number, because = as_priority(priority, scope.settings.priorities), as_reason(reason)
    record = yield from find_one(scope, command_id, domain)
    if record.status is CommandStatus.PENDING and record.priority == number:
        return
    changed = {"priority": number, "priority_before": record.priority}
    yield from _edit(scope, record, WaitingEdit(priority=number), changed, because)


def resend(
    scope: Scope,
    /,
    original: CommandRef,
    data: Any = UNCHANGED,
    *,
    domain: str | None = None,
    reason: str | None = None,
    **options: Unpack[SendOptions],
) -> Op[SendResult[Any]]:
    """Send an ended command again, as it was or with other `data` and other options of `send`; as a new
    command of the same correlation, whose cause is the ended one. The trail of the ended one says so.
    New data is plain values or the request of a typed command, and is checked as by `operator_retry`.

    Type, priority, attempts, tags, headers, group, required tags, reply address and unique key are
    those of the ended command; expiry and batch are not. While another command holds its unique key,
    nothing is sent, and the result names that command. Raises CommandNotFoundError, PayloadError, or
    InvalidOperationError when the command has not ended, or its data cannot be read or was erased.
    """
    because = as_reason(reason)
    record = yield from find_one(scope, original, domain)
    _require_ended(record)
    if data is UNCHANGED:
        yield from _require_data(scope, record)
        plain = record.data
    else:
        edited = encode_edit(scope, data)
        check_edit(scope, original, record, data, edited)
        plain = payload.decode(edited)
    given: SendOptions = {**_options_of(record), **options}
    sent: SendResult[Any] = yield from send(
        replace(scope, actor=None),  # the entry below is the record of this action
        record.domain,
        record.command_type,
        plain,
        **given,
    )
    contract = original.contract if isinstance(original, SendResult) else None
    if contract is not None:
        sent = msgspec.structs.replace(sent, contract=contract)
    if not sent.duplicate:
        details: dict[str, Any] = {"actor": scope.by, "command_id": str(sent.command_id)}
        details |= {"edited": True} if data is not UNCHANGED or options else {}
        details |= {"reason": because} if because else {}
        yield from _note(scope, record, AuditEventType.OPERATOR_RESEND, details)
    return sent


def reschedule_many(
    scope: Scope,
    *,
    due_at: datetime | None = None,
    delay: Duration | None = None,
    reason: str | None = None,
    **selection: Unpack[Selection],
) -> Flow[EditReport]:
    """`reschedule` of many waiting commands: those named by `command_ids`, or those that meet all
    conditions, which are those of `query_commands`. With `preview` nothing is done, and the report
    counts them and shows some. `progress` is called with (done so far, matched) after each; returning
    False stops. Each command is its own transaction, so what is done stays done."""
    _edit_of_time(due_at, delay)

    def build(command_id: UUID, domain: str) -> Op[Any]:
        return reschedule(scope, command_id, due_at=due_at, delay=delay, domain=domain, reason=reason)

    return _many(scope, CommandStatus.PENDING, build, selection)


def reprioritise_many(
    scope: Scope,
    priority: Priority,
    *,
    reason: str | None = None,
    **selection: Unpack[Selection],
) -> Flow[EditReport]:
    """`reprioritise` of many waiting commands, chosen as by `reschedule_many`."""
    as_priority(priority, scope.settings.priorities)

    def build(command_id: UUID, domain: str) -> Op[Any]:
        return reprioritise(scope, command_id, priority, domain=domain, reason=reason)

    return _many(scope, CommandStatus.PENDING, build, selection)


def resend_many(
    scope: Scope,
    status: CommandStatus | str,
    *,
    reason: str | None = None,
    **selection: Unpack[Selection],
) -> Flow[EditReport]:
    """`resend` of many commands that ended with `status`, chosen as by `reschedule_many`."""
    wanted = as_member(CommandStatus, status)
    if wanted not in FINAL:
        raise InvalidArgumentError(f"Only ended commands are sent again, not {status!r} ones.")

    def build(command_id: UUID, domain: str) -> Op[Any]:
        return resend(scope, command_id, domain=domain, reason=reason)

    return _many(scope, wanted, build, selection)


def _many(
    scope: Scope,
    status: CommandStatus | None,
    build: Callable[[UUID, str], Op[Any]],
    selection: Selection,
) -> Flow[EditReport]:
    conditions: dict[str, Any] = dict(selection)
    ids, limit = conditions.pop("command_ids", None), conditions.pop("limit", None)
    preview, progress = conditions.pop("preview", False), conditions.pop("progress", None)
    if limit is not None:
        as_count(limit, "limit", highest=BULK_MAX)
    if ids is None and not any(conditions.values()):
        raise InvalidArgumentError("Say which: command_ids, or at least one condition such as domain.")
    examples: list[CommandRecord] = []

    def keep(record: CommandRecord) -> tuple[UUID, str]:
        if len(examples) < EXAMPLES:
            examples.append(record)
        return record.command_id, record.domain

    chosen = yield from choose(scope, as_ids(ids), keep, limit, status=status, **conditions)
    matched, done, refused = len(chosen), 0, 0
    if preview:
        return EditReport(matched, 0, 0, stopped=False, examples=examples[:matched])
    for command_id, domain in chosen:
        try:
            yield Send(build(command_id, domain))
            done += 1
        except (InvalidOperationError, CommandNotFoundError):
            refused += 1
        if progress is not None and progress(done + refused, matched) is False:
            return EditReport(matched, done, refused, stopped=True, examples=examples[:matched])
    return EditReport(matched, done, refused, stopped=False, examples=examples[:matched])


def _edit_of_time(due_at: datetime | None, delay: Duration | None) -> WaitingEdit:
    if (due_at is None) == (delay is None):
        raise InvalidArgumentError("Say when: give either due_at or delay.")
    if due_at is not None:
        return WaitingEdit(due_at=as_microseconds(due_at, "due_at"))
    assert delay is not None
    return WaitingEdit(delay=int(as_seconds(delay, "delay") * SECOND))


def _edit(
    scope: Scope, record: CommandRecord, edit: WaitingEdit, changed: dict[str, Any], reason: str | None
) -> Op[None]:
    yield from scope.store.edit_waiting(record.domain, record.command_id, edit)
    details = {"actor": scope.by} | changed | ({"reason": reason} if reason else {})
    yield from _note(scope, record, AuditEventType.OPERATOR_EDIT, details)


def _note(
    scope: Scope, record: CommandRecord, kind: AuditEventType, details: dict[str, Any]
) -> Op[None]:
    yield from scope.store.note(record.domain, record.command_id, kind, details)
    yield from link_event(scope, record.domain, record.command_id, kind, details)


def _require_ended(record: CommandRecord) -> None:
    if record.status in FINAL:
        return
    advice = {
        PARKED: "it is parked; operator_retry sends it back to work.",
        CommandStatus.IN_PROGRESS: "it runs; wait for its end.",
    }
    raise InvalidOperationError(
        f"Only an ended command is sent again, and {record.command_id} is {record.status}: "
        f"{advice.get(record.status, 'it waits; reschedule makes it due now.')}"
    )


def _require_data(scope: Scope, record: CommandRecord) -> Op[None]:
    if isinstance(record.data, Unreadable):
        raise InvalidOperationError(
            f"Command {record.command_id} cannot be sent again as it was: its data cannot be read "
            f"({record.data.reason}). Give new data."
        )
    trail = yield from scope.store.audit_trail(record.command_id, record.domain)
    if any(event.event_type is AuditEventType.ERASED for event in trail):
        raise InvalidOperationError(
            f"Command {record.command_id} cannot be sent again as it was: its data was erased. Give "
            "new data."
        )


_NOT_AGAIN = {"causation_id", "expires_at", "batch_id"}
"""Columns that are those of one command: the next one has another cause, its own end, and no batch."""


def _options_of(record: CommandRecord) -> SendOptions:
    options: dict[str, Any] = {
        column.name: getattr(record, column.name)
        for column in among(OPTIONAL, CommandRecord)
        if column.name not in _NOT_AGAIN
    }
    options |= {
        "correlation_id": record.correlation_id,
        "causation_id": record.command_id,
        "priority": record.priority,
        "headers": record.headers or None,
    }
    return cast("SendOptions", options)
