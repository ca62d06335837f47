"""The rules of a circuit breaker, without anything around them."""

from __future__ import annotations

from commandbus.domain.breaker import BreakerState, CircuitBreaker
from commandbus.domain.breaker_board import BreakerBoard


def test_a_success_resets_the_count() -> None:
    breaker = CircuitBreaker("bank", threshold=3, cooldown=10)
    for _ in range(2):
        breaker.failed(0.0)
    breaker.succeeded(0.0)
    for _ in range(2):
        breaker.failed(0.0)
    assert breaker.state is BreakerState.CLOSED
    breaker.failed(0.0)
    assert breaker.state is BreakerState.OPEN


def test_no_more_than_the_probes_are_let_through_at_once() -> None:
    breaker = CircuitBreaker("bank", threshold=1, cooldown=10, probes=2)
    breaker.failed(0.0)
    assert breaker.allow(5.0) > 0
    assert [breaker.allow(11.0) == 0 for _ in range(4)] == [True, True, False, False]
    assert not breaker.succeeded(11.5)
    assert breaker.state is BreakerState.HALF_OPEN
    assert breaker.succeeded(11.5)
    assert breaker.state is BreakerState.CLOSED
    assert breaker.allow(12.0) == 0


def test_a_failed_probe_opens_it_again() -> None:
    breaker = CircuitBreaker("bank", threshold=5, cooldown=10, probes=3)
    breaker.open(10, 0.0)
    assert breaker.allow(11.0) == 0
    breaker.failed(11.5)
    assert breaker.state is BreakerState.OPEN
    assert breaker.allow(12.0) > 0


def test_a_probe_that_does_not_report_blocks_it_for_a_minute() -> None:
    breaker = CircuitBreaker("bank", threshold=1, cooldown=10, probes=1)
    breaker.failed(0.0)
    assert breaker.allow(11.0) == 0
    assert breaker.allow(11.0 + 59.9) > 0
    assert breaker.allow(11.0 + 60) == 0


def test_a_probe_is_let_through_at_the_very_end_of_the_cooldown() -> None:
    breaker = CircuitBreaker("bank", threshold=1, cooldown=10)
    breaker.failed(0.0)
    assert breaker.allow(10.0) == 0
    assert breaker.state is BreakerState.HALF_OPEN


def test_what_is_left_of_the_last_moments_is_exact() -> None:
    breaker = CircuitBreaker("bank")
    breaker.open(10, 0.0)
    assert [breaker.remaining(now) for now in (9.5, 11.0)] == [0.5, 0.0]


def test_the_fleet_makes_no_breaker_open_for_a_shorter_time() -> None:
    board = BreakerBoard(lambda: None, lambda: 0.0)
    rule = CircuitBreaker("bank", threshold=1, cooldown=10)
    board.allow(rule)
    board.follow("bank", 1, BreakerState.OPEN, 10.0)
    board.follow("bank", 2, BreakerState.OPEN, 5.0)
    assert board.allow(rule) == 10.0
    board.follow("bank", 3, BreakerState.OPEN, 15.0)
    assert board.allow(rule) == 15.0
