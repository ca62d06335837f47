"""`python -m bench.limits`: what limits cost, and whether they hold, over several processes.

Three figures: the throughput with a group key of 1,000 values beside that of plain commands; the rate
of a type that may start 50 times per second; and how fast another type of the same domain goes beside
it, compared with alone.

Throughput is that of the middle four fifths of the commands, when their outcomes were recorded, so that
neither the start of the workers nor the last stragglers count. Each kind of run has its own domain, so
that plain commands are measured where nothing was ever held back.
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

PLAIN, KEYED, LIMITED = "plain", "keyed", "limited"
KEYS = 1_000
RATE = 50
SECONDS = 10


async def work(url: str, domain: str, journal: str, concurrency: int) -> None:
    """A worker process: `work` only counts, `mail` notes when it began. It begins when it is told to,
    and in the end says when it had recorded how many."""
    registry = HandlerRegistry()
    file = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    recorded: list[tuple[float, int]] = []

    @registry.handler(domain, "work")
    async def count(command: Any, context: Any) -> None:
        pass

    @registry.handler(domain, "mail")
    async def mail(command: Any, context: Any) -> None:
        os.write(file, f"{time.time()}\n".encode())

    async with CommandBus(url) as bus:
        worker = Worker(bus, domain, registry, concurrency=concurrency)
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        running = asyncio.create_task(worker.run())
        ending = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
        while not (await asyncio.wait([ending], timeout=0.02))[0]:
            recorded.append((time.time(), worker.metrics.commands_settled))
        await worker.stop(5)
        await running
    print(*(f"{moment} {count}" for moment, count in recorded), sep="\n", flush=True)


class Fleet:
    """Worker processes, started together; afterwards, what they did."""

    def __init__(self, url: str, domain: str, journal: Path, processes: int, concurrency: int) -> None:
        command = [
            sys.executable,
            "-m",
            "bench.limits",
            "--worker",
            url,
            domain,
            str(journal),
            str(concurrency),
        ]
        self._started = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for _ in range(processes)
        ]
        self.rate = 0.0

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
        steps: list[tuple[float, int]] = []
        for process in self._started:
            assert process.stdout is not None
            before = 0
            for line in process.stdout.read().splitlines():
                moment, count = line.split()
                steps.append((float(moment), int(count) - before))
                before = int(count)
            process.wait(60)
        self.rate = _middle_rate(sorted(steps))


def _middle_rate(steps: list[tuple[float, int]]) -> float:
    """Commands per second without the first tenth of them and the last, from moments and what was
    recorded since the one before."""
    total, done = sum(count for _, count in steps), 0
    middle: list[tuple[float, int]] = []
    for moment, count in steps:
        done += count
        if total * 0.1 <= done <= total * 0.9:
            middle.append((moment, done))
    return (middle[-1][1] - middle[0][1]) / (middle[-1][0] - middle[0][0]) if total else 0.0


def throughput(bus: SyncCommandBus, domain: str, count: int, start: Callable[[str], Fleet]) -> float:
    """Commands per second, from a backlog, timed by the workers themselves."""
    wanted = bus.stats(domain, cap=1).completed + count
    for first in range(0, count, 1_000):
        numbers = range(first, min(count, first + 1_000))
        keys = [f"k{n % KEYS}" if domain == KEYED else None for n in numbers]
        bus.send_many(
            [SendRequest(domain, "work", n, group_key=k) for n, k in zip(numbers, keys, strict=True)]
        )
    deadline = time.monotonic() + 300
    with start(domain) as fleet:
        # Rarely: looking costs the server something, too.
        while bus.stats(domain, cap=1).completed < wanted:
            assert time.monotonic() < deadline, bus.stats(domain)
            time.sleep(0.25)
    return fleet.rate


def measure(url: str, options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder, SyncCommandBus(url, migrate=True) as bus:
        journal = Path(folder) / "journal"

        def start(domain: str) -> Fleet:
            return Fleet(url, domain, journal, options.processes, options.concurrency)

        found: dict[str, list[float]] = {PLAIN: [], KEYED: []}
        for turn in range(options.repeat):
            for domain in (PLAIN, KEYED) if turn % 2 == 0 else (KEYED, PLAIN):
                rate = throughput(bus, domain, options.commands, start)
                found[domain].append(rate)
                print(f"[{turn + 1}/{options.repeat}] {domain}: {rate:,.0f}/s", flush=True)
        # Of one turn each: a machine is not equally fast all the time.
        kept = median(keyed / plain for plain, keyed in zip(*found.values(), strict=True))
        print(f"one at a time per key over {KEYS} keys costs {1 - kept:.0%} (at most 30 %)")
        rates(bus, journal, start, options.commands)


def rates(bus: SyncCommandBus, journal: Path, start: Callable[[str], Fleet], count: int) -> None:
    alone = throughput(bus, LIMITED, count, start)
    bus.set_limit(LIMITED, "mail", rate=RATE)
    # Waiting for its tokens beside all of the others.
    bus.send_many([SendRequest(LIMITED, "mail", n) for n in range(RATE * (SECONDS + 20))])
    beside = throughput(bus, LIMITED, count, start)
    print(
        f"another type: {beside:,.0f}/s beside a limited one, {alone:,.0f}/s alone: "
        f"{beside / alone:.0%}"
    )
    journal.unlink(missing_ok=True)
    with start(LIMITED):
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
        url, domain, journal, concurrency = sys.argv[2:]
        asyncio.run(work(url, domain, journal, int(concurrency)))
        return
    parser = argparse.ArgumentParser(prog="python -m bench.limits", description=__doc__)
    parser.add_argument("--url", help="a database to use; default: a PostgreSQL server of its own")
    parser.add_argument("--sqlite", action="store_true", help="a SQLite file of its own")
    parser.add_argument("--commands", type=int, default=100_000)
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
