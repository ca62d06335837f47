"""`python -m bench.roles`: what the checks on the server cost a program that may only send, in pairs.

The owner of the tables sends by plain statements; the role `sender` by functions that run with the
owner's rights and check every command again. The same commands, on one server with durable settings,
in turns, so that neither is always first.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from statistics import median

import psycopg

from commandbus import SendRequest
from commandbus.engines.postgres.roles import role_named, roles_sql
from commandbus.engines.postgres.schema import upgrade
from commandbus.sync import SyncCommandBus
from commandbus.testing.postgres import PostgresServer, create_database

DATA = {"text": "x" * 80}
NAME = "bench_sender"
PAIRS = 5
Turn = Callable[[SyncCommandBus], int]


def one_by_one(bus: SyncCommandBus) -> int:
    for _ in range(500):
        bus.send("bench", "noop", DATA)
    return 500


def from_16_threads(bus: SyncCommandBus) -> int:
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda _: bus.send("bench", "noop", DATA), range(4_000)))
    return 4_000


def in_bulk(size: int) -> Turn:
    def turn(bus: SyncCommandBus) -> int:
        for _ in range(20_000 // size):
            bus.send_many([SendRequest("bench", "noop", DATA)] * size)
        return 20_000

    return turn


TURNS: dict[str, Turn] = {
    "single sends": one_by_one,
    "single sends of 16 threads": from_16_threads,
    "send_many of 100": in_bulk(100),
    "send_many of 10,000": in_bulk(10_000),
}


def rate(url: str, turn: Turn) -> float:
    with SyncCommandBus(url) as bus:
        bus.send("bench", "noop", DATA)  # opens what is opened at the first use
        began = time.perf_counter()
        return turn(bus) / (time.perf_counter() - began)


def emptied(url: str) -> None:
    with SyncCommandBus(url) as bus:
        bus.purge("bench")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("vacuum analyze commandbus.command, commandbus.queue")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.roles", description=__doc__)
    parser.add_argument("--pairs", type=int, default=PAIRS)
    pairs = parser.parse_args().pairs
    with PostgresServer.start(durable=True) as server:
        owner = create_database(server)
        upgrade(owner)
        with psycopg.connect(owner, autocommit=True) as connection:
            connection.execute(roles_sql("commandbus").encode())
            role = role_named("sender", "commandbus")
            connection.execute(f"create role {NAME} login in role {role}".encode())
        urls = [owner, owner.replace("postgres@", f"{NAME}@", 1)]
        for name, turn in TURNS.items():
            found: dict[str, list[float]] = {url: [] for url in urls}
            for pair in range(pairs + 1):
                for url in urls if pair % 2 else reversed(urls):
                    found[url].append(rate(url, turn))
                emptied(owner)
            first, second = (found[url][1:] for url in urls)  # the first pair warms up
            costs = [100 * (1 - b / a) for a, b in zip(first, second, strict=True)]
            print(
                f"{name:<28} owner {median(first):>9,.0f}/s  sender {median(second):>9,.0f}/s"
                f"  less by {median(costs):5.1f} % ({min(costs):.1f} to {max(costs):.1f})",
                flush=True,
            )


if __name__ == "__main__":
    main()
