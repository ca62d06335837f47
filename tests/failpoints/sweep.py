"""The sweep: every failpoint that a short life of the bus meets, and everything that can happen there.

`python -m tests.failpoints [--on sqlite|postgres]` runs all of it, each case in a process of its own.
A case: a process sends and works with the failpoint set; afterwards a worker without one finishes the
rest. Then every command that was acknowledged has ended, and nothing is left over.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from commandbus import (
    CommandBus,
    HandlerRegistry,
    RetryPolicy,
    SendRequest,
    TransientCommandError,
    Worker,
)
from commandbus.errors import CommandBusError, DuplicateCommandError
from commandbus.sync import SyncCommandBus, SyncWorker
from commandbus.testing.postgres import PostgresServer, create_database
from tests.os_processes.journal import Journal, read
from tests.os_processes.lab import Child
from tests.support.failpoints import ACTIONS, Action, Failpoint, Passing, installed, springing

DOMAIN = "points"
LEASE = 0.6
LIFE_SECONDS = 2.5


@dataclass
class Result:
    point: Failpoint
    problems: list[str] = field(default_factory=list)
    reached: bool = True


def life(url: str, journal: Journal) -> None:
    """What a process does: sends, bulk sends, runs, retries, renewals."""
    registry = HandlerRegistry()
    soon = RetryPolicy(max_attempts=4, backoff_schedule=[0.02])

    @registry.handler(DOMAIN, "work", retry=soon)
    def work(command: Any, context: Any) -> None:
        time.sleep(command.data["seconds"])
        if context.attempt - context.crashes <= command.data["failures"]:
            raise TransientCommandError("AGAIN")

    with SyncCommandBus(url) as bus:
        worker = SyncWorker(
            bus, DOMAIN, registry, visibility_timeout=LEASE, poll_interval=0.1, concurrency=3
        )
        thread = threading.Thread(target=worker.run, daemon=True)
        thread.start()
        for group in _groups():
            _send(bus, group, journal)
        until = time.monotonic() + LIFE_SECONDS
        while time.monotonic() < until and _left(bus):
            time.sleep(0.05)
        if not thread.is_alive():
            journal.write("dead")
        worker.stop(1)
        thread.join(10)


class Awaited:
    """The send that is awaited right now, for whoever wants to cancel it, from any thread."""

    task: asyncio.Task[Any] | None = None

    def cancel(self) -> None:
        if self.task is not None:
            self.task.get_loop().call_soon_threadsafe(self.task.cancel)


async def life_of_awaiting(url: str, journal: Journal, awaited: Awaited) -> None:
    """The same for asyncio, where callers may be canceled in the middle."""
    registry = HandlerRegistry()

    @registry.handler(DOMAIN, "work")
    async def work(command: Any, context: Any) -> None:
        await asyncio.sleep(0)

    async with CommandBus(url) as bus:
        worker = Worker(bus, DOMAIN, registry, visibility_timeout=LEASE, poll_interval=0.1)
        running = asyncio.create_task(worker.run())
        for group in _groups():
            ids = [str(request.command_id) for request in group]
            awaited.task = asyncio.create_task(bus.send_many(group))
            await asyncio.wait([awaited.task])
            sent = not awaited.task.cancelled() and awaited.task.exception() is None
            journal.write("acknowledged" if sent else "unknown", ids=ids)
            awaited.task = None
        # Connections that were canceled in the middle must be as good as new.
        for _ in range(12):
            await bus.stats(DOMAIN)
        if running.done():
            journal.write("dead")
        await worker.stop(1)
        await running


def _groups() -> Iterator[list[SendRequest]]:
    def request(seconds: float = 0.0, failures: int = 0, **more: Any) -> SendRequest:
        data = {"seconds": seconds, "failures": failures}
        return SendRequest(DOMAIN, "work", data, command_id=uuid4(), **more)

    yield [request(0.5)]
    yield [request(failures=1)]
    yield [request(delay=0.1)]
    yield [request(unique_key=f"key {uuid4()}")]
    yield [request() for _ in range(4)]
    yield [request() for _ in range(150)]


def _send(bus: SyncCommandBus, group: list[SendRequest], journal: Journal) -> None:
    ids = [str(request.command_id) for request in group]
    for _ in range(3):
        try:
            bus.send_many(group)
        except DuplicateCommandError:
            break
        except CommandBusError as error:
            journal.write("unknown", ids=ids, error=str(error))
        else:
            break
    else:
        return
    journal.write("acknowledged", ids=ids)


def _left(bus: SyncCommandBus) -> bool:
    try:
        stats = bus.stats(DOMAIN)
    except CommandBusError:
        return True
    return bool(stats.ready + stats.scheduled + stats.running)


def met(url: str) -> list[tuple[str, str]]:
    """The points that a life passes, in order of their first time."""
    points: dict[tuple[str, str], None] = {}

    def meet(passing: Passing) -> None:
        points.setdefault((passing.when, passing.statement))

    with tempfile.TemporaryDirectory() as folder, installed(meet):
        life(url, Journal(Path(folder) / "history.jsonl"))
    return list(points)


def child() -> None:
    """In a process of its own: a life with a failpoint."""
    config = json.loads(sys.argv[1])
    point = Failpoint(config["when"], config["statement"], config["action"], config["nth"])
    journal, awaited = Journal(config["history"]), Awaited()
    with installed(springing(point, awaited.cancel)):
        if point.action == "cancel":
            asyncio.run(life_of_awaiting(config["url"], journal, awaited))
        else:
            life(config["url"], journal)
    Journal(config["history"]).write("ended", sprung=point.sprung.is_set())
    os._exit(0)


def attempt(url: str, when: str, statement: str, action: Action, nth: int = 1) -> Result:
    """One case, with its check."""
    result = Result(Failpoint(when, statement, action, nth))  # type: ignore[arg-type]
    with tempfile.TemporaryDirectory() as folder:
        history = Path(folder) / "history.jsonl"
        config = {"url": url, "history": str(history), "when": when, "statement": statement}
        config |= {"action": action, "nth": nth}
        process = Child("tests.failpoints.child", config)
        frozen = _watch(process)
        _finish(url)
        if frozen:
            # The zombie wakes up when its work was done by another: it must change nothing.
            process.signal(signal.SIGCONT)
        try:
            code = process.wait(20)
        except subprocess.TimeoutExpired:
            code = process.kill()
            result.problems.append(f"the process hangs: {process.errors[-500:]}")
        _finish(url)
        events = list(read(history))
        _check(url, events, result)
        if code not in (0, -signal.SIGKILL):
            result.problems.append(f"the process ended with {code}: {process.errors[-500:]}")
        result.reached = code == -signal.SIGKILL or any(e.get("sprung") for e in events)
    return result


def _watch(process: Child) -> bool:
    """Wait until the process has ended or stands still; whether it does."""
    until = time.monotonic() + 20
    while process.process.poll() is None and time.monotonic() < until:
        if process.is_frozen():
            return True
        time.sleep(0.02)
    return False


def _finish(url: str) -> None:
    """A worker without failpoints does what is left."""
    registry = HandlerRegistry()
    registry.register(DOMAIN, "work", lambda command, context: None)
    with SyncCommandBus(url) as bus:
        worker = SyncWorker(bus, DOMAIN, registry, visibility_timeout=LEASE, poll_interval=0.1)
        thread = threading.Thread(target=worker.run, daemon=True)
        thread.start()
        until = time.monotonic() + 10
        while _left(bus) and time.monotonic() < until:
            time.sleep(0.02)
        worker.stop(2)
        thread.join(10)


def _check(url: str, events: list[dict[str, Any]], result: Result) -> None:
    with SyncCommandBus(url) as bus:
        if _left(bus):
            result.problems.append("something is still waiting or under a lease")
        if any(event["event"] == "dead" for event in events):
            result.problems.append("the worker died")
        for event in events:
            there = [bus.get_command(command_id, domain=DOMAIN) for command_id in event.get("ids", ())]
            statuses = {record.status.value if record else "absent" for record in there}
            if event["event"] == "acknowledged" and statuses != {"COMPLETED"}:
                result.problems.append(f"acknowledged, and now {sorted(statuses)}")
            if event["event"] == "unknown" and len({record is None for record in there}) > 1:
                result.problems.append("a bulk send is there in part")


def actions_on(url: str) -> tuple[Action, ...]:
    """A process that is frozen with the lock of a SQLite file keeps everybody waiting, which is known
    and documented; there is nothing to be learnt from trying."""
    return tuple(a for a in ACTIONS if a != "freeze" or not url.startswith("sqlite"))


def cases_of(url: str) -> list[tuple[str, str, Action]]:
    """Every failpoint that a life meets, with everything that can happen there."""
    return [(when, name, action) for when, name in met(url) for action in actions_on(url)]


def sweep(urls: Sequence[str], cases: Sequence[tuple[str, str, Action]]) -> Iterator[Result]:
    """Several at a time, each on a store of its own: most of a case is waiting."""
    free: queue.SimpleQueue[str] = queue.SimpleQueue()
    for url in urls:
        free.put(url)

    def one(case: tuple[str, str, Action]) -> Result:
        url = free.get()
        try:
            return attempt(url, *case)
        finally:
            free.put(url)

    with ThreadPoolExecutor(len(urls)) as pool:
        yield from pool.map(one, cases)


@contextlib.contextmanager
def stores(on: str, count: int) -> Iterator[list[str]]:
    """Empty ones, of one kind."""
    with contextlib.ExitStack() as stack:
        if on == "sqlite":
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            urls = [f"sqlite:///{folder}/points{number}.db" for number in range(count)]
        else:
            server = stack.enter_context(PostgresServer.start())
            urls = [create_database(server) for _ in range(count)]
        for url in urls:
            with SyncCommandBus(url, migrate=True):
                pass
        yield urls
