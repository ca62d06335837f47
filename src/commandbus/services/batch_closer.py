"""Completes batches whose commands have all ended."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from uuid import UUID

from commandbus.operations.batches import close_batches, close_open_batches
from commandbus.operations.scope import Scope
from commandbus.store.batching import TOPIC as BATCHES
from commandbus.store.op import Op
from commandbus.store.sessions import quiet
from commandbus.store.wakeup import WakeHub

SWEEP = 300.0
"""Seconds between two searches for open batches."""
AGAIN = 10.0
"""Seconds between two checks of open batches: a worker may die between a settle and its check. With a
session ever more rarely while nothing settles here, since the death of a worker is noticed."""


class BatchCloser:
    """Checks batches soon after a settle has changed their counts: after, because only then all
    settles that were committed before are seen, so the last check sees them all."""

    name = "batches"
    topic = BATCHES

    def __init__(self, domains: Sequence[str]) -> None:
        self._domains = domains
        self._lock = threading.Lock()
        self.touched: set[UUID] = set()
        """Not checked yet."""
        self._again = AGAIN

    def touch(self, batches: Iterable[UUID], hub: WakeHub) -> None:
        """Settles changed the counts of these; look at them soon."""
        with self._lock:
            self.touched.update(batches)
        hub.wake(BATCHES, None, "batch")

    def work(self, scope: Scope) -> Op[float]:
        with self._lock:
            touched, self.touched = self.touched, set()
        if touched:
            yield from close_batches(scope, touched)
            self._again = AGAIN
            return AGAIN
        left = yield from close_open_batches(scope, self._domains)
        self._again = min(quiet(scope.store, AGAIN), 2 * self._again)
        return self._again if left else quiet(scope.store, SWEEP)
