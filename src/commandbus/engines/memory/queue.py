"""`PriorityDelayQueue`: the two heaps as a thread-safe queue of anything, usable on its own."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

import msgspec

from commandbus.domain.moment import as_seconds
from commandbus.domain.priority import LABELS, Priority, as_priority
from commandbus.engines.memory.heaps import TwoHeaps
from commandbus.errors import ConfigurationError, InvalidOperationError, QueueFull

T = TypeVar("T")
logger = logging.getLogger("commandbus.queue")


class QueueItem(msgspec.Struct, Generic[T], frozen=True):
    """An item in a queue, and how it was enqueued. Times are seconds of the queue's clock."""

    item: T
    priority_label: str | None
    """The label that was given; None where a number was."""
    priority_value: int
    enqueued_at: float
    ready_at: float
    seq: int


class PriorityDelayQueue(Generic[T]):
    """A queue with priorities and delays for threads of one process.

    Lower priority values come first, equal ones in order of enqueueing. A blocked consumer sleeps
    until exactly the moment when the next delayed item is due, or until something is enqueued; it
    never polls. Delays use the monotonic clock.
    """

    def __init__(
        self,
        *,
        priorities: Mapping[str, int] = LABELS,
        max_in_memory: int | None = None,
        warn_depth: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        for name, bound in (("max_in_memory", max_in_memory), ("warn_depth", warn_depth)):
            if bound is not None and bound < 1:
                raise ConfigurationError(f"{name} must be at least 1, not {bound}.")
        self._heaps: TwoHeaps[QueueItem[T]] = TwoHeaps()
        self._ready_heap = self._heaps.ready
        self._scheduled_heap = self._heaps.scheduled
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._clock = clock
        self._seq = 0
        self._shutdown = False
        self._deep = False
        self._priorities = dict(priorities)
        self._max_in_memory = max_in_memory
        self._warn_depth = warn_depth

    def enqueue(self, item: T, *, priority: Priority = "normal", delay_seconds: float = 0) -> int:
        """Add an item, to be given out after `delay_seconds`; returns its sequence number.

        Raises ValueError for an unknown label or a negative delay, QueueFull at capacity, and
        InvalidOperationError after shutdown.
        """
        value = as_priority(priority, self._priorities)
        delay = as_seconds(delay_seconds, "delay_seconds")
        with self._lock:
            if self._shutdown:
                raise InvalidOperationError("The queue is shut down and accepts nothing more.")
            depth = len(self._heaps)
            if self._max_in_memory is not None and depth >= self._max_in_memory:
                raise QueueFull(
                    f"The queue holds {depth} items, its maximum (max_in_memory="
                    f"{self._max_in_memory}); try again when consumers have caught up."
                )
            now = self._clock()
            self._seq += 1
            label = priority if isinstance(priority, str) else None
            entry = QueueItem(item, label, value, now, now + delay, self._seq)
            self._heaps.push(value, self._seq, entry, entry.ready_at, now)
            self._watch_depth()
            self._changed.notify()
            return self._seq

    def dequeue(self, block: bool = True, timeout: float | None = None) -> T | None:
        """The next ready item, or None: at once when not blocking, after `timeout` seconds, or when
        the queue is shut down and everything in it, delayed items included, has been given out."""
        entry = self.take(block, timeout)
        return None if entry is None else entry.item

    def take(
        self,
        block: bool = True,
        timeout: float | None = None,
        *,
        stopping: threading.Event | None = None,
    ) -> QueueItem[T] | None:
        """As `dequeue`, with the item's priority, times and sequence number. Also returns None when
        nothing is ready and `stopping` is set; call `wake` after setting it."""
        with self._lock:
            deadline = None if timeout is None else self._clock() + timeout
            while True:
                now = self._clock()
                self._heaps.promote(now)
                if self._ready_heap:
                    entry = self._heaps.pop()
                    self._watch_depth()
                    # The consumer that was notified of this item may take another one.
                    if len(self._heaps):
                        self._changed.notify()
                    elif self._shutdown:
                        self._changed.notify_all()
                    return entry
                if not block or (stopping is not None and stopping.is_set()):
                    return None
                if self._shutdown and not self._scheduled_heap:
                    return None
                wake_at = self._heaps.next_due()
                if deadline is not None:
                    if now >= deadline:
                        return None
                    wake_at = deadline if wake_at is None else min(wake_at, deadline)
                self._changed.wait(None if wake_at is None else wake_at - now)

    def wake(self) -> None:
        """Let blocked consumers look whether they are to stop."""
        with self._lock:
            self._changed.notify_all()

    @property
    def is_drained(self) -> bool:
        """Whether the queue is shut down and empty."""
        with self._lock:
            return self._shutdown and not len(self._heaps)

    def snapshot(self) -> dict[str, int | bool]:
        """How many items are here, ready and scheduled, and whether the queue is shut down."""
        with self._lock:
            self._heaps.promote(self._clock())
            return {
                "depth": len(self._heaps),
                "ready": len(self._ready_heap),
                "scheduled": len(self._scheduled_heap),
                "shutdown": self._shutdown,
            }

    def purge(self) -> int:
        """Forget everything; returns how many items were dropped. For tests."""
        with self._lock:
            dropped = self._heaps.clear()
            self._watch_depth()
            if self._shutdown:
                self._changed.notify_all()
            return dropped

    def shutdown(self) -> None:
        """Accept nothing more; consumers drain what is here and then get None."""
        with self._lock:
            self._shutdown = True
            self._changed.notify_all()

    def __len__(self) -> int:
        with self._lock:
            return len(self._heaps)

    def _watch_depth(self) -> None:
        """Log when the depth rises over `warn_depth`: once, until it has fallen below again."""
        if self._warn_depth is None:
            return
        deep = len(self._heaps) >= self._warn_depth
        if deep and not self._deep:
            logger.warning("queue depth reached %d (warn_depth=%d)", len(self._heaps), self._warn_depth)
        self._deep = deep
