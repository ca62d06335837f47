"""Ten million commands wait: claims must not notice, with fresh, stale and no statistics."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import LiteralString

import psycopg

from commandbus import SendRequest
from commandbus.sync import SyncCommandBus, SyncWorker
from commandbus.testing import postgres
from commandbus.testing.postgres import PostgresServer, create_database
from tests.chaos.trial import Trial

DOMAIN = "backlog"
CLAIMS, EACH, TRIES = 300, 10, 5
"""Claims of so many commands; others on the machine disturb some, so that the best of tries counts."""
FACTOR = 2.0
"""A claim may take so many times as long as that from an empty table, at the 99th percentile."""
FILL: LiteralString = """
with numbered as (
    insert into commandbus.command (seq, command_id, domain, command_type, data, correlation_id,
        priority, created_at, due_at)
    select n, lpad(to_hex(n), 32, '0')::uuid, 'backlog', 'note', 'null',
        lpad(to_hex(n), 32, '0')::uuid, 5, 0, 0
    from generate_series(%(first)s::bigint, %(last)s::bigint) n
    returning seq)
"""
READY: LiteralString = """
insert into commandbus.queue (domain, priority, seq, available_at)
select 'backlog', 5, seq, 0 from numbered
"""
LATER: LiteralString = """
insert into commandbus.scheduled (domain, due_at, seq, priority)
select 'backlog', commandbus.now_us() + 86400000000 + seq, seq, 5 from numbered
"""
ALL_DUE: LiteralString = """
insert into commandbus.queue (domain, priority, seq, available_at)
select domain, priority, seq, due_at from commandbus.scheduled;
truncate commandbus.scheduled
"""
STEP = 500_000


@dataclass
class Figures:
    name: str
    full: float
    empty: float

    @property
    def factor(self) -> float:
        return self.full / self.empty

    def __str__(self) -> str:
        return f"{self.name}: {self.factor:.2f} × ({self.full:.1f} ms, {self.empty:.1f} ms)"


def backlog(seed: int, size: int = 10_000_000) -> Trial:
    settings = {"autovacuum": "off", "max_wal_size": "4GB", "shared_buffers": "512MB"}
    account = postgres._server_account()
    with tempfile.TemporaryDirectory() as parent:
        # On disk: ten million commands may be more than there is room in memory.
        folder = Path(parent)
        folder.chmod(0o711)
        (folder / "data").mkdir(mode=0o700)
        postgres._give(folder / "data", account)
        with PostgresServer.start(settings=settings, data_dir=folder / "data") as server:
            return _measure(server, seed, size)


def _measure(server: PostgresServer, seed: int, size: int) -> Trial:
    full, empty = create_database(server), create_database(server)
    found: list[Figures] = []
    with (
        SyncCommandBus(full, migrate=True) as one,
        SyncCommandBus(empty, migrate=True) as other,
        psycopg.connect(full, autocommit=True) as admin,
    ):
        admin.execute("set synchronous_commit = off")
        due = size // 100
        _fill(admin, READY, 1, due)
        _fill(admin, LATER, due + 1, size)
        admin.execute("select setval(pg_get_serial_sequence('commandbus.command', 'seq'), %s)", (size,))

        def compare(name: str) -> None:
            found.append(_compared(name, one, other))

        compare("1 % due, no statistics")
        admin.execute("analyze")
        compare("1 % due, fresh statistics")
        admin.execute(ALL_DUE, prepare=False)
        compare("all due, stale statistics")
        admin.execute("analyze")
        compare("all due, fresh statistics")
    note = (
        f"99th percentile of a claim of {EACH}, against an empty table's: {'; '.join(map(str, found))}"
    )
    broken = [f"P19: {figures}" for figures in found if figures.factor > FACTOR]
    faults = Counter({"backlog": len(found)})
    return Trial(f"{size:,} waiting", seed, size, faults, broken, note)


def _fill(admin: psycopg.Connection, into: LiteralString, first: int, last: int) -> None:
    for begin in range(first, last + 1, STEP):
        end = min(begin + STEP - 1, last)
        admin.execute(FILL + into, {"first": begin, "last": end})


def _compared(name: str, full: SyncCommandBus, empty: SyncCommandBus) -> Figures:
    figures: list[Figures] = []
    workers = [SyncWorker(bus, DOMAIN, visibility_timeout=3_600) for bus in (full, empty)]
    while len(figures) < TRIES and (not figures or min(f.factor for f in figures) > FACTOR):
        took: tuple[list[float], list[float]] = ([], [])
        for _ in range(CLAIMS):
            empty.send_many([SendRequest(DOMAIN, "note") for _ in range(EACH)])
            # In turns, so that both suffer alike from whatever else the machine does.
            for worker, times in zip(workers, took, strict=True):
                began = time.perf_counter()
                received = worker.receive(EACH)
                times.append((time.perf_counter() - began) * 1_000)
                assert len(received) == EACH
        figures.append(Figures(name, *(sorted(times)[int(CLAIMS * 0.99)] for times in took)))
    return min(figures, key=lambda f: f.factor)
