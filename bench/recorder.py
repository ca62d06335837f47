"""The cost of the flight recorder: `python -m bench.recorder` (`--postgres` for a server of its own).

The same commands are carried out without and with a recorder, in turn, by handlers that do nothing, so
this is the most it can cost. Each run with a recorder is compared with the run without one beside it,
for a machine is not equally fast all the time: the median of the quotients counts, of the throughput
and of the processor time that the worker's process takes for a command. Run it on a quiet machine; exit
code 1 when the recorder costs more than the bound.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from typing import Any

from bench.servers import own_postgres
from commandbus import CommandBus, HandlerRegistry, SendRequest, Worker

BOUND = 0.02

registry = HandlerRegistry()


@registry.handler("bench", "nothing")
async def nothing(command: Any, context: Any) -> None:
    return None


async def drain(url: str, count: int, recorder: str | None) -> tuple[float, float]:
    """Commands per second of one worker, and its microseconds of processor time for each."""
    async with CommandBus(url) as bus:
        await bus.purge("bench")
        await bus.send_many(SendRequest("bench", "nothing", {"n": n}) for n in range(count))
        worker = Worker(bus, "bench", registry, concurrency=16, recycle_after=count, recorder=recorder)
        began, busy = time.perf_counter(), time.process_time()
        await worker.run()
        took, busy = time.perf_counter() - began, time.process_time() - busy
        return count / took, busy / count * 1_000_000


def compare(url: str, count: int, pairs: int) -> bool:
    """Prints both kinds; whether the recorder keeps the bound."""
    asyncio.run(drain(url, count, "off"))  # everything is imported, the store is warm
    without: list[tuple[float, float]] = []
    recorded: list[tuple[float, float]] = []
    for number in range(pairs):
        kinds = [(without, "off"), (recorded, None)]
        for runs, recorder in reversed(kinds) if number % 2 else kinds:
            runs.append(asyncio.run(drain(url, count, recorder)))
    beside = list(zip(recorded, without, strict=True))
    lost = 1 - statistics.median(its[0] / bare[0] for its, bare in beside)
    more = statistics.median(its[1] / bare[1] for its, bare in beside) - 1
    for name, runs in (("without a recorder", without), ("with a recorder", recorded)):
        rate, busy = (statistics.median(column) for column in zip(*runs, strict=True))
        print(f"{rate:10,.0f} commands/s  {busy:6.1f} µs of processor  {name}")
    print(f"the recorder costs {lost:+.1%} of the throughput, {more:+.1%} of the processor time")
    return lost <= BOUND


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.recorder")
    parser.add_argument("--url", help="default: an SQLite file in a temporary folder")
    parser.add_argument("--postgres", action="store_true", help="a PostgreSQL of its own")
    parser.add_argument("--commands", type=int, default=20_000)
    parser.add_argument("--pairs", type=int, default=12)
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        url = chosen.url or (own_postgres() if chosen.postgres else f"sqlite:///{folder}/bench.db")
        kept = compare(url, chosen.commands, chosen.pairs)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
