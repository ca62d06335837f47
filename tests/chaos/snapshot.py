"""A held snapshot: somebody reads for long, so that nothing that is over can be cleaned away."""

from __future__ import annotations

import threading
import time
from collections import Counter

import psycopg

from commandbus import SendRequest
from commandbus.engines.postgres.schema import upgrade
from commandbus.sync import SyncCommandBus
from commandbus.testing.postgres import PostgresServer, create_database
from tests.chaos.trial import Trial
from tests.support.working import DOMAIN, Done, working

AHEAD = 400
"""So many wait at most, so that the rate is the workers' own."""
SHARE = 0.8
"""So much of the throughput is to be left."""
TRIES = 3
"""Other programs on the machine disturb a measurement: the best of so many counts."""


def held_snapshot(seed: int, seconds: float = 20.0) -> Trial:
    shares: list[float] = []
    commands = 0
    with PostgresServer.start(durable=True) as server:
        for _ in range(TRIES):
            url = create_database(server)
            upgrade(url)
            share, count = _measure(url, seconds)
            shares.append(share)
            commands += count
            if share >= SHARE:
                break
    best = max(shares)
    each = ", ".join(f"{share:.0%}" for share in shares)
    note = (
        f"throughput with a snapshot held for {seconds:.0f} s: {best:.0%} of before (each try: {each};"
        f" the goal is {SHARE:.0%})"
    )
    broken = [] if best >= SHARE else [f"P19: {note}"]
    return Trial("held snapshot", seed, commands, Counter({"held snapshot": len(shares)}), broken, note)


def _measure(url: str, seconds: float) -> tuple[float, int]:
    """The rate while a snapshot is held, as a share of the rate before; and how many commands."""
    stop = threading.Event()
    with SyncCommandBus(url) as bus, working(url, "threads", concurrency=8, poll_interval=1.0) as done:
        feeding = threading.Thread(target=_feed, args=(bus, done, stop), daemon=True)
        feeding.start()
        try:
            _rate(done, 3.0)
            before = _rate(done, 8.0)
            with psycopg.connect(url) as reader:
                reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
                reader.execute("select count(*) from commandbus.command")
                _rate(done, max(0.0, seconds - 8.0))
                held = _rate(done, 8.0)
        finally:
            stop.set()
            feeding.join(30)
        return held / before, sum(done.runs.values())


def _feed(bus: SyncCommandBus, done: Done, stop: threading.Event) -> None:
    sent = 0
    while not stop.is_set():
        if sent - len(done.runs) > AHEAD // 2:
            stop.wait(0.005)
            continue
        sent += len(bus.send_many([SendRequest(DOMAIN, "ship") for _ in range(AHEAD // 2)]))


def _rate(done: Done, seconds: float) -> float:
    before, began = len(done.runs), time.monotonic()
    time.sleep(seconds)
    return (len(done.runs) - before) / max(time.monotonic() - began, 0.001)
