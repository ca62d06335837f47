"""Worker processes for runs of schedules, batches and breakers; and what their handlers do.

`python -m tests.chaos.crew '{"url": …, "folder": …, "runtime": …, "concurrency": …}'`, as a child of
tests.os_processes.lab. Files in the folder are switches: `repaired` lets broken members pass, `down`
makes the target fail.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from commandbus import (
    CircuitBreaker,
    CommandBus,
    HandlerRegistry,
    PermanentCommandError,
    RetryPolicy,
    TransientCommandError,
    Worker,
)
from commandbus.sync import SyncCommandBus, SyncWorker
from tests.os_processes.journal import Journal
from tests.os_processes.lab import Child

DOMAIN = "crew"
TARGET = "bank"
THRESHOLD, PROBES, COOLDOWN = 5, 3, 2.0


def registry_of(folder: Path) -> HandlerRegistry:
    registry = HandlerRegistry()
    journal = Journal(folder / "journal.jsonl")
    down, repaired = folder / "down", folder / "repaired"
    breaker = CircuitBreaker(TARGET, threshold=THRESHOLD, cooldown=COOLDOWN, probes=PROBES)

    @registry.handler(DOMAIN, "tick")
    def tick(command: Any, context: Any) -> None:
        return None

    @registry.handler(DOMAIN, "member")
    def member(command: Any, context: Any) -> None:
        if command.data["broken"] and not repaired.exists():
            raise PermanentCommandError("BROKEN", "wait for the repair")

    @registry.handler(DOMAIN, "whole")
    def whole(command: Any, context: Any) -> None:
        journal.write("whole", id=str(command.command_id))

    @registry.handler(DOMAIN, "call", breaker=breaker, retry=RetryPolicy(1000, [0.05]))
    def call(command: Any, context: Any) -> None:
        fails = down.exists()
        journal.write("call", id=str(command.command_id), failed=fails, attempt=context.attempt)
        time.sleep(0.005)
        if fails:
            raise TransientCommandError("DOWN", "the bank does not answer")

    return registry


def serve(config: dict[str, Any]) -> None:
    registry = registry_of(Path(config["folder"]))
    if config["runtime"] == "threads":
        with SyncCommandBus(config["url"]) as bus:
            worker = SyncWorker(bus, DOMAIN, registry, concurrency=config["concurrency"])
            print(json.dumps({"event": "ready"}), flush=True)
            worker.run()
        return

    async def run() -> None:
        async with CommandBus(config["url"]) as bus:
            worker = Worker(bus, DOMAIN, registry, concurrency=config["concurrency"])
            print(json.dumps({"event": "ready"}), flush=True)
            await worker.run()

    asyncio.run(run())


def recruit(url: str, folder: Path, number: int, concurrency: int) -> Child:
    """A worker process; every second one uses threads."""
    config = {"url": url, "folder": str(folder), "concurrency": concurrency}
    return Child("tests.chaos.crew", config | {"runtime": ("asyncio", "threads")[number % 2]})


@contextmanager
def crew(url: str, folder: Path, processes: int, concurrency: int) -> Iterator[list[Child]]:
    """Worker processes that are ready; in the end none is left."""
    children = [recruit(url, folder, number, concurrency) for number in range(processes)]
    try:
        for child in children:
            child.expect("ready")
        yield children
    finally:
        for child in children:
            if child.process.poll() is None:
                child.kill()


def main() -> None:
    serve(json.loads(sys.argv[1]))


if __name__ == "__main__":
    main()
