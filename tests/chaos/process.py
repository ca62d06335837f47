"""The processes of the laboratory: workers and senders that write down all they do."""

import asyncio
import json
import os
import random
import sys
import threading
import time
from typing import Any
from uuid import UUID

from commandbus import (
    BusinessRuleException,
    CommandBus,
    CommandBusError,
    DuplicateCommandError,
    HandlerRegistry,
    PermanentCommandError,
    RetryPolicy,
    SendRequest,
    StoreUnavailable,
    TransientCommandError,
    Worker,
)
from commandbus.engines.postgres import watch
from commandbus.sync import SyncCommandBus, SyncWorker
from tests.chaos.bugs import switch_on
from tests.chaos.recording import record
from tests.processes.child import Config, metrics_of, obey, say, stop_on_sigterm, worker_options
from tests.processes.journal import Journal, read

DOMAINS = ("orders", "mails")
SOON = RetryPolicy(max_attempts=3, backoff_schedule=[0.05, 0.2])
TYPES = {"note": 780, "flaky": 120, "slow": 30, "reject": 40, "permanent": 28, "exit": 2}
"""Kinds of commands and how often each is sent, of a thousand."""


def end(command: Any, context: Any) -> None:
    """How a command ends is in its type, so that the checker knows what to expect."""
    match command.command_type:
        case "flaky":
            if context.attempt - context.crashes <= command.data["failures"]:
                raise TransientCommandError("FLAKY", "not yet")
        case "reject":
            raise BusinessRuleException("NO", "the business says no")
        case "permanent":
            raise PermanentCommandError("NEVER", "it cannot work")
        case "exit":
            os._exit(9)


def registry_for(config: Config, journal: Journal) -> HandlerRegistry:
    def began(command: Any, context: Any) -> dict[str, Any]:
        token = {"id": str(command.command_id), "token": context.fence, "attempt": context.attempt}
        journal.write("handled", **token)
        return token

    async def handle_async(command: Any, context: Any) -> None:
        token = began(command, context)
        await asyncio.sleep(command.data["seconds"])
        end(command, context)
        journal.write("finished", **token)

    def handle_sync(command: Any, context: Any) -> None:
        token = began(command, context)
        time.sleep(command.data["seconds"])
        end(command, context)
        journal.write("finished", **token)

    registry = HandlerRegistry()
    native, foreign = handle_async, handle_sync
    if config["runtime"] == "threads":
        native, foreign = foreign, native
    for domain in DOMAINS:
        for command_type in TYPES:
            handler = foreign if command_type == "slow" else native
            registry.register(domain, command_type, handler, retry=SOON)
    return registry


def open_patiently(url: str) -> SyncCommandBus:
    """The store may be away just now: whoever supervises a worker would start it again and again."""
    bus = SyncCommandBus(url)
    while True:
        try:
            bus.open()
        except StoreUnavailable:
            time.sleep(0.1)
        else:
            return bus


async def work_async(config: Config, journal: Journal) -> None:
    bus = CommandBus(config["url"])
    while True:
        try:
            await bus.open()
            break
        except StoreUnavailable:
            await asyncio.sleep(0.1)
    async with bus:
        record(bus.engine, journal)
        worker = Worker(bus, DOMAINS, registry_for(config, journal), **worker_options(config))
        stop_on_sigterm(worker, config, asyncio.get_running_loop())
        say("ready", name=worker.name)
        await worker.run()
        say("stopped", **metrics_of(worker))


def work_in_threads(config: Config, journal: Journal) -> None:
    with open_patiently(config["url"]) as bus:
        record(bus.engine, journal)
        worker = SyncWorker(bus, DOMAINS, registry_for(config, journal), **worker_options(config))
        stop_on_sigterm(worker, config, None)
        say("ready", name=worker.name)
        worker.run()
        say("stopped", **metrics_of(worker))


class Sender:
    """Sends until told to stop, under ids of its own, so that any send can be repeated.

    What an earlier life of this sender left without an answer is repeated first.
    """

    def __init__(self, bus: SyncCommandBus, config: Config, journal: Journal) -> None:
        self._bus = bus
        self._journal = journal
        self._chance = random.Random(f"{config['seed']}-{config['number']}-{os.getpid()}")
        self._stop = threading.Event()
        self._pause = config["pause"]
        self._types: dict[str, int] = config.get("types") or TYPES
        self._open = unanswered(config["history"])

    def run(self) -> None:
        obey({"stop": self._stop.set})
        say("ready")
        for group in self._open:
            self._send(group)
        while not self._stop.is_set():
            group = [self._new_command() for _ in range(self._chance.choice((1, 1, 1, 10)))]
            self._send(group)
            if self._chance.random() < 0.05:
                self._send(group)
            self._stop.wait(self._chance.random() * self._pause * len(group))
        say("sent")

    def _new_command(self) -> dict[str, Any]:
        chance = self._chance
        (command_type,) = chance.choices(list(self._types), list(self._types.values()))
        seconds = chance.uniform(1.0, 2.5) if command_type == "slow" else chance.uniform(0, 0.02)
        return {
            "id": str(UUID(int=chance.getrandbits(128), version=4)),
            "domain": chance.choice(DOMAINS),
            "type": command_type,
            "priority": chance.choice((0, 5, 5, 5, 10)),
            "delay": chance.choice((0, 0, 0, 0, chance.uniform(0.05, 1.0))),
            "data": {"seconds": seconds, "failures": chance.choice((1, 2, 3))},
        }

    def _send(self, group: list[dict[str, Any]]) -> None:
        """One send, or one bulk send, until its fate is known."""
        ids = [command["id"] for command in group]
        while True:
            self._journal.write("send_invoked", commands=group)
            try:
                self._call(group)
            except DuplicateCommandError:
                self._journal.write("send_duplicate", ids=ids)
            except StoreUnavailable as error:
                self._journal.write("send_unknown", ids=ids, error=str(error))
                if not self._stop.wait(0.05):
                    continue
            except CommandBusError as error:
                self._journal.write("send_failed", ids=ids, error=str(error))
            else:
                self._journal.write("send_ok", ids=ids)
            return

    def _call(self, group: list[dict[str, Any]]) -> None:
        requests = [
            SendRequest(
                command["domain"],
                command["type"],
                command["data"],
                command_id=command["id"],
                priority=command["priority"],
                delay=command["delay"] or None,
            )
            for command in group
        ]
        if len(requests) == 1:
            (one,) = requests
            self._bus.send(
                one.domain,
                one.command_type,
                one.data,
                command_id=one.command_id,
                priority=one.priority,
                delay=one.delay,
            )
        else:
            self._bus.send_many(requests)


def unanswered(history: str) -> list[list[dict[str, Any]]]:
    """Groups of commands whose send was begun and has no answer."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for event in read(history):
        if event["event"] == "send_invoked":
            groups[event["commands"][0]["id"]] = event["commands"]
        elif event["event"].startswith("send_") and event["event"] != "send_unknown":
            groups.pop(event["ids"][0], None)
    return list(groups.values())


def prepare(config: Config) -> None:
    """What is special about this process: a wrong clock, little patience, a bug."""
    watch.ANSWER_SECONDS = 2.0
    if skew := config.get("skew"):
        real = time.time
        time.time = lambda: real() + skew
    if config.get("bug"):
        switch_on(config["bug"])


def main() -> None:
    config = json.loads(sys.argv[1])
    journal = Journal(config["history"])
    prepare(config)
    match config["role"], config.get("runtime"):
        case "worker", "asyncio":
            asyncio.run(work_async(config, journal))
        case "worker", "threads":
            work_in_threads(config, journal)
        case "sender", _:
            with open_patiently(config["url"]) as bus:
                Sender(bus, config, journal).run()
        case unknown:
            raise SystemExit(f"no such role: {unknown}")


if __name__ == "__main__":
    main()
