"""`python -m bench.postgres [name …]`: the figures of the PostgreSQL engine, on durable settings.

A private server is started with fsync and synchronous_commit on, and each figure gets a fresh database.
Names: drain, bulk, single, wake, idle, snapshot, backlog, processes, governor, memory, million; without
any, all.
"""

import argparse
import asyncio
import multiprocessing
import re
import resource
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg

from commandbus import CommandBus, HandlerRegistry, SendRequest, Worker
from commandbus.engines.postgres.pgmq.installation import install
from commandbus.engines.postgres.schema import upgrade
from commandbus.processes import Chain
from commandbus.sync import SyncCommandBus, SyncWorker
from commandbus.testing.postgres import PostgresServer, create_database, drop_database

DATA = {"text": "x" * 80}
IDLE_WORKERS = 4
IDLE_SETTLE_SECONDS = 20.0
"""After its start, or after other workers held leases, a worker looks for those for 16 s."""


def show(name: str, value: float, unit: str, more: str = "") -> None:
    print(f"{name:<44} {value:>12,.2f} {unit:<10} {more}", flush=True)


def fill(url: str, count: int, bulk: int = 1_000, **options: Any) -> float:
    with SyncCommandBus(url) as bus:
        began = time.perf_counter()
        for first in range(0, count, bulk):
            size = min(bulk, count - first)
            bus.send_many([SendRequest("bench", "noop", DATA, **options) for _ in range(size)])
        return time.perf_counter() - began


class Progress:
    """When which handler began: the rate is from the first of them to the last durable outcome."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.begun = 0
        self.marks: list[float] = []

    def tick(self) -> None:
        self.begun += 1
        if self.begun == 1 or self.begun % (self.count // 10) == 0:
            self.marks.append(time.perf_counter())


async def drain_async(url: str, count: int, concurrency: int) -> tuple[float, Progress]:
    registry, progress = HandlerRegistry(), Progress(count)

    @registry.handler("bench", "noop")
    async def noop(command: Any, context: Any) -> None:
        progress.tick()

    async with CommandBus(url) as bus:
        worker = Worker(bus, "bench", registry, concurrency=concurrency)
        running = asyncio.create_task(worker.run())
        while worker.metrics.commands_settled < count:
            await asyncio.sleep(0.002)
        ended = time.perf_counter()
        await worker.stop()
        await running
    return count / (ended - progress.marks[0]), progress


def drain_threads(url: str, count: int, concurrency: int) -> tuple[float, Progress]:
    registry, progress = HandlerRegistry(), Progress(count)

    @registry.handler("bench", "noop")
    def noop(command: Any, context: Any) -> None:
        progress.tick()

    with SyncCommandBus(url) as bus:
        worker = SyncWorker(bus, "bench", registry, concurrency=concurrency)
        running = threading.Thread(target=worker.run)
        running.start()
        while worker.metrics.commands_settled < count:
            time.sleep(0.002)
        ended = time.perf_counter()
        worker.stop()
        running.join()
    return count / (ended - progress.marks[0]), progress


def bench_drain(fresh: Callable[[], str], commands: int) -> None:
    for concurrency in (10, 100):
        url = fresh()
        fill(url, commands)
        rate, _ = asyncio.run(drain_async(url, commands, concurrency))
        show(f"drain asyncio c{concurrency}", rate, "commands/s")
    for concurrency in (10, 100):
        url = fresh()
        fill(url, commands)
        rate, _ = drain_threads(url, commands, concurrency)
        show(f"drain threads c{concurrency}", rate, "commands/s")


def bench_bulk(fresh: Callable[[], str], commands: int) -> None:
    show("bulk send, 1,000 a call", commands / fill(fresh(), commands), "commands/s")
    show("bulk send, 10,000 a call", commands / fill(fresh(), commands, 10_000), "commands/s")
    for size in (1, 5, 10, 20, 40, 80, 200):
        with SyncCommandBus(fresh()) as bus:
            requests = [SendRequest("bench", "noop", DATA) for _ in range(size)]
            rounds = max(20, min(300, 4_000 // size))
            began = time.perf_counter()
            for _ in range(rounds):
                bus.send_many(requests)
            took = time.perf_counter() - began
        show(f"send_many of {size}", size * rounds / took, "commands/s")


def bare_inserts(dsn: str, seconds: float, senders: int) -> float:
    """One-row inserts of the same bytes into one indexed table, a commit each."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("create table bare (id bigserial primary key, domain text, data text)")
    counts = [0] * senders

    def work(number: int) -> None:
        with psycopg.connect(dsn, autocommit=True, prepare_threshold=0) as connection:
            until = time.perf_counter() + seconds
            while time.perf_counter() < until:
                connection.execute(
                    "insert into bare (domain, data) values (%s, %s)", ("bench", "x" * 100)
                )
                counts[number] += 1

    return _in_threads(work, senders, counts, seconds)


def single_sends(url: str, seconds: float, senders: int) -> float:
    counts = [0] * senders
    with SyncCommandBus(url) as bus:
        bus.send("bench", "noop", DATA)

        def work(number: int) -> None:
            until = time.perf_counter() + seconds
            while time.perf_counter() < until:
                bus.send("bench", "noop", DATA)
                counts[number] += 1

        return _in_threads(work, senders, counts, seconds)


async def single_sends_async(url: str, seconds: float, senders: int) -> float:
    async with CommandBus(url) as bus:
        await bus.send("bench", "noop", DATA)
        count = 0

        async def work() -> None:
            nonlocal count
            until = time.perf_counter() + seconds
            while time.perf_counter() < until:
                await bus.send("bench", "noop", DATA)
                count += 1

        began = time.perf_counter()
        await asyncio.gather(*(work() for _ in range(senders)))
        return count / (time.perf_counter() - began)


def _in_threads(work: Any, senders: int, counts: list[int], seconds: float) -> float:
    threads = [threading.Thread(target=work, args=(number,)) for number in range(senders)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.perf_counter() - began)


def bench_single(fresh: Callable[[], str], seconds: float = 3.0) -> None:
    for senders in (1, 16):
        bare = bare_inserts(fresh(), seconds, senders)
        show(f"bare INSERT, {senders} connections", bare, "commits/s")
        rate = single_sends(fresh(), seconds, senders)
        show(
            f"single sends threads, {senders} senders", rate, "commands/s", f"{rate / bare:.0%} of bare"
        )
        rate = asyncio.run(single_sends_async(fresh(), seconds, senders))
        show(
            f"single sends asyncio, {senders} senders", rate, "commands/s", f"{rate / bare:.0%} of bare"
        )


def _wake_worker(url: str, started: Any, results: Any) -> None:
    """A worker in a process of its own: it hears of sends by NOTIFY only."""

    async def main() -> None:
        registry = HandlerRegistry()
        registry.process(Chain)  # with a router beside its handlers

        @registry.handler("bench", "noop")
        async def noop(command: Any, context: Any) -> None:
            results.put(time.monotonic())

        async with CommandBus(url) as bus:
            worker = Worker(bus, "bench", registry, concurrency=4)
            running = asyncio.create_task(worker.run())
            while not worker._core.idle:
                await asyncio.sleep(0.01)
            started.set()
            await running

    asyncio.run(main())


def bench_wake(fresh: Callable[[], str], rounds: int = 300) -> None:
    url = fresh()
    context = multiprocessing.get_context("spawn")
    started, results = context.Event(), context.SimpleQueue()
    process = context.Process(target=_wake_worker, args=(url, started, results), daemon=True)
    process.start()
    started.wait(30)
    for name, delay in (("wake, other process", 0.0), ("delayed by 0.1 s, start after due", 0.1)):
        late: list[float] = []
        with SyncCommandBus(url) as bus:
            for _ in range(rounds if not delay else 40):
                time.sleep(0.01)
                began = time.monotonic()
                bus.send("bench", "noop", DATA, delay=delay or None)
                late.append((results.get() - began - delay) * 1000)
        late.sort()
        p99 = late[int(len(late) * 0.99)]
        show(f"{name} p50", statistics.median(late), "ms", f"p99 {p99:.1f} ms, least {late[0]:.1f} ms")
    process.terminate()
    process.join()


def bench_idle(fresh: Callable[[], str], log: Path, seconds: float) -> None:
    """Four idle workers with routers, each in a process of its own, over either transport. Counted in
    the server's log: its statistics would count autovacuum, too."""
    url = fresh()
    install(url)
    context = multiprocessing.get_context("spawn")
    for name, transport in (("idle", ""), ("idle over PGMQ", "&transport=pgmq")):
        processes = []
        for _ in range(IDLE_WORKERS):
            started, results = context.Event(), context.SimpleQueue()
            arguments = (url + transport, started, results)
            processes.append(context.Process(target=_wake_worker, args=arguments, daemon=True))
            processes[-1].start()
            started.wait(30)
        time.sleep(IDLE_SETTLE_SECONDS)
        statements = _logged(url, log, seconds)
        more = f"{len(statements)} in all"
        show(f"{name}, {IDLE_WORKERS} workers, {seconds:g} s", len(statements) / seconds, "/s", more)
        for text, count in Counter(statements).most_common(10):
            print(f"    {count} × {text}", flush=True)
        for process in processes:
            process.terminate()
            process.join()


def _logged(url: str, log: Path, seconds: float) -> list[str]:
    """The statements of buses in so many seconds."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("alter system set log_line_prefix = '%a|'")
        connection.execute("alter system set log_min_duration_statement = 0")
        connection.execute("select pg_reload_conf()")
        time.sleep(1)
        begun = log.stat().st_size
        time.sleep(seconds)
        lines = log.read_text(encoding="utf-8", errors="replace")[begun:].splitlines()
        connection.execute("alter system reset log_min_duration_statement")
        connection.execute("select pg_reload_conf()")
    found = [line for line in lines if line.startswith("commandbus") and " ms  " in line]
    return [
        re.sub(r".* ms  |\s+", " ", line)[:120]
        for line in found
        if " parse " not in line and " bind " not in line
    ]


def bench_snapshot(fresh: Callable[[], str], commands: int = 300_000) -> None:
    url = fresh()
    fill(url, commands)
    with psycopg.connect(url) as holder:
        holder.execute("set transaction isolation level repeatable read")
        holder.execute("select count(*) from commandbus.queue")
        rate, progress = asyncio.run(drain_async(url, commands, 100))
    steps = [b - a for a, b in zip(progress.marks, progress.marks[1:], strict=False)]
    share = steps[0] / steps[-1]
    show("drain under a held snapshot", rate, "commands/s", f"last tenth at {share:.0%} of the first")


def bench_backlog(fresh: Callable[[], str], ready: int = 1_000_000, later: int = 2_000_000) -> None:
    url = fresh()
    costs = []
    for is_full in (False, True):
        if is_full:
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute(
                    "insert into commandbus.queue (domain, priority, seq, available_at)"
                    " select 'bench', 5, n + 1000000, 0 from generate_series(1, %s) n",
                    (ready,),
                )
                connection.execute(
                    "insert into commandbus.scheduled (domain, due_at, seq, priority)"
                    " select 'bench', commandbus.now_us() + 3600000000 + n, n + 10000000, 5"
                    " from generate_series(1, %s) n",
                    (later,),
                )
        fill(url, 2_000, priority="high")
        with SyncCommandBus(url) as bus:
            worker = SyncWorker(bus, "bench")
            took = []
            for _ in range(100):
                began = time.perf_counter()
                worker.receive(10)
                took.append((time.perf_counter() - began) * 1000)
        costs.append(statistics.median(took))
    more = f"{costs[1] / costs[0]:.2f} x that of an almost empty table ({costs[0]:.2f} ms)"
    show(f"claim of 10, {ready:,} ready, {later:,} later", costs[1], "ms", more)


def _drain_process(url: str, begin: Any, claimed: Any) -> None:
    async def main() -> None:
        registry, count = HandlerRegistry(), 0

        @registry.handler("bench", "noop")
        async def noop(command: Any, context: Any) -> None:
            nonlocal count
            count += 1

        async with CommandBus(url) as bus:
            worker = Worker(bus, "bench", registry, concurrency=100)
            await asyncio.to_thread(begin.wait)
            running = asyncio.create_task(worker.run())
            while (await bus.stats("bench")).completed < (await bus.stats("bench")).depth + 1:
                await asyncio.sleep(0.02)
            while not worker._core.idle:
                await asyncio.sleep(0.005)
            await worker.stop()
            await running
        claimed.put((count, time.monotonic()))

    asyncio.run(main())


def bench_processes(fresh: Callable[[], str], commands: int = 50_000) -> None:
    context = multiprocessing.get_context("spawn")
    for processes in (1, 2, 4):
        url = fresh()
        fill(url, commands)
        begin, claimed = context.Barrier(processes + 1), context.SimpleQueue()
        started = [
            context.Process(target=_drain_process, args=(url, begin, claimed), daemon=True)
            for _ in range(processes)
        ]
        for process in started:
            process.start()
        begin.wait()
        began = time.monotonic()
        counts = [claimed.get() for _ in started]
        ended = max(moment for _, moment in counts)
        for process in started:
            process.join()
        total = sum(count for count, _ in counts)
        show(f"drain, {processes} processes", commands / (ended - began), "commands/s", f"{total} runs")


def bench_governor(fresh: Callable[[], str], seconds: float = 4.0) -> None:
    """16 senders in 4 processes while a worker is busy, with wake-ups and without."""
    context = multiprocessing.get_context("spawn")
    for switch in ("off", "on"):
        url = fresh() + f"&notify={switch}"
        fill(url, 100_000)
        begin, counts = context.Barrier(6), context.SimpleQueue()
        busy = context.Process(target=_busy_process, args=(url, begin), daemon=True)
        senders = [
            context.Process(target=_send_process, args=(url, begin, counts, seconds), daemon=True)
            for _ in range(4)
        ]
        for process in (busy, *senders):
            process.start()
        begin.wait()
        rate = sum(counts.get() for _ in senders) / seconds
        show(f"16 senders, busy worker, notify={switch}", rate, "commands/s")
        busy.terminate()
        for process in (busy, *senders):
            process.join()


def bench_memory(fresh: Callable[[], str], commands: int = 1_000_000) -> None:
    """The most that a worker process ever held while it drained a deep queue."""
    for runtime in ("asyncio", "threads"):
        url = fresh()
        fill(url, commands, 10_000)
        rate, megabytes = _in_process(_drain_measured, url, commands, runtime)
        show(f"worker draining {commands:,}, {runtime}", megabytes, "MB", f"{rate:,.0f} commands/s")


def bench_million(fresh: Callable[[], str], commands: int = 1_000_000) -> None:
    """A bulk send from an iterator, and a batch: each in one transaction."""
    for what in ("send_many", "create_batch"):
        rate, megabytes = _in_process(_send_measured, fresh(), commands, what)
        show(f"{what} of {commands:,}", rate, "commands/s", f"{megabytes:,.0f} MB at most")


def _in_process(target: Any, *arguments: Any) -> tuple[float, float]:
    """What a process of its own reports: a rate, and its peak memory."""
    context = multiprocessing.get_context("spawn")
    results = context.SimpleQueue()
    process = context.Process(target=target, args=(*arguments, results), daemon=True)
    process.start()
    answer: tuple[float, float] = results.get()
    process.join()
    return answer


def _peak_megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _drain_measured(url: str, commands: int, runtime: str, results: Any) -> None:
    if runtime == "asyncio":
        rate, _ = asyncio.run(drain_async(url, commands, 100))
    else:
        rate, _ = drain_threads(url, commands, 100)
    results.put((rate, _peak_megabytes()))


def _send_measured(url: str, commands: int, what: str, results: Any) -> None:
    with SyncCommandBus(url) as bus:
        began = time.perf_counter()
        if what == "send_many":
            sent = len(bus.send_many(SendRequest("bench", "noop", DATA) for _ in range(commands)))
        else:
            requests = (SendRequest("bench", "noop", DATA) for _ in range(commands))
            sent = bus.create_batch(requests).total
        assert sent == commands
        results.put((commands / (time.perf_counter() - began), _peak_megabytes()))


def _busy_process(url: str, begin: Any) -> None:
    async def main() -> None:
        registry = HandlerRegistry()

        @registry.handler("bench", "noop")
        async def noop(command: Any, context: Any) -> None:
            await asyncio.sleep(0.01)

        async with CommandBus(url) as bus:
            running = asyncio.create_task(Worker(bus, "bench", registry, concurrency=10).run())
            await asyncio.sleep(1)
            await asyncio.to_thread(begin.wait)
            await running

    asyncio.run(main())


def _send_process(url: str, begin: Any, counts: Any, seconds: float) -> None:
    begin.wait()
    counts.put(single_sends(url, seconds, 4) * seconds)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.postgres", description=__doc__)
    parser.add_argument("names", nargs="*", help="which figures")
    parser.add_argument("--commands", type=int, default=50_000)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--idle-seconds", type=float, default=300.0)
    options = parser.parse_args()
    server = PostgresServer.start(durable=True, settings={"shared_buffers": "1GB"})
    used: list[str] = []

    def fresh() -> str:
        for url in used:
            drop_database(server, url)
        used.clear()
        url = create_database(server)
        used.append(url)
        upgrade(url)
        return url

    print(f"PostgreSQL {server.binaries.version}, fsync and synchronous_commit on, shared_buffers 1 GB")
    figures: dict[str, Callable[[], None]] = {
        "drain": lambda: bench_drain(fresh, options.commands),
        "bulk": lambda: bench_bulk(fresh, options.commands),
        "single": lambda: bench_single(fresh),
        "wake": lambda: bench_wake(fresh),
        "idle": lambda: bench_idle(fresh, server._log, options.idle_seconds),
        "snapshot": lambda: bench_snapshot(fresh),
        "backlog": lambda: bench_backlog(fresh),
        "processes": lambda: bench_processes(fresh, options.commands),
        "governor": lambda: bench_governor(fresh),
        "memory": lambda: bench_memory(fresh),
        "million": lambda: bench_million(fresh),
    }
    with server:
        for _ in range(options.repeat):
            for name in options.names or figures:
                figures[name]()


if __name__ == "__main__":
    main()
