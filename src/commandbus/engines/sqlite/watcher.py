"""Finds what other processes committed: at once when one rings, else by looking at a counter.

The counter is SQLite's own, for the file. Whether to ask for it follows from the times of the file
that commits are written to, which costs a tenth of asking; and only a change of the counter leads to a
query. Where this process has a doorbell, the counter is only the fallback, for commits that ring none.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from commandbus.domain.moment import SECOND, Clock
from commandbus.engines.sqlite.doorbell import EXPECT, LOOK, Bell, Doorbell
from commandbus.engines.sqlite.queries import load_queries
from commandbus.store.sessions import CANCELLATIONS, WORKER_REQUESTS
from commandbus.store.wakeup import WakeHub

SQL = load_queries("reads.sql")
logger = logging.getLogger("commandbus.sqlite")

INTERVAL = 0.035
"""Seconds between two looks where nothing rings."""
NET_INTERVAL = 0.25
"""The same where bells ring."""
MISSED_SECONDS = 60.0
"""How long the shorter interval holds after work that was there without a ring: some process cannot
ring here, or writes without the bus."""
LATE_SECONDS = 0.02
"""A ring that comes so long after its commit was seen is no missing one."""
STAND_BY_SECONDS = 0.003
"""How long the process that was asked first has for its claim."""
VAIN_SECONDS = 0.002
"""Between two looks of which the first found no work: a process that awaits an outcome is rung with
every commit."""
EXPECT_SECONDS = 10.0
EXPECT_INTERVAL = 0.001
"""Of the first looks for a caller's commit; each later one is a tenth longer, up to `INTERVAL`."""
SETTLED_NS = 100_000_000
"""A file's time is only as fine as a tick of the system: one that is younger may hide a commit of the
same tick."""
_REQUESTS = {"worker.request": WORKER_REQUESTS, "cancellation": CANCELLATIONS}
"""Kinds of documents that ask something of workers, and the topics of the services that read them."""


class Watcher:
    """A thread that sleeps until some worker or waiting caller of this process sleeps, too. Later it
    also looks while all are busy, for requests to them."""

    def __init__(
        self,
        connect: Callable[[], sqlite3.Connection],
        log: Path,
        hub: WakeHub,
        doorbell: Doorbell,
        clock: Clock,
    ) -> None:
        self._connection = connect()
        self._log = log
        self._known: tuple[int, int] | None = None
        """Size and time of the log when it was last seen at rest."""
        self._version = -1
        hub.allow_watching()
        self._hub = hub
        self._doorbell = doorbell
        self._bell: Bell | None = None
        self._unrung_until = 0.0
        """Until then the counter is read as often as without a bell."""
        self._requests: dict[str, str] = {}
        """What was asked at the last look, by the kind of the requests."""
        self._expects_until = 0.0
        self._expect_interval = INTERVAL
        self._clock = clock
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="commandbus-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._hub.interrupt()
        if (bell := self._bell) is not None:
            bell.interrupt()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stop.is_set() and not self._hub.wait_until_listened():
                pass
            self._hang_bell()
            rings, could_ring = b"", False
            while not self._stop.is_set():
                # Said before the look: work that is committed after it rings.
                self._hub.renew_sleep()
                woke = self._look("bell" if rings else "watch")
                if rings and not woke:
                    self._stop.wait(VAIN_SECONDS)
                rings = self._pause(missed=could_ring and woke and not rings)
                could_ring = True  # what was found first was committed before the bell hung
        finally:
            self._take_bell_down()
            self._connection.close()

    def _hang_bell(self) -> None:
        self._bell = self._doorbell.listen()
        if self._bell is not None:
            self._hub.sign_sleep(self._doorbell.sleep)
        else:
            logger.debug("no doorbell beside the file: commits of other processes are found by polling")

    def _take_bell_down(self) -> None:
        if self._bell is not None:
            self._hub.sign_sleep(None)
            self._bell.close()
            self._bell = None

    def _pause(self, missed: bool) -> bytes:
        """Until something rings, or it is time for the next look."""
        bell = self._bell
        if bell is None:
            self._stop.wait(INTERVAL)
            self._hub.wait_until_listened(NET_INTERVAL)
            return b""
        if missed and time.monotonic() > self._expects_until:
            rings = bell.wait(LATE_SECONDS)
            if not rings:
                self._unrung_until = time.monotonic() + MISSED_SECONDS
        else:
            rings = bell.wait(self._interval())
        if EXPECT in rings:
            self._expects_until = time.monotonic() + EXPECT_SECONDS
            self._expect_interval = EXPECT_INTERVAL
        elif rings and LOOK not in rings:
            self._stop.wait(STAND_BY_SECONDS)
        if not rings and not bell.is_reachable() and not self._stop.is_set():
            self._take_bell_down()
            self._hang_bell()
        return rings

    def _interval(self) -> float:
        now = time.monotonic()
        if now < self._expects_until:
            self._expect_interval = min(INTERVAL, self._expect_interval * 1.1)
            return self._expect_interval
        return INTERVAL if now < self._unrung_until else NET_INTERVAL

    def _look(self, source: str) -> bool:
        """Whether a waiter was woken, because there is work that another process committed."""
        if source == "watch" and self._at_rest():
            return False
        try:
            (version,) = self._connection.execute("pragma data_version").fetchone()
            if version == self._version:
                return False
            self._version = version
            return self._announce(source)
        except sqlite3.Error as error:
            # A hint lost is only lateness: the worker's own interval finds the work.
            logger.warning("cannot look for other processes' commits: %s", error)
            return False

    def _at_rest(self) -> bool:
        """Whether nothing was written since the last look at the counter."""
        try:
            found = self._log.stat()
        except OSError:
            self._known = None
            return False
        seen = found.st_size, found.st_mtime_ns
        if seen == self._known:
            return True
        self._known = seen if time.time_ns() - found.st_mtime_ns > SETTLED_NS else None
        return False

    def _announce(self, source: str) -> bool:
        """Tell waiters what is there now; and those who wait for outcomes, to look again."""
        self._hub.committed()
        self._look_for_requests()
        domains = self._hub.armed_domains()
        if not domains:
            return False
        wanted = msgspec.json.encode(sorted(domains)).decode()
        now = self._clock()
        woke = False
        for domain, ready, due_at, tagged in self._connection.execute(SQL.waiting_domains, (wanted,)):
            if tagged:
                woke |= self._hub.wake(domain, None, source, everyone=True)
            elif ready:
                woke |= self._hub.wake(domain, None, source)
            elif due_at is not None:
                self._hub.wake(domain, max(0.0, (due_at - now) / SECOND), source)
        return woke

    def _look_for_requests(self) -> None:
        """Services hear of what this process commits alone; requests must not wait."""
        found: dict[str, str] = dict(self._connection.execute(SQL.requests).fetchall())
        known, self._requests = self._requests, found
        for kind, topic in _REQUESTS.items():
            if found.get(kind) != known.get(kind):
                self._hub.wake(topic, None, "watch")
