"""`python -m bench.runtimes`: threads beside asyncio, on the same PostgreSQL work.

A private server with durable settings; for each concurrency and handler, both runtimes drain a fresh
database of the same commands, turn by turn, and the ratio of the medians is printed: 1.00 means that
threads are as fast. Handlers do nothing (`noop`), make one system call (`call`, as handlers do that
write somewhere: threads give up the interpreter in it), or wait so many milliseconds (`1ms`).
`--profile threads` prints where that runtime spends its time instead. `--bare` measures threads and
tasks without a bus in their place, which compute for 20 µs and run the handler: their ratio is what the
interpreter allows.
"""

import argparse
import asyncio
import cProfile
import itertools
import os
import pstats
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

from bench.postgres import fill
from commandbus import CommandBus, HandlerRegistry, Worker
from commandbus.engines.postgres.schema import upgrade
from commandbus.sync import SyncCommandBus, SyncWorker
from commandbus.testing.postgres import PostgresServer, create_database, drop_database

DOMAIN, TYPE = "bench", "noop"
COMPUTE = 20e-6
"""Seconds that a command without a bus computes: about what one costs a worker."""


class Begun:
    """When the first handler began."""

    at: float | None = None

    def mark(self) -> None:
        if self.at is None:
            self.at = time.perf_counter()


class Act:
    """What a handler does: nothing, one system call, or a wait."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.seconds = float(name.removesuffix("ms")) / 1000 if name.endswith("ms") else 0.0
        self.file = tempfile.TemporaryFile() if name == "call" else None  # noqa: SIM115 - for all runs

    def call(self) -> None:
        if self.file is not None:
            os.pwrite(self.file.fileno(), b"0123456789abcdef", 0)


def acts(text: str) -> Act:
    if text in ("noop", "call") or text.removesuffix("ms").isdecimal():
        return Act(text)
    raise argparse.ArgumentTypeError(f"{text!r} is none of noop, call and 1ms")


async def drain_asyncio(url: str, count: int, concurrency: int, act: Act) -> float:
    registry, begun = HandlerRegistry(), Begun()

    @registry.handler(DOMAIN, TYPE)
    async def work(command: Any, context: Any) -> None:
        begun.mark()
        act.call()
        if act.seconds:
            await asyncio.sleep(act.seconds)

    async with CommandBus(url) as bus:
        worker = Worker(bus, DOMAIN, registry, concurrency=concurrency)
        running = asyncio.create_task(worker.run())
        while worker.metrics.commands_settled < count:
            await asyncio.sleep(0.002)
        ended = time.perf_counter()
        await worker.stop()
        await running
    assert begun.at is not None
    return count / (ended - begun.at)


def drain_threads(url: str, count: int, concurrency: int, act: Act) -> float:
    registry, begun = HandlerRegistry(), Begun()

    @registry.handler(DOMAIN, TYPE)
    def work(command: Any, context: Any) -> None:
        begun.mark()
        act.call()
        if act.seconds:
            time.sleep(act.seconds)

    with SyncCommandBus(url) as bus:
        worker = SyncWorker(bus, DOMAIN, registry, concurrency=concurrency)
        running = threading.Thread(target=worker.run)
        running.start()
        while worker.metrics.commands_settled < count:
            time.sleep(0.002)
        ended = time.perf_counter()
        worker.stop()
        running.join()
    assert begun.at is not None
    return count / (ended - begun.at)


def bare_threads(count: int, concurrency: int, act: Act, busy: float) -> float:
    """Threads that take turns at counting, compute and run the handler."""
    numbers = itertools.count()

    def work() -> None:
        while next(numbers) < count:
            compute(busy)
            act.call()
            if act.seconds:
                time.sleep(act.seconds)

    threads = [threading.Thread(target=work) for _ in range(concurrency)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return count / (time.perf_counter() - began)


async def bare_tasks(count: int, concurrency: int, act: Act, busy: float) -> float:
    """The same for tasks of one loop."""
    numbers = itertools.count()

    async def work() -> None:
        while next(numbers) < count:
            compute(busy)
            act.call()
            if act.seconds:
                await asyncio.sleep(act.seconds)

    began = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(concurrency)))
    return count / (time.perf_counter() - began)


def compute(seconds: float) -> None:
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


def compare_bare(options: argparse.Namespace) -> None:
    def run(runtime: str, count: int, concurrency: int, act: Act) -> float:
        if runtime == "threads":
            return bare_threads(count, concurrency, act, options.compute)
        return asyncio.run(bare_tasks(count, concurrency, act, options.compute))

    table(run, options)


def amount(commands: int, concurrency: int, seconds: float) -> int:
    """As many as keep a run to a few seconds."""
    if not seconds:
        return commands
    return min(commands, int(4 * concurrency / seconds))


def compare(fresh: Callable[[], str], options: argparse.Namespace) -> None:
    def run(runtime: str, count: int, concurrency: int, act: Act) -> float:
        url = fresh()
        fill(url, count)
        if runtime == "threads":
            return drain_threads(url, count, concurrency, act)
        return asyncio.run(drain_asyncio(url, count, concurrency, act))

    table(run, options)


def table(run: Callable[[str, int, int, Act], float], options: argparse.Namespace) -> None:
    """Turn by turn; medians, and their ratio."""
    print(f"{'handler':<8}{'slots':>6}{'asyncio/s':>12}{'threads/s':>12}{'ratio':>8}", flush=True)
    for act in options.handlers:
        for concurrency in options.slots:
            count = amount(options.commands, concurrency, act.seconds)
            rates: dict[str, list[float]] = {"asyncio": [], "threads": []}
            for _ in range(options.repeat):
                for runtime, found in rates.items():
                    found.append(run(runtime, count, concurrency, act))
            one, other = (statistics.median(rates[name]) for name in ("asyncio", "threads"))
            figures = f"{one:>12,.0f}{other:>12,.0f}{other / one:>8.2f}"
            print(f"{act.name:<8}{concurrency:>6}{figures}", flush=True)


def profile(fresh: Callable[[], str], options: argparse.Namespace) -> None:
    """All threads of one runtime, by time of their own."""
    url, profiles = fresh(), []
    fill(url, options.commands)
    plain_run = threading.Thread.run

    def profiled(thread: threading.Thread) -> None:
        found = cProfile.Profile()
        profiles.append(found)
        found.runcall(plain_run, thread)

    threading.Thread.run = profiled  # type: ignore[method-assign, assignment]
    try:
        if options.profile == "threads":
            drain_threads(url, options.commands, options.slots[-1], options.handlers[0])
        else:
            main = cProfile.Profile()
            profiles.append(main)
            draining = drain_asyncio(url, options.commands, options.slots[-1], options.handlers[0])
            main.runcall(asyncio.run, draining)
    finally:
        threading.Thread.run = plain_run  # type: ignore[method-assign]
    total = pstats.Stats(profiles[0])
    for found in profiles[1:]:
        total.add(found)
    total.sort_stats("tottime").print_stats(35)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.runtimes", description=__doc__)
    parser.add_argument("--commands", type=int, default=30_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--slots", type=int, nargs="+", default=[4, 16, 100])
    known = [Act(name) for name in ("noop", "call", "1ms")]
    parser.add_argument("--handlers", type=acts, nargs="+", default=known)
    parser.add_argument("--switch-interval", type=float, default=sys.getswitchinterval())
    parser.add_argument("--bare", action="store_true", help="without a bus")
    parser.add_argument("--compute", type=float, default=COMPUTE, help="seconds, with --bare")
    parser.add_argument("--profile", choices=["threads", "asyncio"])
    options = parser.parse_args()
    sys.setswitchinterval(options.switch_interval)
    sys.dont_write_bytecode = False  # an installed program is compiled
    if options.bare:
        compare_bare(options)
        return
    with PostgresServer.start(durable=True) as server:
        made: list[str] = []

        def fresh() -> str:
            while made:
                drop_database(server, made.pop())
            url = create_database(server)
            upgrade(url)
            made.append(url)
            return url

        (profile if options.profile else compare)(fresh, options)


if __name__ == "__main__":
    main()
