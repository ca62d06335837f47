"""The troubleshooting queue: commands that need a person, and what a person can do."""

from __future__ import annotations

from typing import Any

from commandbus.domain import payload
from commandbus.domain.audit import AuditEventType
from commandbus.domain.command import (
    CommandRecord,
    CommandRef,
    SendRequest,
    SendResult,
    TypedRequest,
)
from commandbus.domain.lifecycle import PARKED
from commandbus.domain.names import as_name, as_reason
from commandbus.domain.page import Page
from commandbus.domain.payload import Unreadable
from commandbus.errors import InvalidArgumentError, InvalidOperationError
from commandbus.operations.canceling import end_parked, withdraw
from commandbus.operations.commands import find_one, query_commands
from commandbus.operations.ledger import link_event
from commandbus.operations.scope import Scope
from commandbus.store.op import Op
from commandbus.store.records import OperatorAction


class _Unchanged:
    def __repr__(self) -> str:
        return "UNCHANGED"  # as signatures show it


UNCHANGED: Any = _Unchanged()
"""The payload stays as it was sent."""


def list_troubleshooting(
    scope: Scope,
    domain: str | None = None,
    command_type: str | None = None,
    *,
    after: str | None = None,
    limit: int = 50,
) -> Op[Page[CommandRecord]]:
    """Parked commands, newest first, with their payload and last error; of all domains or one."""
    return (
        yield from query_commands(
            scope, domain=domain, command_type=command_type, status=PARKED, after=after, limit=limit
        )
    )


def count(scope: Scope, domain: str | None = None, command_type: str | None = None) -> Op[int]:
    """How many commands are parked."""
    name = None if domain is None else as_name(domain, "domain")
    kind = None if command_type is None else as_name(command_type, "command_type")
    return (yield from scope.store.count_parked(name, kind))


def operator_retry(
    scope: Scope,
    command_id: CommandRef,
    *,
    data: Any = UNCHANGED,
    domain: str | None = None,
    reason: str | None = None,
) -> Op[None]:
    """Send a parked command back to work with fresh attempts; `data` replaces its payload, and the
    audit keeps the original. `data` is the request of a typed command, whose payload was checked, or
    plain values: these are checked when `command_id` is what the send of a typed command returned, or
    the queue was made with the handlers' registry. PayloadError says what does not fit.

    Raises CommandNotFoundError, or InvalidOperationError when it is not parked (any more), or when
    several domains have a command with this id and `domain` is not given. Of two operators who act at
    once, one succeeds. Data that cannot be read must be replaced.
    """
    edited = None if data is UNCHANGED else encode_edit(scope, data)
    action = OperatorAction("retry", scope.by, as_reason(reason), data=edited)
    record = yield from find_one(scope, command_id, domain)
    if edited is None:
        _require_readable(record)
    else:  # better refused here than at the next attempt
        check_edit(scope, command_id, record, data, edited)
    yield from scope.store.resolve(record.domain, record.command_id, action)
    yield from withdraw(scope, record.domain, record.command_id)
    yield from link_event(scope, record.domain, record.command_id, AuditEventType.OPERATOR_RETRY)


def encode_edit(scope: Scope, data: Any) -> str:
    """New data for a command as JSON text: plain values, or the request of a typed command."""
    bytes_max = scope.settings.payload_bytes_max
    if isinstance(data, TypedRequest):
        return payload.check_size(data.text, bytes_max)
    return payload.encode(data, bytes_max=bytes_max)


def check_edit(scope: Scope, given: CommandRef, record: CommandRecord, data: Any, edited: str) -> None:
    """Raise PayloadError when new data does not fit its command: the contract of what its send
    returned, or its handler in the registry."""
    if isinstance(data, SendRequest):
        wanted, found = (record.domain, record.command_type), (data.domain, data.command_type)
        if wanted != found:
            raise InvalidArgumentError(
                f"Command {record.command_id} is {'.'.join(wanted)}, and its new data is a request of "
                f"{'.'.join(found)}."
            )
    contract = given.contract if isinstance(given, SendResult) else None
    if contract is not None and not isinstance(data, TypedRequest):
        contract.check(edited)
    elif scope.check_payload is not None:
        scope.check_payload(record.domain, record.command_type, edited)


def _require_readable(record: CommandRecord) -> None:
    if isinstance(record.data, Unreadable):
        raise InvalidOperationError(
            f"Command {record.command_id} cannot be retried as it is: its data cannot be read "
            f"({record.data.reason}). Retry it with new data, or complete or cancel it."
        )


def operator_cancel(
    scope: Scope,
    command_id: CommandRef,
    *,
    domain: str | None = None,
    reason: str | None = None,
) -> Op[None]:
    """End a parked command as CANCELED, with the reason in its record and audit. Raises like
    operator_retry."""
    action = OperatorAction("cancel", scope.by, as_reason(reason) or f"canceled by {scope.by}")
    record = yield from find_one(scope, command_id, domain)
    yield from end_parked(scope, record, action)


def operator_complete(
    scope: Scope,
    command_id: CommandRef,
    result: Any = None,
    *,
    domain: str | None = None,
    reason: str | None = None,
) -> Op[None]:
    """End a parked command as COMPLETED with a result that an operator gives. It is checked when
    `command_id` is what the send of a typed command returned. Raises like operator_retry."""
    contract = command_id.contract if isinstance(command_id, SendResult) else None
    if contract is not None:
        encoded = contract.encode_result(result)
    else:
        encoded = None if result is None else payload.encode(result, what="result")
    action = OperatorAction("complete", scope.by, as_reason(reason), result=encoded)
    record = yield from find_one(scope, command_id, domain)
    yield from end_parked(scope, record, action)
