"""`python -m bench.isolation`: handlers with isolation="process".

How many commands that do nothing are carried out per second of processor time, worker and children
together; how exact a hard timeout is; and what many hard timeouts in a row leave behind.
"""

from __future__ import annotations

import argparse
import gc
import os
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from bench import isolated_handlers as handlers
from commandbus import HandlerRegistry, RetryPolicy
from commandbus.domain.command import SendRequest
from commandbus.sync import SyncCommandBus, SyncWorker

ONCE = RetryPolicy(max_attempts=1)
COMMANDS = 5_000


def isolated(function: Any, **options: Any) -> HandlerRegistry:
    registry = HandlerRegistry()
    registry.register("bench", "run", function, isolation="process", retry=ONCE, **options)
    return registry


def cpu() -> float:
    """Of this process and of the children that it has reaped."""
    own, others = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + others.ru_utime + others.ru_stime


def throughput(url: str, concurrency: int, count: int) -> tuple[float, float]:
    """No-op commands per second once the children are warm, and per second of processor time in all."""
    with SyncCommandBus(url) as bus:
        sent = bus.send_many([SendRequest("bench", "run") for _ in range(count)])
        began = cpu()
        with SyncWorker(bus, isolated(handlers.nothing), concurrency=concurrency) as worker:
            _until(lambda: worker.metrics.processed >= count // 10)
            first, before = time.perf_counter(), worker.metrics.processed
            _until(lambda: worker.metrics.processed >= count)
            rate = (count - before) / (time.perf_counter() - first)
            bus.wait(sent[-1], 60)
    # The time of the children is known when they have ended; that of their start is counted.
    return rate, count / (cpu() - began)


def _until(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.002)


def exactness(timeout: float, count: int) -> list[float]:
    """How long a loop in C ran until it was ended."""
    found: list[float] = []
    registry = isolated(handlers.loop_in_c, timeout=timeout)
    with SyncCommandBus("memory://") as bus, SyncWorker(bus, registry) as worker:
        worker.observer = lambda settlements: found.extend(one.ran / 1e6 for one in settlements)
        for _ in range(count):
            record = bus.wait(bus.send("bench", "run"), 60)
            assert record.error_code == "HANDLER_TIMEOUT", record.error
    return found


def leaks(count: int, concurrency: int, *, by_memory: bool) -> dict[str, float]:
    """What so many hard timeouts, or ends by the memory limit, leave behind in the worker process."""
    code = "MEMORY_LIMIT" if by_memory else "HANDLER_TIMEOUT"
    with SyncCommandBus("memory://") as bus:
        if by_memory:
            registry = isolated(handlers.eat, memory="64MB", timeout=60)
        else:
            registry = isolated(handlers.loop_in_c, soft_timeout=0.02, timeout=0.04)
        began = time.perf_counter()
        with SyncWorker(bus, registry, concurrency=concurrency) as worker:
            _end_children(bus, 20, code)
            before = _state()
            _end_children(bus, count, code)
            after = _state()
            replaced = worker.metrics.child_restarts
        ended = _state()
    return {
        "children_replaced": replaced,
        "seconds": time.perf_counter() - began,
        "files": after["files"] - before["files"],
        "children": after["children"] - before["children"],
        "memory_mb": (after["memory"] - before["memory"]) / 1024**2,
        "children_at_the_end": ended["children"],
    }


def _end_children(bus: SyncCommandBus, count: int, code: str) -> None:
    for sent in bus.send_many([SendRequest("bench", "run") for _ in range(count)]):
        assert bus.wait(sent, 1_200).error_code == code


def _state() -> dict[str, int]:
    gc.collect()
    tasks = Path("/proc/self/task").glob("*/children")
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "files": len(list(Path("/proc/self/fd").iterdir())),
        "children": sum(len(task.read_text().split()) for task in tasks),
        "memory": pages * os.sysconf("SC_PAGE_SIZE"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--timeouts", type=int, default=0, help="hard timeouts in a row")
    parser.add_argument("--memory", type=int, default=0, help="ends by the memory limit in a row")
    parser.add_argument("--commands", type=int, default=COMMANDS)
    chosen = parser.parse_args()
    for count, by_memory in ((chosen.timeouts, False), (chosen.memory, True)):
        if count:
            for name, value in leaks(count, 2, by_memory=by_memory).items():
                print(f"{name:>20} {value:10.1f}", flush=True)
    if chosen.timeouts or chosen.memory:
        return
    with tempfile.TemporaryDirectory() as folder:
        for url in ("memory://", f"sqlite:///{folder}/bench.db"):
            for concurrency in (1, 2, 4):
                rate, per_core = throughput(url, concurrency, chosen.commands)
                name = f"{url.split(':')[0]}, {concurrency} slots"
                print(f"{name:>16}: {rate:7,.0f}/s, {per_core:7,.0f} per core")
    ran = exactness(2.0, 5)
    print(f"timeout=2 ended after {min(ran):.3f} to {max(ran):.3f} s, median {median(ran):.3f} s")


if __name__ == "__main__":
    main()
