"""How soon an urgent command begins while a backlog of others is drained: `python -m bench.urgent`.

    python -m bench.urgent                        SQLite, both runtimes
    python -m bench.urgent --url postgresql://…   a database with the schema of the bus
    python -m bench.urgent --server               a private PostgreSQL with durable settings
    python -m bench.urgent --server --bare --backlog 1000000

One process drains, another sends a command of high priority every 20 ms. Measured is the time from the
moment before the send to the start of the handler; the send's own commit is a part of it, and shown.
`--bare` sends to a third process as well, in turn with the commands: one INSERT with NOTIFY, answered
by one DELETE, without a bus and without a queue before it. That is what processes and server need for
a commit and a claim beside this drain. `python -m bench --scenarios urgent` measures the same beside
peers.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg

from bench.figures import percentile
from commandbus import CommandBus, HandlerRegistry, SendRequest, Worker, new_event_loop
from commandbus.engines.postgres.schema import upgrade
from commandbus.sync import SyncCommandBus, SyncWorker
from commandbus.testing.postgres import PostgresServer, create_database

DOMAIN = "bench"
URGENT, NORMAL = "urgent", "normal"
CHUNK = 20_000
PAUSE = 0.02
LATE: list[float] = []


def registry_of(runtime: str, seconds: float) -> HandlerRegistry:
    registry = HandlerRegistry()

    def urgent(command: Any, context: Any) -> None:
        LATE.append(time.monotonic() - command.data)

    async def wait(command: Any, context: Any) -> None:
        await asyncio.sleep(seconds)

    async def work(command: Any, context: Any) -> None:
        return

    def block(command: Any, context: Any) -> None:
        time.sleep(seconds)

    registry.register(DOMAIN, URGENT, urgent)
    if runtime == "threads":
        registry.register(DOMAIN, NORMAL, block)
    else:
        registry.register(DOMAIN, NORMAL, wait if seconds else work)
    return registry


def work(runtime: str, url: str, concurrency: int, seconds: float) -> None:
    """A worker process, until its input ends; then it says how late the urgent ones were."""
    registry = registry_of(runtime, seconds)

    async def run() -> int:
        async with CommandBus(url) as bus:
            worker = Worker(bus, DOMAIN, registry, concurrency=concurrency)
            running = asyncio.create_task(worker.run())
            await asyncio.to_thread(sys.stdin.read)
            await worker.stop(1)
            await running
            return worker.metrics.commands_settled

    if runtime == "asyncio":
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            settled = runner.run(run())
    else:
        with SyncCommandBus(url) as bus:
            sync_worker = SyncWorker(bus, DOMAIN, registry, concurrency=concurrency)
            with sync_worker:
                sys.stdin.read()
            settled = sync_worker.metrics.commands_settled
    print(json.dumps({"late": LATE, "settled": settled}))


def listen(url: str) -> None:
    """The bare process, until its input ends."""
    late: list[float] = []
    with (
        psycopg.connect(url, autocommit=True) as ear,
        psycopg.connect(url, autocommit=True, prepare_threshold=0) as hand,
    ):
        ear.execute("listen bare")
        print("ready", flush=True)
        while True:
            for _ in ear.notifies(timeout=5):
                for (at,) in hand.execute("delete from bare returning at").fetchall():
                    if at < 0:
                        print(json.dumps({"late": late}))
                        return
                    late.append(time.monotonic() - at)


class Bare:
    """Sends to it. A time below 0 ends it."""

    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True, prepare_threshold=0)
        self._connection.execute("create table bare (at double precision)")
        command = (sys.executable, "-m", "bench.urgent", "--listen", "--url", url)
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self._process.stdout.readline()

    def send(self, at: float) -> None:
        self._connection.execute(
            "with new as (insert into bare values (%s)) select pg_notify('bare', '')", (at,)
        )

    def end(self) -> list[float]:
        self.send(-1.0)
        out, _ = self._process.communicate(timeout=30)
        self._connection.close()
        late: list[float] = json.loads(out)["late"]
        return late


def measure(runtime: str, url: str, options: argparse.Namespace) -> None:
    with SyncCommandBus(url) as bus:
        for begin in range(0, options.backlog, CHUNK):
            count = min(CHUNK, options.backlog - begin)
            bus.send_many(SendRequest(DOMAIN, NORMAL, priority="low") for _ in range(count))
        worker = subprocess.Popen(
            [
                *(sys.executable, "-m", "bench.urgent", "--work", runtime, "--url", url),
                *("--concurrency", str(options.concurrency), "--handler", str(options.handler)),
                *("--switch-interval", str(options.switch_interval)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        before = bus.stats(DOMAIN)
        while bus.stats(DOMAIN).completed == before.completed:
            time.sleep(0.05)
        sends: list[float] = []
        bare = Bare(url) if options.bare else None
        began = time.monotonic()
        while time.monotonic() < began + options.seconds:
            at = time.monotonic()
            bus.send(DOMAIN, URGENT, at, priority="high")
            sends.append(time.monotonic() - at)
            time.sleep(PAUSE)
            if bare is not None:
                bare.send(time.monotonic())
                time.sleep(PAUSE)
        left = bus.stats(DOMAIN).ready
        out, _ = worker.communicate(b"", 60)
        found = json.loads(out)
        bare_late = [1_000 * one for one in bare.end()] if bare is not None else []
    late = [1_000 * one for one in found["late"]]
    sent = [1_000 * one for one in sends]
    rate = found["settled"] / (time.monotonic() - began)
    print(
        f"{url.partition(':')[0]} {runtime}: start p50 {percentile(late, 0.5):.1f} ms, p99"
        f" {percentile(late, 0.99):.1f} ms ({len(late)} commands); send p50"
        f" {percentile(sent, 0.5):.1f} ms, p99 {percentile(sent, 0.99):.1f} ms; drained about"
        f" {rate:,.0f}/s, {left:,} left",
        flush=True,
    )
    if bare_late:
        print(
            "bare INSERT, NOTIFY and DELETE, in turn with them:"
            f" p50 {percentile(bare_late, 0.5):.1f} ms, p99 {percentile(bare_late, 0.99):.1f} ms",
            flush=True,
        )


def urls(options: argparse.Namespace, stack: contextlib.ExitStack) -> Iterator[str]:
    """A store for each runtime."""
    if not options.server:
        while True:
            with tempfile.TemporaryDirectory() as folder:
                yield options.url or f"sqlite:///{Path(folder, 'bench.db')}"
    server = stack.enter_context(PostgresServer.start(durable=True, settings={"shared_buffers": "1GB"}))
    while True:
        url = create_database(server)
        upgrade(url)
        yield url


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.urgent",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--url", help="the store; without it an SQLite file for each runtime")
    parser.add_argument("--runtimes", default="asyncio,threads")
    parser.add_argument("--backlog", type=int, default=300_000)
    parser.add_argument("--concurrency", type=int, default=100)
    parser.add_argument("--handler", type=float, default=0.0, help="seconds that a handler waits (0)")
    parser.add_argument("--seconds", type=float, default=5.0, help="of sending (5)")
    parser.add_argument("--switch-interval", type=float, default=sys.getswitchinterval())
    parser.add_argument("--server", action="store_true", help="a private PostgreSQL")
    parser.add_argument("--bare", action="store_true", help="beside a bare process, on PostgreSQL")
    parser.add_argument("--listen", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--work", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        sys.setswitchinterval(options.switch_interval)
        work(options.work, options.url, options.concurrency, options.handler)
        return
    if options.listen:
        listen(options.url)
        return
    if options.bare and not (options.server or options.url):
        parser.error("--bare needs PostgreSQL: --server or --url")
    with contextlib.ExitStack() as stack:
        for runtime, url in zip(options.runtimes.split(","), urls(options, stack), strict=False):
            measure(runtime, url, options)


if __name__ == "__main__":
    main()
