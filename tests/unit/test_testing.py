"""The public helpers for tests do what they promise."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from commandbus.errors import InvalidArgumentError
from commandbus.testing import FakeClock, eventually


def test_a_fake_clock_stands_still_until_it_is_moved() -> None:
    clock = FakeClock()
    assert clock() == clock()
    before = clock()
    clock.advance(1.5)
    assert clock() - before == 1_500_000
    clock.advance(timedelta(minutes=1))
    assert clock() - before == 61_500_000


def test_a_fake_clock_begins_at_the_given_moment() -> None:
    start = datetime(2026, 2, 28, 23, 59, tzinfo=UTC)
    clock = FakeClock(start)
    assert clock.now == start
    assert clock.advance(60) == datetime(2026, 3, 1, tzinfo=UTC)


def test_a_fake_clock_never_goes_back() -> None:
    clock = FakeClock()
    before = clock()
    with pytest.raises(InvalidArgumentError, match="duration"):
        clock.advance(-1)
    with pytest.raises(InvalidArgumentError, match="time zone"):
        FakeClock(datetime(2030, 1, 1))
    assert clock() == before


def test_eventually_returns_the_first_true_value() -> None:
    values = iter([0, "", None, "found", "later"])
    assert eventually(lambda: next(values)) == "found"


def test_eventually_fails_with_what_it_saw_last() -> None:
    with pytest.raises(AssertionError, match=r"was still \[\] after 0.01 s"):
        eventually(list, timeout=0.01)
