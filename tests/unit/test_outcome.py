"""The error matrix, as a table: what follows from how a run ended."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from commandbus import (
    BusinessRuleException,
    PermanentCommandError,
    RetryAfter,
    RetryPolicy,
    Snooze,
    TransientCommandError,
)
from commandbus.domain import payload
from commandbus.domain.moment import LONGEST
from commandbus.domain.outcome import (
    UNKNOWN_HANDLER_PATIENCE,
    Parked,
    Rejected,
    Released,
    RetryLater,
    Succeeded,
    as_result,
    decide_failure,
    decide_unknown_handler,
    worker_lost,
)
from commandbus.errors import PayloadError

POLICY = RetryPolicy(backoff_schedule=[10, 60])
TRANSIENT = TransientCommandError("DOWN")


def decide(error: BaseException, attempt: int = 1, crashes: int = 0, policy: Any = POLICY) -> Any:
    return decide_failure(error, attempt=attempt, crashes=crashes, max_attempts=3, policy=policy)


@pytest.mark.parametrize(
    ("error", "attempt", "crashes", "follows"),
    [
        # Transient: again, with backoff, until attempts are used up; then an operator.
        (TRANSIENT, 1, 0, (RetryLater, 10.0)),
        (TRANSIENT, 2, 0, (RetryLater, 60.0)),
        (TRANSIENT, 3, 0, (Parked, "EXHAUSTED")),
        (TRANSIENT, 9, 0, (Parked, "EXHAUSTED")),
        # Anything undeclared may work later.
        (ValueError(), 1, 0, (RetryLater, 10.0)),
        (SystemExit(), 3, 0, (Parked, "EXHAUSTED")),
        # A crash used a delivery, but no attempt, and does not lengthen the wait.
        (TRANSIENT, 3, 1, (RetryLater, 60.0)),
        (TRANSIENT, 4, 1, (Parked, "EXHAUSTED")),
        (TRANSIENT, 3, 2, (RetryLater, 10.0)),
        # The other side said when.
        (RetryAfter(7), 1, 0, (RetryLater, 7.0)),
        (RetryAfter(timedelta(minutes=1)), 1, 0, (RetryLater, 60.0)),
        (RetryAfter(7), 3, 0, (Parked, "EXHAUSTED")),
        # Permanent: an operator at once. Business rule: final, nobody is asked.
        (PermanentCommandError("WRONG"), 1, 0, (Parked, "PERMANENT")),
        (BusinessRuleException("NO"), 1, 0, (Rejected, None)),
        (BusinessRuleException("NO"), 3, 0, (Rejected, None)),
        # Snoozing uses no attempt, however often.
        (Snooze(5), 1, 0, (Released, 5.0)),
        (Snooze(timedelta(seconds=5)), 99, 0, (Released, 5.0)),
    ],
)
def test_the_error_matrix(
    error: BaseException, attempt: int, crashes: int, follows: tuple[type, Any]
) -> None:
    outcome = decide(error, attempt, crashes)
    kind, value = follows
    assert type(outcome) is kind
    match outcome:
        case RetryLater(_, delay) | Released(_, delay):
            assert delay == value
        case Parked(_, reason):
            assert reason == value
        case Rejected(failure):
            assert failure.code == "NO"


@pytest.mark.parametrize(
    ("seconds", "delay"),
    [(float("inf"), LONGEST), (1e300, LONGEST), (-5, 0), (float("nan"), 0), (0, 0)],
)
def test_no_wait_is_longer_than_a_store_can_keep(seconds: float, delay: float) -> None:
    assert decide(Snooze(seconds)).delay == delay
    assert decide(RetryAfter(seconds)).delay == delay
    own = RetryPolicy(backoff_schedule=lambda attempt: seconds)
    assert decide(TRANSIENT, policy=own).delay == delay


def test_a_schedule_that_raises_asks_an_operator_and_keeps_the_handlers_error() -> None:
    def broken(attempt: int) -> float:
        raise ZeroDivisionError

    outcome = decide(TRANSIENT, policy=RetryPolicy(backoff_schedule=broken))
    assert isinstance(outcome, Parked)
    assert (outcome.reason, outcome.failure.code) == ("BACKOFF_FAILED", "DOWN")


def test_an_unknown_handler_is_given_time_and_then_parked() -> None:
    outcomes = [decide_unknown_handler("d", "T", n) for n in range(UNKNOWN_HANDLER_PATIENCE + 1)]
    waits = [outcome.delay for outcome in outcomes[:-1] if isinstance(outcome, Released)]
    assert len(waits) == UNKNOWN_HANDLER_PATIENCE
    assert waits == sorted(waits)
    assert waits[-1] == 60.0
    audited = [n for n, one in enumerate(outcomes, 1) if isinstance(one, Released) and one.audited]
    assert audited == [1, 2, 4, 8, 16]
    last = outcomes[-1]
    assert isinstance(last, Parked)
    assert last.failure.code == last.reason == "HANDLER_NOT_FOUND"
    assert "given back 20 times" in last.failure.message


def test_a_lost_worker_leaves_an_error_that_counts() -> None:
    failure = worker_lost(2)
    assert failure.code == "WORKER_LOST"
    assert "crash 2 of 3" in failure.message


def test_a_result_is_json_or_refused() -> None:
    assert as_result({"a": 1}, payload.encode) == Succeeded('{"a":1}')
    assert as_result(None, payload.encode) == Succeeded(None)
    assert as_result(0, payload.encode) == Succeeded("0")
    with pytest.raises(PayloadError, match="result"):
        as_result(object(), payload.encode)
