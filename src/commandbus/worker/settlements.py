"""Outcomes as they are recorded: with the reply that the sender asked for."""

from __future__ import annotations

from typing import Any, assert_never

from commandbus.domain.lifecycle import ReplyOutcome
from commandbus.domain.outcome import (
    WITHOUT_RESULT,
    Canceled,
    Crashed,
    Outcome,
    Parked,
    Rejected,
    Released,
    RetryLater,
    Succeeded,
)
from commandbus.store.records import Claimed, NewCommand, Settlement
from commandbus.store.replies import reply_command


def settlement_of(claimed: Claimed, outcome: Outcome, ran: int = 0) -> Settlement:
    """What is to be recorded; with its reply, if the command has a reply_to and ends by it."""
    sends = () if claimed.reply_to is None else _reply(claimed, claimed.reply_to, outcome)
    return Settlement(
        claimed.seq,
        claimed.lease_id,
        claimed.attempt,
        outcome,
        ran,
        sends,
        claimed.batch_id,
        claimed=claimed,
    )


def completed(claimed: Claimed, ran: int) -> Settlement:
    """The same for a run without a result and a reply, which is what most runs are."""
    return Settlement(
        claimed.seq,
        claimed.lease_id,
        claimed.attempt,
        WITHOUT_RESULT,
        ran,
        (),
        claimed.batch_id,
        False,
        claimed,
    )


def _reply(claimed: Claimed, reply_to: str, outcome: Outcome) -> tuple[NewCommand, ...]:
    content: dict[str, Any]
    match outcome:
        case Succeeded(result):
            content = {"outcome": ReplyOutcome.SUCCESS, "result": result}
        case Rejected(failure):
            content = {"outcome": ReplyOutcome.FAILED, "failure": failure}
        case Canceled(reason):
            content = {"outcome": ReplyOutcome.CANCELED, "reason": reason}
        case Parked() | RetryLater() | Released() | Crashed():
            return ()
        case _:
            assert_never(outcome)
    return (
        reply_command(
            reply_to,
            command_id=claimed.command_id,
            domain=claimed.domain,
            command_type=claimed.command_type,
            correlation_id=claimed.correlation_id,
            **content,
        ),
    )
