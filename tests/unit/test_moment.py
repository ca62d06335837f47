"""Moments and durations at the door: no guesses about zones and units."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commandbus.domain import moment
from commandbus.errors import InvalidArgumentError

aware = st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=45))]))


@given(aware)
def test_an_aware_datetime_comes_back_as_the_same_moment(wanted: datetime) -> None:
    assert moment.as_datetime(moment.as_microseconds(wanted, "due_at")) == wanted


@given(st.integers(-(10**16), 10**17))
def test_microseconds_come_back_exactly(wanted: int) -> None:
    assert moment.as_microseconds(moment.as_datetime(wanted), "due_at") == wanted


@pytest.mark.parametrize("wrong", [datetime(2030, 1, 1), "2030-01-01", 5, None])
def test_a_moment_without_a_zone_is_refused(wrong: object) -> None:
    with pytest.raises(InvalidArgumentError, match="due_at"):
        moment.as_microseconds(wrong, "due_at")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given_", "seconds"), [(0, 0.0), (1.5, 1.5), (timedelta(minutes=2), 120.0), (3, 3.0)]
)
def test_seconds_and_timedeltas_are_durations(given_: object, seconds: float) -> None:
    found = moment.as_seconds(given_, "delay")  # type: ignore[arg-type]
    assert found == seconds
    assert type(found) is float


@pytest.mark.parametrize(
    "wrong",
    [
        -1,
        -0.001,
        math.nan,
        math.inf,
        -math.inf,
        10**400,
        10**12,
        timedelta(seconds=-1),
        True,
        "5",
        None,
    ],
)
def test_an_invalid_duration_is_refused_by_name(wrong: object) -> None:
    with pytest.raises(InvalidArgumentError, match=r"^delay must be"):
        moment.as_seconds(wrong, "delay")  # type: ignore[arg-type]


def test_a_century_of_leap_years_is_the_longest_duration() -> None:
    assert moment.as_seconds(3_162_240_000, "delay") == 3_162_240_000
    with pytest.raises(InvalidArgumentError, match="delay"):
        moment.as_seconds(3_162_240_001, "delay")


def test_a_minimum_is_part_of_the_message() -> None:
    with pytest.raises(InvalidArgumentError, match=r"between 0\.1 and"):
        moment.as_seconds(0.05, "timeout", minimum=0.1)


def test_the_system_clock_counts_microseconds_since_1970() -> None:
    assert abs(moment.system_clock() - datetime.now(UTC).timestamp() * 1_000_000) < 60_000_000


def test_optional_moments_stay_optional() -> None:
    assert moment.as_optional_datetime(None) is None
    assert moment.as_optional_datetime(0) == datetime(1970, 1, 1, tzinfo=UTC)
