"""The health of a worker or process router: a state, and the reasons for it.

Only the machinery counts: claims, settles, renewals, threads, connections. What handlers raise is the
business of their commands.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Any

import msgspec

from commandbus.domain.shown import shows_options
from commandbus.errors import NotOpen, PoolExhausted

DEGRADED_FAILURES = 10
DEGRADED_SECONDS = 30.0
CRITICAL_STUCK_THREADS = 3
CRITICAL_POOL_EXHAUSTIONS = 5


class HealthState(StrEnum):
    """How a worker is: DEGRADED works on, CRITICAL needs a restart."""

    HEALTHY = "HEALTHY"
    DEGRADED = "DEGRADED"
    CRITICAL = "CRITICAL"


class Cause(StrEnum):
    """What makes a worker CRITICAL, and may be cured by a restart."""

    THREADS = "threads"
    CONNECTIONS = "connections"
    SILENCE = "silence"


class HealthReport(msgspec.Struct, frozen=True):
    """A moment of a worker's health; `reasons` says in words why it is not HEALTHY."""

    state: HealthState
    reasons: tuple[str, ...]
    consecutive_failures: int
    stuck_threads: int
    pool_exhaustions: int
    loop_stalls: int
    last_error: str | None
    last_stall: str | None
    """Where the event loop was when it was last found blocked."""
    causes: tuple[Cause, ...] = ()
    """Why it is CRITICAL, one code each; empty if a restart would not help."""


def unimpaired() -> None:
    """Nothing impairs the worker."""


class HealthStatus:
    """Counts what goes wrong with the machinery of a worker or router and judges it. Safe to use from
    any thread.

    Claims (or settles) that fail 10 times in a row or for 30 s, expired leases that cannot be taken
    back, a stuck thread, and an `impairment` that is there now make it DEGRADED; 3 stuck threads, 5
    pool exhaustions in a row, a claim or settle without any answer for `silence_max` seconds, or claims
    (or settles) that fail for so long make it CRITICAL. A success ends a row, and a stuck thread that
    comes back is not stuck any more, so it recovers. Threads that a restart has left behind still run,
    and keep it DEGRADED. A worker is no better than the process routers that run over its bus.
    """

    @shows_options()
    def __init__(
        self,
        silence_max: float = 60.0,
        impairment: Callable[[], str | None] = unimpaired,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._silence_max = silence_max
        self.impairment = impairment
        """What keeps the worker from working as it should now, without failing, in words."""
        self.routers: dict[str, HealthStatus] = {}
        """Those that run over the same bus, by name."""
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._failing: dict[str, tuple[int, float]] = {}
        """How often claims, or settles, have failed in a row, and since when."""
        self._stuck_leases: tuple[str, ...] = ()
        self._stuck = 0
        self._left_behind = 0
        """Of the threads that were stuck before a restart, those that are not back."""
        self._exhaustions = 0
        self._starved = 0
        self._asked_at: dict[str, float] = {}
        self._stalls = 0
        self._last_stall: str | None = None
        self._last_error: str | None = None

    def record_success(self, what: str = "claim") -> None:
        """A claim or settle went through."""
        if self._failing or self._exhaustions:
            with self._lock:
                self._failing.pop(what, None)
                self._exhaustions = 0

    def record_failure(self, error: BaseException | str, what: str = "claim") -> None:
        """A claim or settle failed."""
        with self._lock:
            count, since = self._failing.get(what, (0, self._monotonic()))
            self._failing[what] = count + 1, since
            self._last_error = (
                f"{type(error).__name__}: {error}" if not isinstance(error, str) else error
            )

    def record_error(self, error: BaseException, what: str = "claim") -> None:
        """A claim or settle failed, for whatever reason."""
        if isinstance(error, PoolExhausted):
            self.record_pool_exhaustion(error, what)
        else:
            self.record_failure(error, what)

    @contextmanager
    def watched(self, what: str) -> Iterator[None]:
        """The store is asked for something within. A closed bus is no failure."""
        self.asked(what)
        try:
            yield
            self.record_success(what)
        except NotOpen:
            raise
        except Exception as error:
            self.record_error(error, what)
            raise
        finally:
            self.answered(what)

    def record_pool_exhaustion(self, error: BaseException | str, what: str = "claim") -> None:
        """No connection was free in time."""
        self.record_failure(error, what)
        with self._lock:
            self._exhaustions += 1

    def record_starvation(self, error: BaseException | str) -> None:
        """A handler got no connection in time. Only one that gets one ends the row, since claims and
        settles have connections of their own."""
        with self._lock:
            self._starved += 1
            self._last_error = str(error)

    def record_connection(self) -> None:
        """A handler got its connection."""
        if self._starved:
            with self._lock:
                self._starved = 0

    def record_stuck_leases(self, stuck: tuple[str, ...]) -> None:
        """Expired leases that the store cannot take back, in words."""
        self._stuck_leases = stuck

    def asked(self, what: str) -> None:
        """A claim or settle is on its way."""
        self._asked_at[what] = self._monotonic()

    def answered(self, what: str) -> None:
        """What was asked of the store has come back."""
        self._asked_at.pop(what, None)

    def record_stuck_thread(self) -> None:
        """A thread was given up; called once for each."""
        with self._lock:
            self._stuck += 1

    def record_thread_back(self) -> None:
        """A thread that had been given up returned."""
        with self._lock:
            if self._left_behind:
                self._left_behind -= 1
            else:
                self._stuck = max(0, self._stuck - 1)

    def record_loop_stall(self, frame: str) -> None:
        """The event loop was blocked for longer than it should, by what runs at `frame`."""
        with self._lock:
            self._stalls += 1
            self._last_stall = frame

    def reset(self) -> None:
        """A new start: after a restart the old threads and connections are no longer ours. Stuck
        threads live on in the process."""
        with self._lock:
            self._left_behind += self._stuck
            self._stuck = self._exhaustions = self._starved = 0
            self._failing.clear()
            self._asked_at.clear()

    @property
    def state(self) -> HealthState:
        return self.report().state

    @property
    def reasons(self) -> tuple[str, ...]:
        return self.report().reasons

    def report(self) -> HealthReport:
        """The state at this moment, with the reasons for it."""
        impairment = self.impairment()
        routers = [(name, health.report()) for name, health in list(self.routers.items())]
        with self._lock:
            critical: list[str] = []
            causes: list[Cause] = []
            degraded: list[str] = []
            given_up = self._stuck + self._left_behind
            if self._stuck >= CRITICAL_STUCK_THREADS:
                critical.append(f"{given_up} threads are stuck in handlers")
                causes.append(Cause.THREADS)
            elif given_up:
                threads = "1 thread" if given_up == 1 else f"{given_up} threads"
                degraded.append(f"{threads} given up after a timeout may still run a handler")
            exhaustions = max(self._exhaustions, self._starved)
            if exhaustions >= CRITICAL_POOL_EXHAUSTIONS:
                critical.append(f"no connection was free {exhaustions} times in a row")
                causes.append(Cause.CONNECTIONS)
            now = self._monotonic()
            for what, moment in list(self._asked_at.items()):
                if now - moment >= self._silence_max:
                    critical.append(f"a {what} has had no answer for {now - moment:.0f} s")
                    causes.append(Cause.SILENCE)
            for what, (count, since) in self._failing.items():
                reason = (
                    f"{count} {what}s in a row failed within {now - since:.0f} s, "
                    f"the last: {self._last_error}"
                )
                if now - since >= self._silence_max:
                    critical.append(reason)
                elif count >= DEGRADED_FAILURES or now - since >= DEGRADED_SECONDS:
                    degraded.append(reason)
            degraded += self._stuck_leases
            if impairment is not None:
                degraded.append(impairment)
            for name, router in routers:
                reasons = critical if router.state is HealthState.CRITICAL else degraded
                reasons += [f"{name}: {reason}" for reason in router.reasons if reason != impairment]
                causes += router.causes
            state = HealthState.HEALTHY
            if critical or degraded:
                state = HealthState.CRITICAL if critical else HealthState.DEGRADED
            return HealthReport(
                state,
                tuple(critical + degraded),
                max((count for count, _ in self._failing.values()), default=0),
                given_up,
                exhaustions,
                self._stalls,
                self._last_error,
                self._last_stall,
                tuple(causes),
            )

    def to_dict(self) -> dict[str, Any]:
        """The report as plain values, for JSON."""
        return msgspec.to_builtins(self.report())  # type: ignore[no-any-return]
