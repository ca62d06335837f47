"""`python -m bench.isolation`: handlers with isolation="process".

How many commands that do nothing are carried out per second of processor time, worker and children
together; and how exact a hard timeout is. `--timeouts 1000` and `--memory 1000`: what so many hard
timeouts, or ends by the memory limit, leave behind. Exit code 1 when a bound is not kept.
"""

from __future__ import annotations

import argparse
import gc
import logging
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
PER_CORE_MIN = 2_000
TIMEOUT_SECONDS = 2.0
LATE_SECONDS_MAX = 0.5
"""A hard timeout ends its handler within so much."""
LEFT_MAX = {"files": 4, "children": 1, "memory_mb": 8.0, "children_at_the_end": 0}
"""One more child may be warm, and one that is being started has more files for a moment."""


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


def leaks(count: int, slots: int, timeout: float | None) -> dict[str, float]:
    """What so many hard timeouts, or without one ends by the memory limit, leave behind in the worker
    process, and how long the handlers ran."""
    code = "MEMORY_LIMIT" if timeout is None else "HANDLER_TIMEOUT"
    ran: list[float] = []
    with SyncCommandBus("memory://") as bus:
        if timeout is None:
            registry = isolated(handlers.eat, memory="256MB", timeout=60)
        else:
            registry = isolated(handlers.loop_in_c, timeout=timeout)
        began = time.perf_counter()
        with SyncWorker(bus, registry, concurrency=slots) as worker:
            worker.observer = lambda settlements: ran.extend(one.ran / 1e6 for one in settlements)
            _end_children(bus, 20, code)
            before = _state()
            _end_children(bus, count, code)
            after = _state()
            replaced = worker.metrics.child_restarts
        ended = _state()
    return {
        "children_replaced": replaced,
        "seconds": time.perf_counter() - began,
        "shortest_run": min(ran),
        "longest_run": max(ran),
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


def leave_nothing(count: int, slots: int, timeout: float | None) -> bool:
    """Prints what is left; whether the bounds are kept."""
    found = leaks(count, slots, timeout)
    for name, value in found.items():
        print(f"{name:>20} {value:10.3f}", flush=True)
    exact = timeout is None or _is_exact(timeout, found["shortest_run"], found["longest_run"])
    return exact and all(found[name] <= most for name, most in LEFT_MAX.items())


def _is_exact(timeout: float, shortest: float, longest: float) -> bool:
    return timeout <= shortest and longest <= timeout + LATE_SECONDS_MAX


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.isolation", description=__doc__)
    parser.add_argument("--timeouts", type=int, default=0, help="hard timeouts in a row")
    parser.add_argument("--memory", type=int, default=0, help="ends by the memory limit in a row")
    parser.add_argument("--seconds", type=float, default=TIMEOUT_SECONDS, help="each of these timeouts")
    parser.add_argument("--slots", type=int, default=4, help="for these two")
    parser.add_argument("--commands", type=int, default=COMMANDS)
    chosen = parser.parse_args()
    logging.disable(logging.CRITICAL)  # each of these ends is an error in the log
    kept = [
        leave_nothing(count, chosen.slots, timeout)
        for count, timeout in ((chosen.timeouts, chosen.seconds), (chosen.memory, None))
        if count
    ]
    if not kept:
        with tempfile.TemporaryDirectory() as folder:
            urls = ("memory://", f"sqlite:///{folder}/bench.db")
            kept = [fast_enough(url, chosen.commands) for url in urls]
        ran = exactness(TIMEOUT_SECONDS, 5)
        print(f"timeout=2 ended after {min(ran):.3f} to {max(ran):.3f} s, median {median(ran):.3f} s")
        kept.append(_is_exact(TIMEOUT_SECONDS, min(ran), max(ran)))
    raise SystemExit(0 if all(kept) else 1)


def fast_enough(url: str, count: int) -> bool:
    """Whether a core carries out as many as it must, with the best number of slots."""
    best = 0.0
    for slots in (1, 2, 4):
        rate, per_core = throughput(url, slots, count)
        best = max(best, per_core)
        name = f"{url.split(':', maxsplit=1)[0]}, {slots} slots"
        print(f"{name:>16}: {rate:7,.0f}/s, {per_core:7,.0f} per core", flush=True)
    return best >= PER_CORE_MIN


if __name__ == "__main__":
    main()
