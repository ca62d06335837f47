"""The outcome of a run: a value, decided without I/O, before anything is written."""

from __future__ import annotations

from typing import Any

import msgspec

from commandbus.domain.failure import POOL_TIMEOUT, Failure, FailureKind, classify
from commandbus.domain.moment import LONGEST
from commandbus.domain.retry import RetryPolicy
from commandbus.errors import BreakerOpen, CommandCanceled, RetryAfter, Snooze

CRASHES_MAX = 3
"""A command whose worker died this often is parked: it may be what kills them."""

UNKNOWN_HANDLER_PATIENCE = 20
"""Deliveries to workers that lack the handler before the command is parked."""

STOPS_MAX = 20
"""A command that this many workers gave back because they were stopped is parked: it may never end."""

STOPPED = "the worker stopped"
LEASE_GONE = "its lease may be gone"
NOT_RECORDED = "its worker was lost before its outcome was recorded"
"""Reasons of releases that may end a run whose handler has not answered."""

POOL_BACKOFF = (1.0, 2.0, 4.0)
"""Seconds to wait when no connection was free, the last one again and again."""


class Succeeded(msgspec.Struct, frozen=True, gc=False):
    result: str | None = None
    """The handler's result as JSON text."""


WITHOUT_RESULT = Succeeded()


class Rejected(msgspec.Struct, frozen=True):
    """A business rule refused it: final, not parked."""

    failure: Failure


class RetryLater(msgspec.Struct, frozen=True):
    failure: Failure
    delay: float


class Parked(msgspec.Struct, frozen=True):
    """It waits for an operator. `reason` names the rule that decided so."""

    failure: Failure
    reason: str


class Released(msgspec.Struct, frozen=True):
    """Given back without using an attempt."""

    reason: str
    delay: float = 0.0
    counted: bool = False
    """Whether it counts among the releases of the command, which are not forgiven for ever."""
    breaker: str | None = None
    """The target whose open breaker is the reason."""
    audited: bool = True
    """Whether the audit gets an entry."""


class Canceled(msgspec.Struct, frozen=True):
    """It was requested while it ran, or its handler decided so."""

    reason: str
    actor: str | None = None


class Crashed(msgspec.Struct, frozen=True):
    """Its worker died while it ran. `cause` is a sentence without its end: "Its worker … died"."""

    cause: str


Outcome = Succeeded | Rejected | RetryLater | Parked | Released | Canceled | Crashed


def decide_failure(
    error: BaseException,
    *,
    attempt: int,
    crashes: int,
    max_attempts: int,
    policy: RetryPolicy,
    elapsed: float = 0.0,
    total_timeout: float | None = None,
) -> Outcome:
    """What follows from an exception: the error matrix of the bus, in one place. `elapsed` are the
    seconds since the command was due, which the windows of time are measured by."""
    if isinstance(error, CommandCanceled):
        return Canceled(str(error.reason)[:500])
    if isinstance(error, Snooze):
        target = error.target if isinstance(error, BreakerOpen) else None
        return Released(str(error)[:500], _bounded(error.seconds), breaker=target)
    failure = classify(error)
    match failure.kind:
        case FailureKind.BUSINESS_RULE:
            return Rejected(failure)
        case FailureKind.PERMANENT:
            return Parked(failure, reason="PERMANENT")
        case FailureKind.TRANSIENT:
            # A crash used a delivery but proved nothing about the handler, so it uses no attempt.
            if attempt - crashes >= max_attempts:
                return Parked(failure, reason="EXHAUSTED")
            try:
                delay = _bounded(_backoff(error, failure, attempt - crashes, policy))
            except Exception:  # a schedule is the user's own code; an operator sees what it was for
                return Parked(failure, reason="BACKOFF_FAILED")
            begins = elapsed + delay
            if policy.window_seconds is not None and begins > policy.window_seconds:
                return Parked(failure, reason="RETRY_WINDOW")
            if total_timeout is not None and begins >= total_timeout:
                return Parked(failure, reason="TOTAL_TIMEOUT")
            return RetryLater(failure, delay)


def _backoff(error: BaseException, failure: Failure, attempt: int, policy: RetryPolicy) -> float:
    if isinstance(error, RetryAfter):
        return error.seconds
    if failure.code == POOL_TIMEOUT:
        # Not the handler's fault and soon over: its own schedule may be far too long, or none at all.
        return POOL_BACKOFF[min(attempt, len(POOL_BACKOFF)) - 1]
    return policy.delay(attempt)


def _bounded(seconds: float) -> float:
    """A delay within the range of every store; 0 for what is not a number."""
    return min(float(seconds), float(LONGEST)) if seconds > 0 else 0.0


def decide_unknown_handler(domain: str, command_type: str, releases: int) -> Outcome:
    """Back to the queue with growing delay, so that a rolling deploy can catch up; then an operator.

    The audit gets the 1st, 2nd, 4th, 8th and 16th release: enough to see why and how long.
    """
    if releases >= UNKNOWN_HANDLER_PATIENCE:
        failure = Failure(
            kind=FailureKind.PERMANENT,
            code="HANDLER_NOT_FOUND",
            message=f"No worker that claimed it knows {command_type!r} in domain {domain!r}; it was "
            f"given back {releases} times.",
        )
        return Parked(failure, reason="HANDLER_NOT_FOUND")
    return Released(
        reason=f"no handler for {command_type!r} here",
        delay=min(60.0, 0.5 * 1.6**releases),
        counted=True,
        audited=(releases + 1).bit_count() == 1,
    )


def decide_stopped(releases: int, reason: str = STOPPED) -> Released | Parked:
    """The worker ended before the outcome was recorded: no attempt is used and no crash is counted."""
    if releases < STOPS_MAX:
        return Released(reason, counted=True)
    failure = Failure(
        kind=FailureKind.PERMANENT,
        code="NEVER_FINISHED",
        message=f"It was given back {releases} times, the last time by a worker that stopped before it "
        "ended; raise shutdown_timeout, or split it into shorter commands.",
    )
    return Parked(failure, reason="NEVER_FINISHED")


def worker_lost(crashes: int, cause: str = "The worker stopped renewing its lease") -> Failure:
    """The error that a crash leaves behind, since the worker could not."""
    return Failure(
        kind=FailureKind.TRANSIENT,
        code="WORKER_LOST",
        message=f"{cause} (crash {crashes} of {CRASHES_MAX}).",
    )


def as_result(value: Any, encode: Any) -> Succeeded:
    return Succeeded(None if value is None else encode(value, what="result"))
