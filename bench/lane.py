"""`python -m bench.lane`: what a bulk send would gain at most if its commands had no row in the queue.

In turn, each on a fresh database of a private server with durable settings: COPY into two tables, the
bulk send as it is, and the same without the second of its two COPY. No worker would find what is sent
so; a real lane needs a cursor besides. Printed are medians, the processor time of the server and of the
sender, and the share of COPY into two tables, of which half is the goal.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from bench.ceilings import copies
from bench.lab import Lab
from bench.peers.child import cpu_seconds
from bench.postgres import fill
from commandbus.engines.postgres.schema import upgrade
from commandbus.engines.postgres.sending import Sender
from commandbus.testing.postgres import create_database, drop_database

ROWS, NO_ROWS = "bulk send", "bulk send without queue rows"


def no_places(*_: Any) -> Iterator[Any]:
    yield from ()


@contextmanager
def form(name: str) -> Iterator[None]:
    if name == ROWS:
        yield
        return
    with mock.patch.object(Sender, "_copy_plain_places", no_places):
        yield


def measure(lab: Lab, name: str, commands: int, bulk: int) -> tuple[float, float, float]:
    """Commands per second, and microseconds of the server and of this process for each."""
    url = create_database(lab.server)
    try:
        upgrade(url)
        with form(name):
            fill(url, bulk, bulk)  # plans and pages are there
            server, own = cpu_seconds(lab.server.pid), time.process_time()
            seconds = fill(url, commands, bulk)
        server, own = cpu_seconds(lab.server.pid) - server, time.process_time() - own
    finally:
        drop_database(lab.server, url)
    return commands / seconds, 1e6 * server / commands, 1e6 * own / commands


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.lane", description=__doc__)
    parser.add_argument("--commands", type=int, default=100_000)
    parser.add_argument("--bulk", type=int, default=1_000, help="commands of a call (1,000)")
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    limits: list[float] = []
    found: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
    with Lab() as lab:
        for _ in range(options.repeat):
            limits.append(copies(lab, 1.0)["copy_2"])
            for name in (ROWS, NO_ROWS):
                found[name].append(measure(lab, name, options.commands, options.bulk))
    limit = statistics.median(limits)
    print(f"{'COPY into two tables':<32}{limit:>10,.0f}/s")
    for name, runs in found.items():
        rate, server, own = (statistics.median(column) for column in zip(*runs, strict=True))
        print(
            f"{name:<32}{rate:>10,.0f}/s {rate / limit:>6.2f} × COPY, server {server:.1f} µs,"
            f" sender {own:.1f} µs"
        )


if __name__ == "__main__":
    main()
