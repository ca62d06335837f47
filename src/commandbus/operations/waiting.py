"""Waiting for the end of a command."""

from __future__ import annotations

from typing import Any, TypeVar, Unpack
from uuid import UUID

from commandbus.domain.command import CommandRecord, SendOptions, SendRequest, SendResult
from commandbus.domain.lifecycle import FINAL, PARKED, CommandStatus, ReplyOutcome
from commandbus.domain.moment import Duration, as_seconds
from commandbus.domain.reply import Reply, reply_outcome
from commandbus.errors import (
    BusinessRuleException,
    CommandCanceled,
)
from commandbus.operations.commands import complete_record, decoded_record, only_one, place_of
from commandbus.operations.scope import Await, Flow, Scope, Send
from commandbus.operations.sending import send

R = TypeVar("R")


def request(
    scope: Scope,
    /,
    domain: str | SendRequest[R],
    command_type: str | None = None,
    data: Any = None,
    *,
    timeout: Duration,
    **options: Unpack[SendOptions],
) -> Flow[Reply | R | None]:
    """Send a command and wait for its end. `options` are those of `send`.

    Of a request, such as a call of a typed command makes, the result is returned, decoded; a command
    that was FAILED raises BusinessRuleException with its code, message and details, one that was
    CANCELED raises CommandCanceled. Of a domain, a command type and a payload the Reply is returned:
    outcome, result and error.
    Raises TimeoutError when the command has not ended after `timeout` seconds, also while it is
    parked for an operator; it goes on nevertheless, and `wait` can be asked again by its id.
    """
    seconds = as_seconds(timeout, "timeout")
    now = yield Await(0)
    deadline = now + seconds
    typed = isinstance(domain, SendRequest)
    sent: SendResult[R] = yield Send(send(scope, domain, command_type, data, **options))
    while True:
        records = yield scope.store.find(sent.command_id, sent.domain)
        record = only_one(records, sent.command_id, sent.domain)
        outcome = reply_outcome(record.status)
        if outcome is not None:
            return _result(sent, record) if typed else _reply(record, outcome)
        if now >= deadline:
            raise TimeoutError(
                f"Command {sent.command_id} is still {record.status} after {seconds:g} s; it goes on, "
                "and wait() can be asked again by its id."
            )
        now = yield Await(min(1.0, deadline - now))


def _reply(record: CommandRecord[Any], outcome: ReplyOutcome) -> Reply:
    error = record.error if outcome is ReplyOutcome.FAILED else None
    return Reply(
        record.command_id,
        record.domain,
        record.command_type,
        record.correlation_id,
        outcome,
        record.result,
        error.code if error else None,
        error.message if error else None,
        error.details if error else None,
        record.reason,
    )


def _result(sent: SendResult[R], record: CommandRecord[Any]) -> R | None:
    """The result of a command that has ended; raises what its end means to its sender."""
    if record.status is CommandStatus.CANCELED:
        raise CommandCanceled(record.reason or "canceled")
    if record.error is not None:
        error = record.error
        raise BusinessRuleException(error.code, error.message, error.details)
    return decoded_record(sent.contract, record).result


def wait(
    scope: Scope,
    command_id: SendResult[R] | CommandRecord[Any] | UUID | str,
    timeout: Duration | None = None,
    *,
    domain: str | None = None,
) -> Flow[CommandRecord[R]]:
    """Wait until a command has ended or is parked for an operator, and return its record.

    Given what `send` of a typed command returned, the result of the record is decoded, and PayloadError
    raised when it does not fit. Raises TimeoutError after `timeout` seconds, CommandNotFoundError when
    there is no such command, and InvalidOperationError when several domains have one with this id and
    `domain` is not given.
    """
    contract = command_id.contract if isinstance(command_id, SendResult) else None
    wanted, domain = place_of(command_id, domain)
    seconds = None if timeout is None else as_seconds(timeout, "timeout")
    now = yield Await(0)
    deadline = None if seconds is None else now + seconds
    while True:
        record = only_one((yield scope.store.find(wanted, domain)), wanted, domain)
        if record.status in FINAL or record.status is PARKED:
            return decoded_record(contract, complete_record(scope, record))
        left = 1.0 if deadline is None else min(1.0, deadline - now)
        if left <= 0:
            raise TimeoutError(
                f"Command {wanted} is still {record.status} after {seconds:g} s; wait again, or see "
                "whether a worker serves its domain."
            )
        now = yield Await(left)
