"""`python -m bench.single`: where the time of a single send goes.

In turn, on fresh databases of a private server with durable settings, with 1 and with 16 senders of
one process: a bare INSERT of one row with one index; a bare INSERT of the two rows of a send with their
three indexes; sends of threads, and of tasks. Beside the rates is the processor time of the server and
of this process for each, and the share of the bare INSERT. The goals are 0.9 of it with one sender, and
16 threads at 0.9 of 16 tasks.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Callable
from uuid import uuid4

import psycopg

from bench.lab import Lab
from bench.peers.child import cpu_seconds
from bench.postgres import _in_threads, single_sends, single_sends_async
from commandbus.engines.postgres.schema import upgrade
from commandbus.testing.postgres import create_database, drop_database

ONE_TABLE = "create table bare (id bigserial primary key, domain text, data text)"
ONE_ROW = "insert into bare (domain, data) values (%s, %s)"
TWO_TABLES = (
    "create table bare (seq bigserial primary key, id uuid, domain text, type text, data text,"
    " correlation_id uuid, priority int, created_at bigint, due_at bigint);"
    " create unique index on bare (id, domain);"
    " create table place (domain text, priority int, seq bigint, due_at bigint, flags int, keyed bool,"
    " primary key (domain, priority, seq))"
)
TWO_ROWS = (
    "with new as (insert into bare (id, domain, type, data, correlation_id, priority, created_at,"
    " due_at) values (%s, %s, 'noop', %s, %s, 5, 1, 1) returning domain, priority, seq)"
    " insert into place select domain, priority, seq, 1, 1, false from new"
)
TEXT = "x" * 100


def one_row() -> tuple[object, ...]:
    return "bench", TEXT


def two_rows() -> tuple[object, ...]:
    made = uuid4()
    return made, "bench", TEXT, made


def bare(
    url: str, seconds: float, senders: int, sql: str, values: Callable[[], tuple[object, ...]]
) -> float:
    counts = [0] * senders

    def work(number: int) -> None:
        with psycopg.connect(url, autocommit=True, prepare_threshold=0) as connection:
            until = time.perf_counter() + seconds
            while time.perf_counter() < until:
                connection.execute(sql.encode(), values())
                counts[number] += 1

    return _in_threads(work, senders, counts, seconds)


def tasks(url: str, seconds: float, senders: int) -> float:
    return asyncio.run(single_sends_async(url, seconds, senders))


Form = tuple[str, Callable[[str, float, int], float]]
FORMS: dict[str, Form] = {
    "bare INSERT, one row": (ONE_TABLE, lambda u, s, n: bare(u, s, n, ONE_ROW, one_row)),
    "bare INSERT, both rows": (TWO_TABLES, lambda u, s, n: bare(u, s, n, TWO_ROWS, two_rows)),
    "threads": ("", single_sends),
    "tasks": ("", tasks),
}


def measure(lab: Lab, form: Form, seconds: float, senders: int) -> tuple[float, float, float]:
    """Per second, and microseconds of the server and of this process for each."""
    tables, run = form
    url = create_database(lab.server)
    try:
        if tables:
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute(tables.encode())
        else:
            upgrade(url)
        server, own = cpu_seconds(lab.server.pid), time.process_time()
        rate = run(url, seconds, senders)
        count = rate * seconds
        server, own = cpu_seconds(lab.server.pid) - server, time.process_time() - own
    finally:
        drop_database(lab.server, url)
    return rate, 1e6 * server / count, 1e6 * own / count


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.single", description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    with Lab() as lab:
        for senders in (1, 16):
            found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in FORMS}
            for _ in range(options.repeat):
                for name, form in FORMS.items():
                    found[name].append(measure(lab, form, options.seconds, senders))
            least = 0.0
            for name, runs in found.items():
                rate, server, own = (statistics.median(column) for column in zip(*runs, strict=True))
                least = least or rate
                print(
                    f"{senders:>2} × {name:<24}{rate:>9,.0f}/s {rate / least:>6.2f} × bare,"
                    f" server {server:.0f} µs, this process {own:.0f} µs",
                    flush=True,
                )


if __name__ == "__main__":
    main()
