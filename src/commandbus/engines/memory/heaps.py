"""Two heaps: what may run, by priority, and what may not yet, by time.

Kept apart, so that a future command of high priority never delays a ready one, and a million delayed
commands cost nothing when ready ones are taken.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Generic, TypeVar

T = TypeVar("T")


class TwoHeaps(Generic[T]):
    """Not thread-safe; its owner holds a lock. Times are any numbers that grow."""

    __slots__ = ("ready", "scheduled")

    def __init__(self) -> None:
        self.ready: list[tuple[int, int, T]] = []
        self.scheduled: list[tuple[float, int, int, T]] = []

    def push(self, priority: int, seq: int, item: T, ready_at: float, now: float) -> bool:
        """Add an item; returns whether it is ready."""
        if ready_at <= now:
            heappush(self.ready, (priority, seq, item))
            return True
        heappush(self.scheduled, (ready_at, priority, seq, item))
        return False

    def promote(self, now: float) -> None:
        """Move everything that has become due to the ready heap."""
        while self.scheduled and self.scheduled[0][0] <= now:
            _, priority, seq, item = heappop(self.scheduled)
            heappush(self.ready, (priority, seq, item))

    def pop(self) -> T:
        """The first ready item: lowest priority number, then lowest sequence."""
        return heappop(self.ready)[2]

    def next_due(self) -> float | None:
        return self.scheduled[0][0] if self.scheduled else None

    def clear(self) -> int:
        count = len(self)
        self.ready.clear()
        self.scheduled.clear()
        return count

    def __len__(self) -> int:
        return len(self.ready) + len(self.scheduled)
