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
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, Self

from commandbus import CommandBus, HandlerRegistry, SendRequest, Worker
from commandbus.sync import SyncCommandBus

DOMAIN = "bench"
KEYS = 1_000
RATE = 50
SECONDS = 10


async def work(url: str, journal: str, concurrency: int) -> None:
    """A worker process: `work` only counts, `mail` notes when it began. It begins when it is told to,
    and in the end says how many it did, and from when to when."""
    registry = HandlerRegistry()
    file = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    done: list[float] = []

    @registry.handler(DOMAIN, "work")
    async def count(command: Any, context: Any) -> None:
        done.append(time.time())

    @registry.handler(DOMAIN, "mail")
    async def mail(command: Any, context: Any) -> None:
        os.write(file, f"{time.time()}\n".encode())

    async with CommandBus(url) as bus:
        worker = Worker(bus, DOMAIN, registry, concurrency=concurrency)
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        running = asyncio.create_task(worker.run())
        await asyncio.to_thread(sys.stdin.read)
        await worker.stop(5)
        await running
    print(len(done), *((done[0], done[-1]) if done else (0, 0)), flush=True)


class Fleet:
    """Worker processes, started together; afterwards, what they did."""

    def __init__(self, url: str, journal: Path, processes: int, concurrency: int) -> None:
        command = [
            sys.executable,
            "-m",
            "bench.limits",
            "--worker",
            url,
            str(journal),
            str(concurrency),
        ]
        self._started = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for _ in range(processes)
        ]
        self.done = 0
        self.seconds = 0.0

    def __enter__(self) -> Self:
        for process in self._started:
            assert process.stdout is not None
            process.stdout.readline()
        for process in self._started:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._started:
            assert process.stdin is not None
            process.stdin.close()
        reports = []
        for process in self._started:
            assert process.stdout is not None
            reports.append(process.stdout.read().split())
            process.wait(60)
        worked = [[float(part) for part in report] for report in reports if report and report[0] != "0"]
        if worked:
            self.done = int(sum(count for count, _, _ in worked))
            self.seconds = max(last for _, _, last in worked) - min(first for _, first, _ in worked)


def throughput(bus: SyncCommandBus, count: int, key: Callable[[int], str | None], start: Any) -> float:
    """Commands per second, from a backlog, timed by the workers themselves."""
    wanted = bus.stats(DOMAIN, cap=1).completed + count
    for first in range(0, count, 1_000):
        numbers = range(first, min(count, first + 1_000))
        bus.send_many([SendRequest(DOMAIN, "work", n, group_key=key(n)) for n in numbers])
    deadline = time.monotonic() + 300
    with start() as fleet:
        # Rarely: looking costs the server something, too.
        while bus.stats(DOMAIN, cap=1).completed < wanted:
            assert time.monotonic() < deadline, bus.stats(DOMAIN)
            time.sleep(0.25)
    return float(fleet.done / fleet.seconds)


def measure(url: str, options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder, SyncCommandBus(url, migrate=True) as bus:
        journal = Path(folder) / "journal"

        def start() -> Fleet:
            return Fleet(url, journal, options.processes, options.concurrency)

        keys: dict[str, Callable[[int], str | None]] = {
            "plain": lambda n: None,
            f"{KEYS} group keys": lambda n: f"k{n % KEYS}",
        }
        found: dict[str, list[float]] = {name: [] for name in keys}
        for turn in range(options.repeat):
            for name in list(keys) if turn % 2 == 0 else list(reversed(keys)):
                rate = throughput(bus, options.commands, keys[name], start)
                found[name].append(rate)
                print(f"[{turn + 1}/{options.repeat}] {name}: {rate:,.0f}/s", flush=True)
        plain, grouped = (median(rates) for rates in found.values())
        print(f"one at a time per key over {KEYS} keys costs {1 - grouped / plain:.0%} (at most 30 %)")
        rates(bus, journal, start, options.commands)


def rates(bus: SyncCommandBus, journal: Path, start: Any, count: int) -> None:
    alone = throughput(bus, count, lambda n: None, start)
    bus.set_limit(DOMAIN, "mail", rate=RATE)
    # Waiting for its tokens beside all of the others.
    bus.send_many([SendRequest(DOMAIN, "mail", n) for n in range(RATE * (SECONDS + 20))])
    beside = throughput(bus, count, lambda n: None, start)
    print(
        f"another type: {beside:,.0f}/s beside a limited one, {alone:,.0f}/s alone: "
        f"{beside / alone:.0%}"
    )
    journal.unlink(missing_ok=True)
    with start():
        while not journal.exists() or not journal.stat().st_size:
            time.sleep(0.01)
        time.sleep(SECONDS + 1.5)
        moments = sorted(float(line) for line in journal.read_text().split())
    began = moments[0] + 1
    counted = sum(began <= moment < began + SECONDS for moment in moments)
    print(
        f"rate {RATE}/s over several processes: measured {counted / SECONDS:.1f}/s over {SECONDS} s "
        "(within 10 %)"
    )


def main() -> None:
    if sys.argv[1:2] == ["--worker"]:
        asyncio.run(work(sys.argv[2], sys.argv[3], int(sys.argv[4])))
        return
    parser = argparse.ArgumentParser(prog="python -m bench.limits", description=__doc__)
    parser.add_argument("--url", help="a database to use; default: a PostgreSQL server of its own")
    parser.add_argument("--sqlite", action="store_true", help="a SQLite file of its own")
    parser.add_argument("--commands", type=int, default=60_000)
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
