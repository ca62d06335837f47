"""Keeps leases alive, from a thread of its own.

Neither a blocked event loop nor busy handlers can stop it: it needs only the engine's blocking session.
A lease is renewed at a third of its length; one that cannot be renewed any more is reported. The worker
that begins a command asks here first: a process that was stopped for a while wakes up with leases that
have run out, before it could be notified.

While it asks in time and the store does not answer, it says so: a lease that ends then is no sign that
a command holds up its process, which would have held up this thread, too.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from math import inf

from commandbus.errors import CommandBusError
from commandbus.store.outage import Outage
from commandbus.store.port import Store
from commandbus.store.session import Session

logger = logging.getLogger("commandbus.worker")

STOP_SECONDS = 5.0


class LeaseKeeper:
    def __init__(
        self,
        store: Store,
        session: Session,
        seconds: float,
        lost: Callable[[list[int]], None],
        renewed: Callable[[], object],
        outage: Outage,
        excused: Callable[[float], object] = lambda until: None,
    ) -> None:
        self._outage = outage
        self._excused = excused
        """Called with the moment until which leases end because the store does not answer."""
        self._store = store
        self._session = session
        self._seconds = seconds
        self._lost = lost
        self._renewed = renewed
        self._ends: dict[int, float] = {}
        """When each lease runs out, at the earliest."""
        self._due: dict[int, float] = {}
        """When each is to be renewed."""
        self._changed = threading.Condition()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="commandbus-leases", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, seconds: float = STOP_SECONDS) -> None:
        """End, and wait for it for so long: it may be waiting for a store that does not answer."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        self._thread.join(timeout=seconds)

    def keep(self, lease_ids: Iterable[int], asked: float) -> None:
        """Renew these from now on, which were asked for at that moment."""
        moment, end = asked + self._seconds / 3, asked + self._seconds
        with self._changed:
            idle = not self._due
            for lease_id in lease_ids:
                self._due[lease_id] = moment
                self._ends[lease_id] = end
            # Leases are added in order of time, so only the first one changes the planned wake-up; or
            # one that was long in coming.
            if idle or moment <= time.monotonic():
                self._changed.notify()

    def forget(self, lease_ids: Iterable[int]) -> None:
        with self._changed:
            for lease_id in lease_ids:
                self._due.pop(lease_id, None)
                self._ends.pop(lease_id, None)

    def holds(self, lease_id: int) -> bool:
        """Whether a lease cannot have run out yet. Without the lock, as every command asks."""
        return time.monotonic() < self._ends.get(lease_id, 0.0)

    @contextmanager
    def _excusing(self) -> Iterator[None]:
        """While the store is asked; again and again by another thread, because a command that begins to
        hold up this process meanwhile is not excused."""
        over, step = threading.Event(), self._seconds / 10

        def excuse() -> None:
            self._excused(time.monotonic() + 3 * step)

        def go_on() -> None:
            while not over.wait(step):
                excuse()

        excuse()
        thread = threading.Thread(target=go_on, name="commandbus-excuse", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _run(self) -> None:
        excused_until = 0.0
        while (due := self._wait()) is not None:
            asked = time.monotonic()
            in_time = asked < excused_until or all(asked < self._ends.get(one, inf) for one in due)
            try:
                with self._excusing() if in_time else nullcontext():
                    gone, failed = self._session.run(self._store.renew(due, self._seconds)), False
            except CommandBusError as error:
                self._outage.failed(f"renewing {len(due)} leases", error, logger)
                gone, failed = due, True
            answered = time.monotonic()
            if in_time and any(failed or self._ends.get(one, inf) <= answered for one in gone):
                excused_until = answered + self._seconds  # others may take them back a little later
            self._excused(excused_until)
            if failed:
                self._plan(due, self._seconds / 15)
                continue
            renewed = [lease_id for lease_id in due if lease_id not in gone]
            self._plan(renewed, self._seconds / 3, asked + self._seconds)
            self._renewed()
            if gone:
                self.forget(gone)
                self._lost(gone)

    def _wait(self) -> list[int] | None:
        """The leases that are due now, after waiting for the first; None when stopped."""
        with self._changed:
            while not self._stopped:
                now = time.monotonic()
                due = [lease_id for lease_id, moment in self._due.items() if moment <= now]
                if due:
                    return due
                self._changed.wait(min(self._due.values()) - now if self._due else None)
            return None

    def _plan(self, lease_ids: list[int], seconds: float, end: float | None = None) -> None:
        """When to renew these next; and when they run out, if that has changed."""
        moment = time.monotonic() + seconds
        with self._changed:
            for lease_id in lease_ids:
                if lease_id in self._due:
                    self._due[lease_id] = moment
                    self._ends[lease_id] = end or self._ends[lease_id]
