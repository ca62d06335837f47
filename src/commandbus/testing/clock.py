"""A clock that stands still until a test moves it."""

from __future__ import annotations

import threading
from datetime import UTC, datetime

from commandbus.domain.moment import SECOND, Duration, as_datetime, as_microseconds, as_seconds

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


class FakeClock:
    """Says what a test wants it to say: `CommandBus("memory://", clock=FakeClock())`.

    Called, it returns microseconds since 1970 UTC, which is what engines ask for. It never moves by
    itself and never goes back. Safe to share between threads.
    """

    def __init__(self, start: datetime = NOON) -> None:
        self._now = as_microseconds(start, "start")
        self._lock = threading.Lock()

    def __call__(self) -> int:
        with self._lock:
            return self._now

    @property
    def now(self) -> datetime:
        """The present moment as an aware datetime."""
        return as_datetime(self())

    def advance(self, duration: Duration) -> datetime:
        """Let time pass; returns the new moment. Raises InvalidArgumentError for a negative one."""
        passed = round(as_seconds(duration, "duration") * SECOND)
        with self._lock:
            self._now += passed
        return self.now
