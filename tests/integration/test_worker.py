"""Workers over whole queues: fast because nothing waits, and right because nothing is done twice."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from commandbus import Command, HandlerRegistry, SendRequest
from commandbus.testing import Configuration, Harness, Recorder, eventually

ENGINES = ["memory", "sqlite"]
RUNTIMES = ["asyncio", "threads"]

# One worker process: says that it is ready, works until its input ends, then says what it has done.
# Every call waits until all ten processes have begun one, so none can be left without work.
WORKER_PROCESS = """
import asyncio, os, pathlib, sys, threading, time
from commandbus import CommandBus, HandlerRegistry, Worker
from commandbus.sync import SyncCommandBus, SyncWorker

runtime, url, folder = sys.argv[1:]
registry, done = HandlerRegistry(), []

@registry.handler("orders", "ship")
def ship(command, context):
    pathlib.Path(folder, str(os.getpid())).touch()
    while len(os.listdir(folder)) < 10:
        time.sleep(0.005)
    done.append(command.data)

options = dict(concurrency=2, prefetch=0, poll_interval=10)

def wait_for_the_end():
    print("ready", flush=True)
    sys.stdin.readline()

def with_threads():
    with SyncCommandBus(url) as bus:
        worker = SyncWorker(bus, "orders", registry, **options)
        thread = threading.Thread(target=worker.run)
        thread.start()
        wait_for_the_end()
        worker.stop()
        thread.join(30)

async def with_asyncio():
    async with CommandBus(url) as bus:
        worker = Worker(bus, "orders", registry, **options)
        running = asyncio.create_task(worker.run())
        await asyncio.to_thread(wait_for_the_end)
        await worker.stop()
        await running

with_threads() if runtime == "threads" else asyncio.run(with_asyncio())
print(*done, flush=True)
"""


def url_of(engine: str, folder: Path) -> str:
    return "memory://" if engine == "memory" else f"sqlite:///{folder / 'bus.db'}"


def open_bus(engine: str, runtime: str, folder: Path) -> Harness:
    return Configuration(engine, url_of(engine, folder)).open(runtime)


def registry_of(handler: object) -> HandlerRegistry:
    registry = HandlerRegistry()
    registry.register("orders", "ship", handler)  # type: ignore[arg-type]
    return registry


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("engine", ENGINES)
def test_tight_loop_drains_queue(engine: str, runtime: str, tmp_path: Path) -> None:
    """100 commands of 100 ms with 4 slots and a poll interval of 10 s: nothing waits for the poll."""
    handled = Recorder()

    def ship(command: object, context: object) -> None:
        time.sleep(0.1)  # the work itself
        handled(command, context)  # type: ignore[arg-type]

    bus = open_bus(engine, runtime, tmp_path)
    try:
        bus.send_many(SendRequest("orders", "ship", n) for n in range(100))
        began = time.monotonic()
        with bus.run_worker(registry_of(ship), concurrency=4, poll_interval=10) as running:
            handled.wait_for(100, timeout=60)
            took = time.monotonic() - began
            running.wait_until_idle()
            metrics = running.metrics
            assert metrics.empty_receives == 1, "empty only when everything was done"
            assert not {"fallback", "timer"} & metrics.wakeups.keys(), "something waited for time"
            assert metrics.commands_received == metrics.commands_settled == 100
        assert took < 9, "waited for the poll interval"
        assert sorted(command.data for command in handled.commands) == list(range(100))
        assert bus.stats("orders").completed == 100
    finally:
        bus.close()


@pytest.mark.parametrize(
    ("engine", "runtime"), [("memory", "asyncio"), ("memory", "threads"), ("sqlite", "threads")]
)
def test_multi_worker_no_duplicates(engine: str, runtime: str, tmp_path: Path) -> None:
    """1000 commands over 10 workers: each is handled exactly once, and no worker is left without."""
    bus = open_bus(engine, runtime, tmp_path)
    try:
        work = work_in_process if engine == "memory" else work_in_processes
        shares = work(bus, tmp_path)
        assert sorted(n for share in shares for n in share) == list(range(1_000))
        assert len(shares) == 10
        assert all(shares), f"a worker got nothing: {Counter(map(len, shares))}"
        assert bus.stats("orders").completed == 1_000
    finally:
        bus.close()


def send_all(bus: Harness) -> None:
    bus.send_many(SendRequest("orders", "ship", n) for n in range(1_000))


class Everybody:
    """Recorders whose calls wait until each of them has got one."""

    def __init__(self, count: int) -> None:
        self.recorders = [Recorder() for _ in range(count)]
        self._changed = threading.Condition()

    def handler(self, recorder: Recorder) -> Callable[[Command[int], object], None]:
        def ship(command: Command[int], context: object) -> None:
            with self._changed:
                recorder(command, context)
                self._changed.notify_all()
                self._changed.wait_for(lambda: all(each.commands for each in self.recorders), 60)

        return ship


def work_in_process(bus: Harness, folder: Path) -> list[list[int]]:
    """Ten workers on one bus: tasks of one loop, or threads."""
    everybody = Everybody(10)
    recorders = everybody.recorders
    with ExitStack() as workers:
        running = [
            workers.enter_context(bus.run_worker(registry_of(handler), concurrency=2, prefetch=0))
            for handler in map(everybody.handler, recorders)
        ]
        for worker in running:
            worker.wait_until_idle()
        send_all(bus)
        eventually(lambda: bus.stats("orders").completed == 1_000, timeout=60)
    return [[command.data for command in recorder.commands] for recorder in recorders]


def work_in_processes(bus: Harness, folder: Path) -> list[list[int]]:
    """Ten processes on one file, five of each runtime."""
    begun = folder / "begun"
    begun.mkdir()
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER_PROCESS, runtime, bus.configuration.url, str(begun)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for runtime in RUNTIMES * 5
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        send_all(bus)
        eventually(lambda: bus.stats("orders").completed == 1_000, timeout=90)
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("stop\n")
            process.stdin.flush()
        outputs = [process.communicate(timeout=60)[0] for process in processes]
        assert [process.returncode for process in processes] == [0] * 10
        return [[int(n) for n in output.split()] for output in outputs]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
