"""Hears what other processes committed, by looking at a counter that SQLite keeps for the file.

Only while someone in this process waits for work: a busy worker claims again by itself. Whether to ask
for the counter at all follows from the times of the file that commits are written to, which costs a
tenth of asking; and only a change of the counter leads to a query.
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
from commandbus.store.sql_files import load
from commandbus.store.wakeup import WakeHub

SQL = load("commandbus.engines.sqlite.sql", "reads.sql")
logger = logging.getLogger("commandbus.sqlite")

INTERVAL = 0.035
"""Seconds between two looks: well within the promised 50 ms, and cheap enough to be idle."""
SETTLED_NS = 100_000_000
"""A file's time is only as fine as a tick of the system: one that is younger may hide a commit of the
same tick."""


class Watcher:
    def __init__(
        self, connect: Callable[[], sqlite3.Connection], log: Path, hub: WakeHub, clock: Clock
    ) -> None:
        self._connection = connect()
        self._log = log
        self._known: tuple[int, int] | None = None
        """Size and time of the log when it was last seen at rest."""
        hub.allow_watching()
        self._hub = hub
        self._clock = clock
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="commandbus-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._hub.interrupt()
        self._thread.join()

    def _run(self) -> None:
        seen = -1
        try:
            while not self._stop.is_set():
                if not self._hub.wait_until_listened():
                    continue
                if self._at_rest():
                    self._stop.wait(INTERVAL)
                    continue
                try:
                    (version,) = self._connection.execute("pragma data_version").fetchone()
                    if version != seen:
                        seen = version
                        self._announce()
                except sqlite3.Error as error:
                    # A hint lost is only lateness: the worker's own interval finds the work.
                    logger.warning("cannot look for other processes' commits: %s", error)
                self._stop.wait(INTERVAL)
        finally:
            self._connection.close()

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

    def _announce(self) -> None:
        """Tell waiters what is there now; and those who wait for outcomes, to look again."""
        self._hub.committed()
        domains = self._hub.armed_domains()
        if not domains:
            return
        wanted = msgspec.json.encode(sorted(domains)).decode()
        now = self._clock()
        for domain, ready, due_at, tagged in self._connection.execute(SQL.waiting_domains, (wanted,)):
            if tagged:
                self._hub.wake(domain, None, "watch", everyone=True)
            elif ready:
                self._hub.wake(domain, None, "watch")
            elif due_at is not None:
                self._hub.wake(domain, max(0.0, (due_at - now) / SECOND), "watch")
