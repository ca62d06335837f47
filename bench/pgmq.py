"""`python -m bench.pgmq`: the PGMQ transport beside the engine's own tables, in one run.

Both drain the same number of no-op commands from a fresh database of one private server, with fsync and
synchronous_commit on, turn by turn, so that whatever else the machine does hits both alike. A bare loop
of the package `pgmq` (read and delete, no worker) shows what PGMQ itself takes.
"""

import argparse
import asyncio
import statistics
import threading
import time
from typing import Any

import psycopg

from commandbus import CommandBus, HandlerRegistry, SendRequest, Worker
from commandbus.engines.postgres.pgmq.installation import install
from commandbus.engines.postgres.schema import upgrade
from commandbus.sync import SyncCommandBus, SyncWorker
from commandbus.testing.postgres import PostgresServer, create_database, drop_database

DATA = {"text": "x" * 80}
BULK = 1_000
LOOP_SIZE = 100


def fill(url: str, count: int, transport: str | None) -> float:
    with SyncCommandBus(url, transport=transport) as bus:
        began = time.perf_counter()
        for first in range(0, count, BULK):
            size = min(BULK, count - first)
            bus.send_many([SendRequest("bench", "noop", DATA) for _ in range(size)])
        return count / (time.perf_counter() - began)


async def drain_asyncio(url: str, count: int, concurrency: int, transport: str | None) -> float:
    registry, marks = HandlerRegistry(), []

    @registry.handler("bench", "noop")
    async def noop(command: Any, context: Any) -> None:
        if not marks:
            marks.append(time.perf_counter())

    async with CommandBus(url, transport=transport) as bus:
        worker = Worker(bus, "bench", registry, concurrency=concurrency)
        running = asyncio.create_task(worker.run())
        while worker.metrics.commands_settled < count:
            await asyncio.sleep(0.002)
        ended = time.perf_counter()
        await worker.stop()
        await running
    return count / (ended - marks[0])


def drain_threads(url: str, count: int, concurrency: int, transport: str | None) -> float:
    registry, marks = HandlerRegistry(), []

    @registry.handler("bench", "noop")
    def noop(command: Any, context: Any) -> None:
        if not marks:
            marks.append(time.perf_counter())

    with SyncCommandBus(url, transport=transport) as bus:
        worker = SyncWorker(bus, "bench", registry, concurrency=concurrency)
        running = threading.Thread(target=worker.run)
        running.start()
        while worker.metrics.commands_settled < count:
            time.sleep(0.002)
        ended = time.perf_counter()
        worker.stop()
        running.join()
    return count / (ended - marks[0])


def bare_loop(url: str, count: int) -> float:
    """pgmq.read and pgmq.delete by array, nothing else."""
    with psycopg.connect(url, autocommit=True, prepare_threshold=0) as connection:
        began, left = time.perf_counter(), count
        while left:
            rows = connection.execute(
                "select msg_id from pgmq.read('bench__commands', 30, %s)", (LOOP_SIZE,)
            ).fetchall()
            connection.execute(
                "select pgmq.delete('bench__commands', %s::bigint[])", ([row[0] for row in rows],)
            )
            left -= len(rows)
        return count / (time.perf_counter() - began)


class Bench:
    def __init__(self, server: PostgresServer, commands: int) -> None:
        self.server = server
        self.commands = commands
        self.figures: dict[str, list[float]] = {}

    def fresh(self, transport: str | None) -> str:
        url = create_database(self.server)
        (install if transport else upgrade)(url)
        return url

    def turn(self, concurrency: int) -> None:
        for transport in (None, "pgmq"):
            name = transport or "native"
            for runtime in ("asyncio", "threads"):
                url = self.fresh(transport)
                self.add(f"bulk send, {name}", fill(url, self.commands, transport))
                if runtime == "asyncio":
                    rate = asyncio.run(drain_asyncio(url, self.commands, concurrency, transport))
                else:
                    rate = drain_threads(url, self.commands, concurrency, transport)
                self.add(f"drain {runtime} c{concurrency}, {name}", rate)
                drop_database(self.server, url)
        url = self.fresh("pgmq")
        fill(url, self.commands, "pgmq")
        self.add(f"bare loop of read and delete, {LOOP_SIZE} at a time", bare_loop(url, self.commands))
        drop_database(self.server, url)

    def add(self, name: str, value: float) -> None:
        self.figures.setdefault(name, []).append(value)
        print(f"{name:<52} {value:>10,.0f}/s", flush=True)

    def show(self) -> None:
        print()
        median = {name: statistics.median(values) for name, values in self.figures.items()}
        for name, values in self.figures.items():
            ratio = ""
            if name.endswith("pgmq"):
                share = median[name] / median[name.replace("pgmq", "native")]
                ratio = f"{share:.0%} of the native engine"
            spread = f"{min(values):,.0f}..{max(values):,.0f}"
            print(f"{name:<52} {median[name]:>10,.0f}/s  {spread}  {ratio}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.pgmq", description=__doc__)
    parser.add_argument("--commands", type=int, default=50_000)
    parser.add_argument("--concurrency", type=int, default=100)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    server = PostgresServer.start(durable=True, settings={"shared_buffers": "1GB"})
    with server:
        bench = Bench(server, options.commands)
        for _ in range(options.repeat):
            bench.turn(options.concurrency)
        bench.show()


if __name__ == "__main__":
    main()
