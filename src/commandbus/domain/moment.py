"""Moments and durations: microseconds inside, aware datetimes and seconds at the door."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from commandbus.errors import InvalidArgumentError

Clock = Callable[[], int]
"""Says what time it is, in microseconds since 1970 UTC. Engines take one, so tests can bring theirs."""

Duration = float | timedelta
"""Seconds (floats allowed) or a timedelta."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SECOND = 1_000_000
MICROSECOND = timedelta(microseconds=1)
FIRST, LAST = -62_135_596_800_000_000, 253_402_300_799_999_999
"""The moments that a datetime can hold, in microseconds."""
LONGEST = 100 * 366 * 86_400
"""No delay is longer than a century: a larger number is a unit mixed up."""


def system_clock() -> int:
    return time.time_ns() // 1_000


def as_datetime(microseconds: int) -> datetime:
    """The moment; one that no datetime can hold is the first or the last that it can."""
    try:
        return EPOCH + microseconds * MICROSECOND  # quicker than making a timedelta of the number
    except OverflowError:
        return EPOCH + timedelta(microseconds=FIRST if microseconds < 0 else LAST)


def as_optional_datetime(microseconds: int | None) -> datetime | None:
    return None if microseconds is None else as_datetime(microseconds)


def as_microseconds(moment: datetime, name: str) -> int:
    """An aware datetime as microseconds; naive ones are refused, because their zone is a guess."""
    if not isinstance(moment, datetime):
        raise InvalidArgumentError(f"{name} must be a datetime with a time zone, not {moment!r}.")
    if moment.tzinfo is None or moment.utcoffset() is None:
        raise InvalidArgumentError(
            f"{name}={moment.isoformat()} has no time zone; pass an aware datetime such as "
            "datetime.now(timezone.utc)."
        )
    delta = moment - EPOCH
    microseconds = (delta.days * 86_400 + delta.seconds) * SECOND + delta.microseconds
    if not FIRST <= microseconds <= LAST:
        raise InvalidArgumentError(
            f"{name}={moment.isoformat()} is not in the years 1 to 9999 of UTC; it could not be read."
        )
    return microseconds


def as_seconds(duration: Duration, name: str, *, minimum: float = 0.0) -> float:
    """A duration as seconds; NaN, infinity, negatives and text are refused."""
    seconds: object = duration.total_seconds() if isinstance(duration, timedelta) else duration
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise InvalidArgumentError(f"{name} must be seconds or a timedelta, not {duration!r}.")
    if not minimum <= seconds <= LONGEST:
        raise InvalidArgumentError(
            f"{name} must be between {minimum:g} and {LONGEST:,} seconds, not {duration!r}."
        )
    return float(seconds)
