"""The breakers of a process, safe to use from any thread, and what the fleet has to learn."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from math import inf

import msgspec

from commandbus.domain.breaker import BreakerState, CircuitBreaker
from commandbus.errors import BusinessRuleException, RetryAfter, Snooze

ACTIVE_SECONDS = 5.0
"""So long after its last call a breaker counts as in use, and the fleet's view of it is followed."""


class Change(msgspec.Struct, frozen=True):
    """A breaker of this process changed, and the fleet does not know yet."""

    target: str
    state: BreakerState
    seconds: float
    failures: int


class BreakerBoard:
    """`tell` is called when the fleet has to learn something; from any thread, not blocking."""

    def __init__(
        self, tell: Callable[[], object], monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._tell = tell
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._breakers: dict[str, CircuitBreaker] = {}
        self._used_at: dict[str, float] = {}
        self._seen: dict[str, int] = {}
        self._changes: dict[str, Change] = {}

    def allow(self, rule: CircuitBreaker) -> float:
        """0 when a call to the rule's target may be made, else the seconds to wait."""
        with self._lock:
            breaker = self._breakers.get(rule.target)
            if breaker is None:
                # The process has its own copy, so that one rule can serve several buses.
                breaker = self._breakers[rule.target] = CircuitBreaker(
                    rule.target,
                    threshold=rule.threshold,
                    cooldown=rule.cooldown,
                    probes=rule.probes,
                )
            now = self._monotonic()
            asleep = self._used_at.get(rule.target, -inf) < now - ACTIVE_SECONDS
            self._used_at[rule.target] = now
            seconds = breaker.allow(now)
        if asleep:
            self._tell()
        return seconds

    def ended(self, target: str, error: BaseException | None) -> None:
        """A call that was allowed ended. A refusal of the business is an answer, too; any other
        exception is a failure of the target."""
        if error is None or isinstance(error, BusinessRuleException | Snooze):
            self.succeeded(target)
        else:
            self.failed(target, error.seconds if isinstance(error, RetryAfter) else None)

    def succeeded(self, target: str) -> None:
        with self._lock:
            breaker = self._breakers[target]
            if breaker.succeeded(self._monotonic()):
                self._changes[target] = Change(target, breaker.state, 0.0, 0)
                self._tell()

    def failed(self, target: str, retry_after: float | None = None) -> None:
        """`retry_after`: the target itself said when to come back."""
        with self._lock:
            now, breaker = self._monotonic(), self._breakers[target]
            left = breaker.remaining(now)
            changed = breaker.failed(now)
            # A late answer does not cut short what was opened for longer meanwhile.
            if retry_after is not None and retry_after > left:
                breaker.open(retry_after, now)
                changed = True
            if changed:
                seconds = breaker.remaining(now)
                self._changes[target] = Change(target, breaker.state, seconds, breaker.failures)
                self._tell()

    def changes(self) -> list[Change]:
        """What the fleet has to learn."""
        with self._lock:
            return list(self._changes.values())

    def shared(self, changes: list[Change]) -> None:
        """The fleet knows of these; what changed again meanwhile it does not."""
        with self._lock:
            for change in changes:
                if self._changes.get(change.target) is change:
                    del self._changes[change.target]

    def seen(self, target: str) -> int:
        """The version of the fleet's view that was followed last."""
        with self._lock:
            return self._seen.get(target, 0)

    def in_use(self) -> list[str]:
        """Targets that were called recently or are not closed: those whose state must be followed."""
        with self._lock:
            recent = self._monotonic() - ACTIVE_SECONDS
            return [
                target
                for target, breaker in self._breakers.items()
                if self._used_at[target] >= recent or breaker.state is not BreakerState.CLOSED
            ]

    def follow(self, target: str, version: int, state: BreakerState, seconds: float) -> None:
        """The fleet's view: taken over when it is newer than what was seen before."""
        with self._lock:
            if version <= self._seen.get(target, 0) or target not in self._breakers:
                return
            self._seen[target] = version
            breaker, now = self._breakers[target], self._monotonic()
            if state is BreakerState.CLOSED:
                breaker.close()
            elif breaker.state is BreakerState.CLOSED or breaker.remaining(now) < seconds:
                breaker.open(seconds, now)
