"""When to try again: schedules of seconds, jitter, and a bound on attempts."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from commandbus.domain.moment import Duration, as_seconds
from commandbus.errors import ConfigurationError, InvalidArgumentError

RETRY_HEADER = "commandbus-retry"
"""Where a command carries a policy of its own: what is rarely used costs other commands nothing."""
STEPS_MAX = 50
"""So many waits of a policy are carried; the last one repeats."""


class Backoff(Protocol):
    """Seconds to wait before the next attempt, after attempt number `attempt` (from 1) failed."""

    def __call__(self, attempt: int) -> float: ...


@dataclass(frozen=True, slots=True)
class _Steps:
    steps: tuple[float, ...]

    def __call__(self, attempt: int) -> float:
        return self.steps[min(attempt, len(self.steps)) - 1] if self.steps else 0.0


@dataclass(frozen=True, slots=True)
class _Growing:
    base: float
    factor: float
    step: float
    cap: float

    def __call__(self, attempt: int) -> float:
        try:
            grown = self.base * self.factor ** (attempt - 1) + self.step * (attempt - 1)
        except OverflowError:
            return self.cap
        return min(self.cap, grown)


def none() -> Backoff:
    """Again at once."""
    return _Steps((0.0,))


def fixed(delay: Duration) -> Backoff:
    """The same wait before every attempt."""
    return _Steps((as_seconds(delay, "delay"),))


def linear(step: Duration, *, cap: Duration = 3600.0) -> Backoff:
    """step, 2 × step, 3 × step …, never more than `cap`."""
    seconds = as_seconds(step, "step")
    return _Growing(seconds, 1.0, seconds, as_seconds(cap, "cap"))


def exponential(base: Duration = 1.0, *, factor: float = 2.0, cap: Duration = 3600.0) -> Backoff:
    """base, base × factor, base × factor² …, never more than `cap`."""
    if not factor >= 1:
        raise ConfigurationError(f"factor must be at least 1, not {factor!r}.")
    return _Growing(as_seconds(base, "base"), float(factor), 0.0, as_seconds(cap, "cap"))


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how fast a failed command is tried again.

    `backoff_schedule` is a list of seconds (the last one repeats) or one of `none()`, `fixed()`,
    `linear()`, `exponential()`. `jitter` is the share of each wait that is drawn at random: 0.5
    means between half the wait and the whole of it. No retry begins later than `window` seconds after
    the command was first due: an operator is asked instead.
    """

    max_attempts: int = 3
    backoff_schedule: Sequence[Duration] | Backoff = (10.0, 60.0, 300.0)
    jitter: float = 0.0
    window: Duration | None = None
    _backoff: Backoff = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_max_attempts(self.max_attempts)
        if self.window is not None:
            as_seconds(self.window, "window", minimum=0.001)
        if not 0 <= self.jitter <= 1:
            raise ConfigurationError(f"jitter must be between 0 and 1, not {self.jitter!r}.")
        schedule = self.backoff_schedule
        backoff: Backoff
        if callable(schedule):
            backoff = schedule
        elif isinstance(schedule, str | bytes) or not isinstance(schedule, Sequence):
            raise ConfigurationError(
                f"backoff_schedule must be a list of seconds or a backoff, not {schedule!r}."
            )
        else:
            backoff = _Steps(tuple(as_seconds(step, "backoff_schedule") for step in schedule))
        object.__setattr__(self, "_backoff", backoff)

    def get_backoff(self, attempt: int) -> float:
        """Seconds to wait after attempt number `attempt` failed, without jitter."""
        return max(0.0, self._backoff(max(1, attempt)))

    def delay(self, attempt: int) -> float:
        """Seconds to wait after attempt number `attempt` failed, jitter included."""
        backoff = self.get_backoff(attempt)
        return backoff * (1 - self.jitter * random.random()) if self.jitter else backoff

    @property
    def window_seconds(self) -> float | None:
        return None if self.window is None else as_seconds(self.window, "window")


def check_max_attempts(value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 32_767:
        raise ConfigurationError(f"max_attempts must be a whole number from 1 to 32767, not {value!r}.")
    return value


def header_of(policy: RetryPolicy) -> dict[str, Any]:
    """A policy as a command carries it: its waits, whatever they were computed by."""
    if not isinstance(policy, RetryPolicy):
        raise InvalidArgumentError(f"retry must be a RetryPolicy, not {policy!r}.")
    waits = [policy.get_backoff(n) for n in range(1, max(2, min(policy.max_attempts, STEPS_MAX + 1)))]
    while len(waits) > 1 and waits[-1] == waits[-2]:
        waits.pop()
    carried: dict[str, Any] = {"backoff_schedule": waits}
    if policy.jitter:
        carried["jitter"] = policy.jitter
    if policy.window is not None:
        carried["window"] = policy.window_seconds
    return carried


def policy_of(carried: Any) -> RetryPolicy:
    """The policy that a command carries, written by this or any other program; raises
    ConfigurationError when it is none."""
    if not isinstance(carried, dict):
        raise ConfigurationError(f"{RETRY_HEADER} must be an object, not {carried!r}.")
    try:
        return RetryPolicy(**carried)
    except (TypeError, InvalidArgumentError) as error:
        raise ConfigurationError(f"{RETRY_HEADER} is not valid: {error}") from None
