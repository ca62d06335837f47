"""How a worker is doing, in a word and in words.

Only the machinery counts: claims, settles, renewals, threads, connections. What handlers raise is the
business of their commands.
"""

from __future__ import annotations

import threading
from enum import StrEnum
from typing import Any

import msgspec

DEGRADED_FAILURES = 10
CRITICAL_STUCK_THREADS = 3
CRITICAL_POOL_EXHAUSTIONS = 5


class HealthState(StrEnum):
    HEALTHY = "HEALTHY"
    DEGRADED = "DEGRADED"
    CRITICAL = "CRITICAL"


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


class HealthStatus:
    """Counts what goes wrong with a worker's machinery and judges it. Safe to use from any thread.

    10 failures in a row make it DEGRADED; 3 stuck threads or 5 pool exhaustions in a row CRITICAL. A
    success ends a row, and a stuck thread that comes back is not stuck any more, so it recovers.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failures = 0
        self._stuck = 0
        self._exhaustions = 0
        self._stalls = 0
        self._last_stall: str | None = None
        self._last_error: str | None = None

    def record_success(self) -> None:
        """A claim or settle went through."""
        if self._failures or self._exhaustions:
            with self._lock:
                self._failures = self._exhaustions = 0

    def record_failure(self, error: BaseException | str) -> None:
        """A claim, settle or renewal failed."""
        with self._lock:
            self._failures += 1
            self._last_error = (
                f"{type(error).__name__}: {error}" if not isinstance(error, str) else error
            )

    def record_pool_exhaustion(self, error: BaseException | str) -> None:
        """No connection was free in time."""
        self.record_failure(error)
        with self._lock:
            self._exhaustions += 1

    def record_stuck_thread(self) -> None:
        """A thread was given up; told once for each."""
        with self._lock:
            self._stuck += 1

    def record_thread_back(self) -> None:
        """A thread that had been given up returned."""
        with self._lock:
            self._stuck = max(0, self._stuck - 1)

    def record_loop_stall(self, frame: str) -> None:
        """The event loop was blocked for longer than it should, by what runs at `frame`."""
        with self._lock:
            self._stalls += 1
            self._last_stall = frame

    def reset(self) -> None:
        """A new start: after a restart the old threads and connections are no longer ours."""
        with self._lock:
            self._failures = self._stuck = self._exhaustions = 0

    @property
    def state(self) -> HealthState:
        return self.report().state

    @property
    def reasons(self) -> tuple[str, ...]:
        return self.report().reasons

    def report(self) -> HealthReport:
        with self._lock:
            critical: list[str] = []
            degraded: list[str] = []
            if self._stuck >= CRITICAL_STUCK_THREADS:
                critical.append(f"{self._stuck} threads are stuck in handlers")
            if self._exhaustions >= CRITICAL_POOL_EXHAUSTIONS:
                critical.append(f"no connection was free {self._exhaustions} times in a row")
            if self._failures >= DEGRADED_FAILURES:
                degraded.append(f"{self._failures} failures in a row, the last: {self._last_error}")
            state = HealthState.HEALTHY
            if critical or degraded:
                state = HealthState.CRITICAL if critical else HealthState.DEGRADED
            return HealthReport(
                state,
                tuple(critical + degraded),
                self._failures,
                self._stuck,
                self._exhaustions,
                self._stalls,
                self._last_error,
                self._last_stall,
            )

    def to_dict(self) -> dict[str, Any]:
        """The report as plain values, for JSON."""
        return msgspec.to_builtins(self.report())  # type: ignore[no-any-return]
