"""Replies: what the sender of a command gets at its end.

A reply is itself a command, sent to the domain that `reply_to` names, in the transaction that ends the
first one. So it is as durable, is claimed and retried like any other, and other programs can read it.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

import msgspec

from commandbus.domain.lifecycle import CommandStatus, ReplyOutcome

REPLY_TYPE = "commandbus.reply"

_OUTCOMES = {
    CommandStatus.COMPLETED: ReplyOutcome.SUCCESS,
    CommandStatus.FAILED: ReplyOutcome.FAILED,
    CommandStatus.CANCELED: ReplyOutcome.CANCELED,
}


class Reply(msgspec.Struct, frozen=True):
    """How a command ended. Error code, message and details are at the top level."""

    command_id: UUID
    domain: str
    command_type: str
    correlation_id: UUID
    outcome: ReplyOutcome
    result: Any = None
    error_code: str | None = None
    error_message: str | None = None
    error_details: Any = None
    reason: str | None = None


def reply_outcome(status: CommandStatus) -> ReplyOutcome | None:
    """What a reply says about a status; None while the command has not ended."""
    return _OUTCOMES.get(status)
