"""`python -m bench.runtimes`: threads beside asyncio, on the same PostgreSQL work.

A private server with durable settings; for each concurrency and handler, both runtimes drain a fresh
database of the same commands, turn by turn, and the ratio of the medians is printed: 1.00 means that
threads are as fast. `--profile threads` prints where that runtime spends its time instead.
"""

import argparse
import asyncio
import cProfile
import pstats
import statistics
import sys
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


class Begun:
    """When the first handler began."""

    at: float | None = None

    def mark(self) -> None:
        if self.at is None:
            self.at = time.perf_counter()


async def drain_asyncio(url: str, count: int, concurrency: int, seconds: float) -> float:
    registry, begun = HandlerRegistry(), Begun()

    @registry.handler(DOMAIN, TYPE)
    async def work(command: Any, context: Any) -> None:
        begun.mark()
        if seconds:
            await asyncio.sleep(seconds)

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


def drain_threads(url: str, count: int, concurrency: int, seconds: float) -> float:
    registry, begun = HandlerRegistry(), Begun()

    @registry.handler(DOMAIN, TYPE)
    def work(command: Any, context: Any) -> None:
        begun.mark()
        if seconds:
            time.sleep(seconds)

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


def amount(commands: int, concurrency: int, seconds: float) -> int:
    """As many as keep a run to a few seconds."""
    if not seconds:
        return commands
    return min(commands, int(4 * concurrency / seconds))


def compare(fresh: Callable[[], str], options: argparse.Namespace) -> None:
    print(f"{'handler':<8}{'slots':>6}{'asyncio/s':>12}{'threads/s':>12}{'ratio':>8}", flush=True)
    for seconds in (milliseconds / 1000 for milliseconds in options.milliseconds):
        for concurrency in options.slots:
            count = amount(options.commands, concurrency, seconds)
            rates: dict[str, list[float]] = {"asyncio": [], "threads": []}
            for _ in range(options.repeat):
                for runtime, found in rates.items():
                    url = fresh()
                    fill(url, count)
                    if runtime == "asyncio":
                        found.append(asyncio.run(drain_asyncio(url, count, concurrency, seconds)))
                    else:
                        found.append(drain_threads(url, count, concurrency, seconds))
            one, other = (statistics.median(rates[name]) for name in ("asyncio", "threads"))
            name = f"{seconds * 1000:g} ms" if seconds else "no-op"
            print(
                f"{name:<8}{concurrency:>6}{one:>12,.0f}{other:>12,.0f}{other / one:>8.2f}", flush=True
            )


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
            drain_threads(url, options.commands, options.slots[-1], 0.0)
        else:
            main = cProfile.Profile()
            profiles.append(main)
            main.runcall(asyncio.run, drain_asyncio(url, options.commands, options.slots[-1], 0.0))
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
    parser.add_argument("--slots", type=int, nargs="+", default=[4, 16, 64])
    parser.add_argument("--milliseconds", type=float, nargs="+", default=[0, 5])
    parser.add_argument("--switch-interval", type=float, default=sys.getswitchinterval())
    parser.add_argument("--profile", choices=["threads", "asyncio"])
    options = parser.parse_args()
    sys.setswitchinterval(options.switch_interval)
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
