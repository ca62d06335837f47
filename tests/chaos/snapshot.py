"""A held snapshot: somebody reads for long, so that nothing that is over can be cleaned away.

Two databases of one server get the same load in turns, and only in one of them a snapshot is held: the
machine may be as busy as it likes, for it is as busy for both. A snapshot holds up its own database.
"""

from __future__ import annotations

import time
from collections import Counter
from contextlib import ExitStack
from statistics import median

import psycopg

from commandbus import SendRequest
from commandbus.engines.postgres.schema import upgrade
from commandbus.sync import SyncCommandBus
from commandbus.testing.postgres import PostgresServer, create_database
from tests.chaos.trial import Trial
from tests.os_processes.lab import wait_until
from tests.support.working import DOMAIN, Done, working

COUNT = 500
"""Commands in a turn."""
PAUSE, SHORT_PAUSE = 3.0, 0.5
"""Seconds between two pairs of turns; what is over sooner has more of them."""
AFTER = 100.0
"""Seconds for which it goes on when the snapshot is gone: autovacuum looks around once a minute."""
SHARE = 0.8
"""So much of the throughput is to be left."""


def held_snapshot(seed: int, seconds: float = 600.0) -> Trial:
    with ExitStack() as stack:
        server = stack.enter_context(PostgresServer.start(durable=True))
        held, free = (_Side(stack, create_database(server)) for _ in range(2))
        _pairs(held, free, 0.0, at_least=3)
        with psycopg.connect(held.url) as reader:
            reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            reader.execute("select count(*) from commandbus.command")
            shares = _pairs(held, free, seconds)
        afterwards = _pairs(held, free, min(AFTER, seconds), pause=SHORT_PAUSE)
    late, afterwards = (found[-max(1, len(found) // 3) :] for found in (shares, afterwards))
    during, after = median(late), median(afterwards)
    note = (
        f"throughput in the last third of {seconds:.0f} s under a held snapshot: {during:.0%} of that "
        f"without one, afterwards {after:.0%} (median of {len(late)} and {len(afterwards)} pairs; the "
        f"goal is {SHARE:.0%})"
    )
    broken = [f"P19: {note}"] if min(during, after) < SHARE else []
    tried = sum(len(side.done.runs) for side in (held, free))
    return Trial("held snapshot", seed, tried, Counter({"held snapshot": 1}), broken, note)


class _Side:
    """A database with its worker."""

    def __init__(self, stack: ExitStack, url: str) -> None:
        self.url = url
        upgrade(url)
        self._bus = stack.enter_context(SyncCommandBus(url))
        self.done: Done = stack.enter_context(working(url, "threads", concurrency=8, poll_interval=5.0))

    def turn(self) -> float:
        """How long it takes to send some commands and carry them out."""
        began, wanted = time.perf_counter(), len(self.done.runs) + COUNT
        self._bus.send_many([SendRequest(DOMAIN, "ship") for _ in range(COUNT)])
        wait_until(lambda: len(self.done.runs) >= wanted, "everything has been carried out", 120)
        return time.perf_counter() - began


def _pairs(
    held: _Side, free: _Side, seconds: float, at_least: int = 1, pause: float = PAUSE
) -> list[float]:
    """The throughput of one side as a share of the other's, again and again."""
    shares: list[float] = []
    until = time.monotonic() + seconds
    while time.monotonic() < until or len(shares) < at_least:
        # Each goes first every other time: the second of two finds warmer caches.
        sides = (held, free) if len(shares) % 2 else (free, held)
        took = {side: side.turn() for side in sides}
        shares.append(took[free] / took[held])
        time.sleep(min(pause, max(0.0, until - time.monotonic())))
    return shares
