"""The troubleshooting queue: commands that need a person, and what a person can do."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from commandbus.domain import payload
from commandbus.domain.audit import AuditEventType
from commandbus.domain.command import CommandRecord
from commandbus.domain.ids import as_id
from commandbus.domain.lifecycle import PARKED
from commandbus.domain.names import as_name, as_reason, as_text
from commandbus.domain.page import Page
from commandbus.domain.payload import Unreadable
from commandbus.errors import InvalidOperationError
from commandbus.operations.cancelling import end_parked, withdraw
from commandbus.operations.commands import only_one, query_commands
from commandbus.operations.ledger import link_event
from commandbus.operations.scope import Scope
from commandbus.store.op import Op
from commandbus.store.records import OperatorAction

UNCHANGED: Any = object()
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
    return (yield from scope.store.count_parked(domain, command_type))


def operator_retry(
    scope: Scope,
    domain: str,
    command_id: UUID | str,
    *,
    data: Any = UNCHANGED,
    reason: str | None = None,
) -> Op[None]:
    """Send a parked command back to work with fresh attempts; `data` replaces its payload, and the
    audit keeps the original. A payload that does not fit its handler is refused with PayloadError,
    when the queue was made with the handlers' registry.

    Raises CommandNotFoundError, or InvalidOperationError when it is not parked (any more): of two
    operators who act at once, one succeeds. Data that cannot be read must be replaced.
    """
    edited: str | None = None
    if data is not UNCHANGED:
        edited = payload.encode(data, bytes_max=scope.settings.payload_bytes_max)
        yield from _check_edited(scope, domain, command_id, edited)
    action = OperatorAction("retry", scope.by, as_reason(reason), data=edited)
    wanted = as_id(command_id, "command_id")
    if edited is None:
        yield from _require_readable(scope, as_name(domain, "domain"), wanted)
    yield from scope.store.resolve(as_name(domain, "domain"), wanted, action)
    yield from withdraw(scope, domain, wanted)
    yield from link_event(scope, domain, wanted, AuditEventType.OPERATOR_RETRY)


def _require_readable(scope: Scope, domain: str, command_id: UUID) -> Op[None]:
    for record in (yield from scope.store.find(command_id, domain)):
        if isinstance(record.data, Unreadable):
            raise InvalidOperationError(
                f"Command {command_id} cannot be retried as it is: its data cannot be read "
                f"({record.data.reason}). Retry it with new data, or complete or cancel it."
            )


def _check_edited(scope: Scope, domain: str, command_id: UUID | str, data: str) -> Op[None]:
    """Against the handler's type, where it is known: better here than at the next attempt."""
    if scope.check_payload is None:
        return
    records = yield from scope.store.find(as_id(command_id, "command_id"), as_name(domain, "domain"))
    if records:
        scope.check_payload(domain, records[0].command_type, data)


def operator_cancel(scope: Scope, domain: str, command_id: UUID | str, reason: str) -> Op[None]:
    """End a parked command as CANCELED, with the reason in its record and audit."""
    action = OperatorAction("cancel", scope.by, as_text(reason, "reason", longest=500))
    yield from _end(scope, domain, command_id, action)


def operator_complete(
    scope: Scope,
    domain: str,
    command_id: UUID | str,
    result: Any = None,
    *,
    reason: str | None = None,
) -> Op[None]:
    """End a parked command as COMPLETED with a result that a person vouches for."""
    encoded = None if result is None else payload.encode(result, what="result")
    action = OperatorAction("complete", scope.by, as_reason(reason), result=encoded)
    yield from _end(scope, domain, command_id, action)


def _end(scope: Scope, domain: str, command_id: UUID | str, action: OperatorAction) -> Op[None]:
    wanted, name = as_id(command_id, "command_id"), as_name(domain, "domain")
    record = only_one((yield from scope.store.find(wanted, name)), wanted, name)
    yield from end_parked(scope, record, action)
