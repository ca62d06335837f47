"""Circuit breakers: stop calling what does not answer, and find out gently when it does again.

Pure: times are seconds of any clock that only grows. One breaker guards one target (a bank, a mail
server); a process keeps its own, and the fleet shares what they found through the store.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from math import inf

import msgspec

from commandbus.domain.counts import as_count
from commandbus.domain.moment import Duration, as_seconds
from commandbus.domain.names import as_name

COUNT_MAX = 1_000_000
PROBE_SECONDS_MAX = 60.0
"""A probe that has not reported by then is not waited for any more."""


class BreakerState(StrEnum):
    CLOSED = "CLOSED"
    OPEN = "OPEN"
    HALF_OPEN = "HALF_OPEN"


class CircuitBreaker:
    """The rule for one target: open after `threshold` failures in a row, for `cooldown` seconds; then
    up to `probes` calls are let through, and that many successes close it."""

    def __init__(
        self,
        target: str,
        *,
        threshold: int = 5,
        cooldown: Duration = 300.0,
        probes: int = 3,
    ) -> None:
        self.target = as_name(target, "breaker target")
        self.threshold = as_count(threshold, "threshold", highest=COUNT_MAX)
        self.cooldown = as_seconds(cooldown, "cooldown", minimum=0.001)
        self.probes = as_count(probes, "probes", highest=COUNT_MAX)
        self.state = BreakerState.CLOSED
        self.failures = 0
        self._until = -inf
        self._probing: list[float] = []
        self._answered = 0

    def allow(self, now: float) -> float:
        """0 when a call may be made, else the seconds to wait. A call that was allowed is reported
        with `succeeded` or `failed`."""
        if self.state is BreakerState.CLOSED:
            return 0.0
        if self.state is BreakerState.OPEN:
            if now < self._until:
                return self._until - now
            self.state, self._probing, self._answered = BreakerState.HALF_OPEN, [], 0
        self._probing = [began for began in self._probing if now < began + PROBE_SECONDS_MAX]
        if len(self._probing) + self._answered >= self.probes:
            return min(1.0, self.cooldown)
        self._probing.append(now)
        return 0.0

    def succeeded(self, now: float) -> bool:
        """A call went well; returns whether the state changed."""
        self.failures = 0
        if self.state is not BreakerState.HALF_OPEN:
            return False
        self._probing = self._probing[1:]
        self._answered += 1
        if self._answered < self.probes:
            return False
        self.close()
        return True

    def failed(self, now: float) -> bool:
        """A call failed; returns whether the state changed."""
        self.failures += 1
        if self.state is BreakerState.OPEN:
            return False
        if self.state is BreakerState.CLOSED and self.failures < self.threshold:
            return False
        self.open(self.cooldown, now)
        return True

    def open(self, seconds: float, now: float) -> None:
        """Let nothing through for so long."""
        self.state, self._until = BreakerState.OPEN, now + seconds

    def close(self) -> None:
        """Let everything through again, and forget the failures."""
        self.state, self.failures, self._until = BreakerState.CLOSED, 0, -inf

    def remaining(self, now: float) -> float:
        """Seconds until it lets a probe through; 0 unless open."""
        return max(0.0, self._until - now) if self.state is BreakerState.OPEN else 0.0


def denial(target: str) -> str:
    """Why a command was put off that needs a target whose breaker is open."""
    return f"the breaker of {target!r} is open"


class BreakerSnapshot(msgspec.Struct, frozen=True):
    """What the fleet knows about a target."""

    target: str
    state: BreakerState
    failures: int
    open_until: datetime | None
    changed_at: datetime
    changed_by: str
    reason: str | None = None
