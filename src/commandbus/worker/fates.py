"""The log line about a failed attempt, and the last exceptions of a worker."""

from __future__ import annotations

import logging

import msgspec

from commandbus.domain.failure import Failure
from commandbus.domain.outcome import Parked, Rejected, RetryLater
from commandbus.store.records import Claimed

logger = logging.getLogger("commandbus.worker")

LOGGED_MAX = 200
"""So many characters of an error's message are logged."""
FATES = {
    Rejected: (logging.INFO, "failed"),
    RetryLater: (logging.WARNING, "tried again later"),
    Parked: (logging.ERROR, "parked"),
}
"""What becomes of a command after a failed attempt, in the words of a log, and its level."""


class CaughtException(msgspec.Struct, frozen=True):
    """A handler's exception, kept for tests and for inspection."""

    command_id: str
    command_type: str
    attempt: int
    type: str
    error: str
    exception: BaseException


def log_fate(claimed: Claimed, outcome: Rejected | RetryLater | Parked) -> None:
    """Log what became of a command after a failed attempt."""
    level, fate = FATES[type(outcome)]
    logger.log(
        level,
        "%s %s, attempt %d: %s, %s",
        claimed.command_type,
        claimed.command_id,
        claimed.attempt,
        _in_short(outcome.failure),
        fate,
        extra={
            "command_id": str(claimed.command_id),
            "domain": claimed.domain,
            "command_type": claimed.command_type,
            "attempt": claimed.attempt,
            "correlation_id": str(claimed.correlation_id),
            "code": outcome.failure.code,
        },
    )


def _in_short(failure: Failure) -> str:
    """The error in a line of a log; all of it is kept with the command."""
    line = failure.message.strip().partition("\n")[0][:LOGGED_MAX]
    return f"{failure.code}: {line}" if line and line != failure.code else failure.code
