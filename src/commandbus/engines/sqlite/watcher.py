"""Hears what other processes committed, by looking at a counter that SQLite keeps for the file.

Only while someone in this process waits for work: a busy worker claims again by itself. Asking for the
counter reads no page of the file, and only a change of it leads to a query.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable

import msgspec

from commandbus.domain.moment import SECOND, Clock
from commandbus.store.sql_files import load
from commandbus.store.wakeup import WakeHub

SQL = load("commandbus.engines.sqlite.sql", "reads.sql")
logger = logging.getLogger("commandbus.sqlite")

INTERVAL = 0.025
"""Seconds between two looks: half of the promised 50 ms."""


class Watcher:
    def __init__(self, connect: Callable[[], sqlite3.Connection], hub: WakeHub, clock: Clock) -> None:
        self._connection = connect()
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
                try:
                    version = self._connection.execute("pragma data_version").fetchone()[0]
                    if version != seen:
                        seen = version
                        self._announce()
                except sqlite3.Error as error:
                    # A hint lost is only lateness: the worker's own interval finds the work.
                    logger.warning("cannot look for other processes' commits: %s", error)
                self._stop.wait(INTERVAL)
        finally:
            self._connection.close()

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
