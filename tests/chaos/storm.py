"""A storm of connections: two hundred workers on a server that allows a hundred.

`python -m tests.chaos.storm '{…}'` is one of its processes, with twenty workers of one runtime. All
start together. Workers that get no connection try again, the others work, and nothing may be lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any
from uuid import uuid4

from commandbus import CommandBus, HandlerRegistry, SendRequest, StoreUnavailable, Worker
from commandbus.engines.postgres.shortage import Shortage
from commandbus.errors import DuplicateCommandError
from commandbus.sync import SyncCommandBus, SyncWorker
from commandbus.testing.postgres import PostgresServer, create_database
from tests.chaos.trial import Trial
from tests.os_processes.child import obey, say
from tests.os_processes.journal import Journal, read
from tests.os_processes.lab import Child, wait_until

DOMAIN = "storm"
CONNECTIONS = 100
WORKERS_EACH = 20
FEW_CONNECTIONS, WORKERS_FEW = 30, 5
TOGETHER_SECONDS = 30.0
SETTLED_SECONDS = 5.0
"""Then every connection is taken by somebody."""
OPTIONS: dict[str, Any] = {"concurrency": 2, "visibility_timeout": 5.0, "poll_interval": 2.0}


def storm(seed: int, processes: int = 10, commands: int = 3_000) -> Trial:
    with (
        PostgresServer.start(settings={"max_connections": str(CONNECTIONS)}) as server,
        tempfile.TemporaryDirectory() as folder,
        contextlib.ExitStack() as stack,
    ):
        url, effects = create_database(server), Path(folder) / "effects.jsonl"
        with SyncCommandBus(url, migrate=True):
            pass
        # Connected before the storm: workers that are in keep their places, and would leave none.
        bus = stack.enter_context(_bus(url))
        sent = _send(bus, 50)
        bus.stats(DOMAIN)
        config = {"url": f"{url}&pool_timeout=2", "effects": str(effects)}
        children: list[Child] = []
        try:
            for number in range(processes):
                runtime = ("asyncio", "threads")[number % 2]
                children.append(Child("tests.chaos.storm", config | {"runtime": runtime}))
            for child in children:
                child.expect("ready")
            sent += _send(bus, commands)
            done = _wait(bus, len(sent))
            seen = [list(_said(child)) for child in children]
        finally:
            for child in children:
                child.kill()
        runs = Counter(event["id"] for event in read(effects))
    refused = sum(entry["refused"] for said in seen for entry in said)
    lost = len(sent) - done
    note = f"{done:,} of {len(sent):,} completed, {len(runs):,} run, {refused:,} connections refused"
    broken = [f"P1: {lost} commands were not completed"] if lost else []
    if not refused:
        broken.append("no connection was refused: this was no storm")
    name = f"{processes * WORKERS_EACH} workers, {CONNECTIONS} connections"
    return Trial(name, seed, len(sent), Counter({"refused connections": refused}), broken, note)


def start_together(
    seed: int,
    processes: int = 10,
    commands: int = 300,
    connections: int = FEW_CONNECTIONS,
    bug: str | None = None,
) -> Trial:
    """As many workers as a server with few connections can hardly serve, all started at once: whoever
    is connected first must not keep idle what the others need to claim."""
    settings = {"max_connections": str(connections)}
    with (
        PostgresServer.start(settings=settings) as server,
        tempfile.TemporaryDirectory() as folder,
        contextlib.ExitStack() as stack,
    ):
        url, effects = create_database(server), Path(folder) / "effects.jsonl"
        with SyncCommandBus(url, migrate=True):
            pass
        bus = stack.enter_context(_bus(url))
        # Connected before the others, to send and to look.
        _send(bus, 1)
        bus.stats(DOMAIN)
        config = {"url": url, "effects": str(effects), "workers": WORKERS_FEW, "bug": bug}
        children: list[Child] = []
        done, stalled = 0, list[str]()
        try:
            children += [
                Child("tests.chaos.storm", config | {"runtime": ("asyncio", "threads")[number % 2]})
                for number in range(processes)
            ]
            for child in children:
                child.expect("ready")
            time.sleep(SETTLED_SECONDS)
            _send(bus, commands, TOGETHER_SECONDS)
            done = _wait(bus, commands, TOGETHER_SECONDS)
        except AssertionError as error:
            stalled.append(f"P15: {error}")
        finally:
            for child in children:
                child.kill()
    broken = stalled
    if not stalled and done < commands:
        broken = [f"P15: {done} of {commands} in {TOGETHER_SECONDS:.0f} s"]
    name = f"{processes * WORKERS_FEW} workers started together, {connections} connections"
    return Trial(name, seed, commands, Counter(), broken, f"{done:,} of {commands:,} completed")


def _bus(url: str) -> SyncCommandBus:
    """Open, as soon as there is a place for us, too."""
    bus = SyncCommandBus(f"{url}&pool_size=1&pool_timeout=2")
    while True:
        try:
            return bus.open()
        except StoreUnavailable:
            time.sleep(0.1)


def _send(bus: SyncCommandBus, count: int, seconds: float = 300.0) -> list[str]:
    """In groups, each until its fate is known; AssertionError when that takes longer than `seconds`."""
    deadline = time.monotonic() + seconds
    ids = [str(uuid4()) for _ in range(count)]
    for begin in range(0, count, 50):
        group = [SendRequest(DOMAIN, "note", command_id=one) for one in ids[begin : begin + 50]]
        while True:
            try:
                bus.send_many(group)
            except StoreUnavailable as error:
                if time.monotonic() > deadline:
                    raise AssertionError(f"no send within {seconds:g} s") from error
                time.sleep(0.05)
            except DuplicateCommandError:
                break
            else:
                break
        # Slowly, so that the workers that found no place yet come by again and again.
        time.sleep(0.1)
    return ids


def _wait(bus: SyncCommandBus, count: int, seconds: float = 120.0) -> int:
    """How many have ended well, when nothing is left or patience is."""

    def completed() -> int:
        try:
            return bus.stats(DOMAIN).completed
        except StoreUnavailable:
            return 0

    with contextlib.suppress(AssertionError):
        wait_until(lambda: completed() >= count, "every command has ended", seconds)
    return completed()


def _said(child: Child) -> Any:
    child.order("tell")
    yield child.expect("told")


# The processes.


def registry_for(effects: Journal) -> HandlerRegistry:
    registry = HandlerRegistry()
    registry.register(DOMAIN, "note", lambda c, _: effects.write("handled", id=str(c.command_id)))
    return registry


class Refused:
    """Connections that the server refused to this process, for whatever purpose."""

    count = 0

    @classmethod
    def watch(cls) -> None:
        for name in ("refused", "follower_refused"):
            original = getattr(Shortage, name)

            def counted(self: Shortage, original: Any = original) -> Any:
                cls.count += 1
                return original(self)

            setattr(Shortage, name, counted)


def work_in_thread(config: dict[str, Any], registry: HandlerRegistry) -> None:
    while True:
        try:
            with SyncCommandBus(config["url"]) as bus:
                SyncWorker(bus, DOMAIN, registry, **OPTIONS).run()
        except StoreUnavailable:
            time.sleep(0.5)


async def work(config: dict[str, Any], registry: HandlerRegistry) -> None:
    while True:
        try:
            async with CommandBus(config["url"]) as bus:
                await Worker(bus, DOMAIN, registry, **OPTIONS).run()
        except StoreUnavailable:
            await asyncio.sleep(0.5)


async def work_async(config: dict[str, Any], registry: HandlerRegistry) -> None:
    workers = config.get("workers", WORKERS_EACH)
    await asyncio.gather(*(work(config, registry) for _ in range(workers)))


def main() -> None:
    config = json.loads(sys.argv[1])
    registry = registry_for(Journal(config["effects"]))
    Refused.watch()
    obey({"tell": lambda: say("told", refused=Refused.count)})
    if config["runtime"] == "asyncio":
        say("ready")
        asyncio.run(work_async(config, registry))
    threads = [
        threading.Thread(target=work_in_thread, args=(config, registry), daemon=True)
        for _ in range(config.get("workers", WORKERS_EACH))
    ]
    for thread in threads:
        thread.start()
    say("ready")
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
