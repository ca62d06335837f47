"""`python -m bench.limits`: what limits cost, and whether they hold, over several processes.

Three figures: the throughput with a group key of 1,000 values beside that of plain commands; the rate
of a type that may start 50 times per second; and how fast another type of the same domain goes beside
it, compared with alone.
"""

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from commandbus import CommandBus, HandlerRegistry, SendRequest, Worker
from commandbus.sync import SyncCommandBus

DOMAIN = "bench"
KEYS = 1_000
RATE = 50
SECONDS = 10


async def work(url: str, journal: str, concurrency: int) -> None:
    """A worker process: `work` does nothing, `mail` notes when it began."""
    registry = HandlerRegistry()
    file = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    @registry.handler(DOMAIN, "work")
    async def nothing(command: Any, context: Any) -> None: ...

    @registry.handler(DOMAIN, "mail")
    async def mail(command: Any, context: Any) -> None:
        os.write(file, f"{time.time()}\n".encode())

    async with CommandBus(url) as bus:
        worker = Worker(bus, DOMAIN, registry, concurrency=concurrency)
        running = asyncio.create_task(worker.run())
        await asyncio.to_thread(sys.stdin.read)
        await worker.stop(5)
        await running


@contextmanager
def fleet(url: str, journal: Path, processes: int, concurrency: int) -> Iterator[None]:
    command = [sys.executable, "-m", "bench.limits", "--worker", url, str(journal), str(concurrency)]
    started = [subprocess.Popen(command, stdin=subprocess.PIPE) for _ in range(processes)]
    try:
        yield
    finally:
        for process in started:
            assert process.stdin is not None
            process.stdin.close()
        for process in started:
            process.wait(30)


def drained(bus: SyncCommandBus, wanted: int, seconds: float = 300.0) -> float:
    """When so many had completed."""
    deadline = time.monotonic() + seconds
    while bus.stats(DOMAIN).completed < wanted:
        assert time.monotonic() < deadline, bus.stats(DOMAIN)
        time.sleep(0.02)
    return time.perf_counter()


def throughput(bus: SyncCommandBus, count: int, key: Callable[[int], str | None], start: Any) -> float:
    """Commands per second, from a backlog, timed from the first completion on."""
    before = bus.stats(DOMAIN).completed
    for first in range(0, count, 1_000):
        numbers = range(first, min(count, first + 1_000))
        bus.send_many([SendRequest(DOMAIN, "work", n, group_key=key(n)) for n in numbers])
    with start():
        first_done = max(1, count // 20)
        began = drained(bus, before + first_done)
        return (count - first_done) / (drained(bus, before + count) - began)


def measure(url: str, options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder, SyncCommandBus(url, migrate=True) as bus:
        journal = Path(folder) / "journal"

        def start() -> Any:
            return fleet(url, journal, options.processes, options.concurrency)

        keys: dict[str, Callable[[int], str | None]] = {
            "plain": lambda n: None,
            f"{KEYS} group keys": lambda n: f"k{n % KEYS}",
        }
        found: dict[str, float] = {}
        for turn in range(options.repeat):
            for name in list(keys) if turn % 2 == 0 else list(reversed(keys)):
                rate = throughput(bus, options.commands, keys[name], start)
                found[name] = max(found.get(name, 0.0), rate)
                print(f"[{turn + 1}/{options.repeat}] {name}: {rate:,.0f}/s", flush=True)
        plain, grouped = found.values()
        print(f"one at a time per key over {KEYS} keys costs {1 - grouped / plain:.0%}")
        rates(bus, journal, start, options.commands)


def rates(bus: SyncCommandBus, journal: Path, start: Any, count: int) -> None:
    alone = throughput(bus, count, lambda n: None, start)
    bus.set_limit(DOMAIN, "mail", rate=RATE)
    bus.send_many([SendRequest(DOMAIN, "mail", n) for n in range(RATE * (SECONDS + 20))])
    beside = throughput(bus, count, lambda n: None, start)
    print(f"another type: {beside:,.0f}/s beside a limited one, {alone:,.0f}/s alone")
    journal.unlink(missing_ok=True)
    with start():
        while not journal.exists():
            time.sleep(0.01)
        time.sleep(SECONDS + 1.5)
        moments = sorted(float(line) for line in journal.read_text().split())
    began = moments[0] + 1
    counted = sum(began <= moment < began + SECONDS for moment in moments)
    print(f"rate {RATE}/s over several processes: measured {counted / SECONDS:.1f}/s over {SECONDS} s")


def main() -> None:
    if sys.argv[1:2] == ["--worker"]:
        asyncio.run(work(sys.argv[2], sys.argv[3], int(sys.argv[4])))
        return
    parser = argparse.ArgumentParser(prog="python -m bench.limits", description=__doc__)
    parser.add_argument("--url", help="a database to use; default: a PostgreSQL server of its own")
    parser.add_argument("--sqlite", action="store_true", help="a SQLite file of its own")
    parser.add_argument("--commands", type=int, default=20_000)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--concurrency", type=int, default=20)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    if options.url:
        measure(options.url, options)
    elif options.sqlite:
        with tempfile.TemporaryDirectory() as folder:
            measure(f"sqlite:///{folder}/bench.db", options)
    else:
        from commandbus.testing.postgres import PostgresServer, create_database

        server = PostgresServer.start(durable=True, settings={"shared_buffers": "512MB"})
        try:
            measure(create_database(server), options)
        finally:
            server.stop()


if __name__ == "__main__":
    main()
