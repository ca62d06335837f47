"""Retry policies: schedules, bounds of the jitter, and what is refused."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commandbus import RetryPolicy
from commandbus.domain.retry import header_of, policy_of
from commandbus.errors import CommandBusError, ConfigurationError
from commandbus.retry import exponential, fixed, linear, none


@pytest.mark.parametrize(
    ("schedule", "waits"),
    [
        ([10, 60, 300], [10, 60, 300, 300, 300]),
        ([1.5], [1.5, 1.5]),
        ([], [0, 0]),
        ([timedelta(minutes=1), 90], [60, 90, 90]),
        (none(), [0, 0]),
        (fixed(7), [7, 7]),
        (linear(2, cap=5), [2, 4, 5, 5]),
        (exponential(1, factor=3, cap=20), [1, 3, 9, 20]),
        (exponential(timedelta(seconds=2)), [2, 4, 8]),
        (lambda attempt: attempt * 0.5, [0.5, 1.0]),
    ],
)
def test_a_schedule_says_how_long_to_wait_after_each_attempt(schedule: Any, waits: list[float]) -> None:
    policy = RetryPolicy(backoff_schedule=schedule)
    assert [policy.get_backoff(attempt) for attempt in range(1, len(waits) + 1)] == waits


def test_exponential_backoff_never_overflows() -> None:
    assert exponential(1.0, factor=10, cap=60)(10_000) == 60


def test_an_attempt_before_the_first_waits_like_the_first() -> None:
    assert RetryPolicy(backoff_schedule=[3, 9]).get_backoff(0) == 3


@given(st.floats(0, 1), st.floats(0, 1_000), st.integers(1, 5))
def test_jitter_only_shortens_a_wait_by_its_share(jitter: float, wait: float, attempt: int) -> None:
    delay = RetryPolicy(backoff_schedule=[wait], jitter=jitter).delay(attempt)
    assert wait * (1 - jitter) - 1e-9 <= delay <= wait


def test_jitter_is_really_drawn() -> None:
    policy = RetryPolicy(backoff_schedule=[100], jitter=0.5)
    assert len({policy.delay(1) for _ in range(20)}) > 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_attempts": 0},
        {"max_attempts": 40_000},
        {"max_attempts": True},
        {"max_attempts": 1.5},
        {"jitter": -0.1},
        {"jitter": 1.1},
        {"jitter": float("nan")},
        {"backoff_schedule": "10"},
        {"backoff_schedule": 10},
        {"backoff_schedule": [-1]},
        {"backoff_schedule": [float("inf")]},
        {"backoff_schedule": ["10"]},
    ],
)
def test_a_wrong_policy_is_refused_where_it_is_made(wrong: dict[str, Any]) -> None:
    with pytest.raises(CommandBusError, match=next(iter(wrong))):
        RetryPolicy(**wrong)


def test_a_shrinking_exponential_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="factor must be at least 1"):
        exponential(1, factor=0.5)


def test_policies_with_the_same_numbers_are_equal() -> None:
    assert RetryPolicy(2, (1.0,)) == RetryPolicy(2, (1.0,))
    assert RetryPolicy(2) != RetryPolicy(3)


@pytest.mark.parametrize(
    ("policy", "carried"),
    [
        (RetryPolicy(1, [1, 5]), [1]),
        (RetryPolicy(2, [1, 5]), [1]),
        (RetryPolicy(3, [1, 5]), [1, 5]),
        (RetryPolicy(9, [1, 5]), [1, 5]),
        (RetryPolicy(4, [2, 2]), [2]),
        (RetryPolicy(100, lambda attempt: float(attempt)), [float(n) for n in range(1, 51)]),
    ],
)
def test_a_command_carries_the_waits_that_can_come(policy: RetryPolicy, carried: list[float]) -> None:
    assert header_of(policy) == {"backoff_schedule": carried}


def test_a_command_carries_jitter_and_window() -> None:
    policy = RetryPolicy(2, [1], jitter=0.5, window=0.001)
    assert header_of(policy) == {"backoff_schedule": [1], "jitter": 0.5, "window": 0.001}
    with pytest.raises(CommandBusError, match="window"):
        RetryPolicy(window=0)


def test_a_policy_that_is_kept_is_the_same_again() -> None:
    policy = RetryPolicy(max_attempts=7, backoff_schedule=[1.0, 2.0], jitter=0.5, window=60.0)
    assert policy_of(header_of(policy) | {"max_attempts": 7}) == policy
