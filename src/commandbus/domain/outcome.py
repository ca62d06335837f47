"""What a run amounted to: a value, decided without I/O, before anything is written."""

from __future__ import annotations

from typing import Any

import msgspec

from commandbus.domain.failure import Failure, FailureKind, classify
from commandbus.domain.moment import LONGEST
from commandbus.domain.retry import RetryPolicy
from commandbus.errors import RetryAfter, Snooze

CRASHES_MAX = 3
"""A command whose worker died this often is parked: it may be what kills them."""

UNKNOWN_HANDLER_PATIENCE = 20
"""Deliveries to workers that lack the handler before an operator is asked."""


class Succeeded(msgspec.Struct, frozen=True):
    result: str | None = None
    """The handler's result as JSON text."""


class Rejected(msgspec.Struct, frozen=True):
    """The business said no: final, no operator."""

    failure: Failure


class RetryLater(msgspec.Struct, frozen=True):
    failure: Failure
    delay: float


class Parked(msgspec.Struct, frozen=True):
    """An operator is asked. `reason` says which rule decided so."""

    failure: Failure
    reason: str


class Released(msgspec.Struct, frozen=True):
    """Given back without using an attempt."""

    reason: str
    delay: float = 0.0


class Canceled(msgspec.Struct, frozen=True):
    reason: str


Outcome = Succeeded | Rejected | RetryLater | Parked | Released | Canceled


def decide_failure(
    error: BaseException, *, attempt: int, crashes: int, max_attempts: int, policy: RetryPolicy
) -> Outcome:
    """What follows from an exception: the error matrix of the bus, in one place."""
    if isinstance(error, Snooze):
        return Released(reason=str(error)[:500], delay=_bounded(error.seconds))
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
            if isinstance(error, RetryAfter):
                return RetryLater(failure, delay=_bounded(error.seconds))
            try:
                return RetryLater(failure, delay=_bounded(policy.delay(attempt - crashes)))
            except Exception:  # a schedule is the user's own code; an operator sees what it was for
                return Parked(failure, reason="BACKOFF_FAILED")


def _bounded(seconds: float) -> float:
    """A wait that every store can keep, whatever was asked for; what is no number waits not at all."""
    return min(float(seconds), float(LONGEST)) if seconds > 0 else 0.0


def decide_unknown_handler(domain: str, command_type: str, releases: int) -> Outcome:
    """Back to the queue with growing delay, so that a rolling deploy can catch up; then an operator."""
    if releases >= UNKNOWN_HANDLER_PATIENCE:
        failure = Failure(
            kind=FailureKind.PERMANENT,
            code="HANDLER_NOT_FOUND",
            message=f"No worker that claimed it knows {command_type!r} in domain {domain!r}.",
        )
        return Parked(failure, reason="HANDLER_NOT_FOUND")
    return Released(
        reason=f"no handler for {command_type!r} here", delay=min(60.0, 0.5 * 1.6**releases)
    )


def worker_lost(crashes: int) -> Failure:
    """The error that a crash leaves behind, since the worker could not."""
    return Failure(
        kind=FailureKind.TRANSIENT,
        code="WORKER_LOST",
        message=f"The worker stopped renewing its lease (crash {crashes} of {CRASHES_MAX}).",
    )


def as_result(value: Any, encode: Any) -> Succeeded:
    return Succeeded(None if value is None else encode(value, what="result"))
