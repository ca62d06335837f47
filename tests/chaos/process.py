"""The processes of the laboratory: workers and senders that write down all they do."""

import asyncio
import json
import os
import sys
import time
import zlib

from commandbus import CommandBus, StoreUnavailable, Worker
from commandbus.engines.postgres import receipts
from commandbus.sync import SyncCommandBus, SyncWorker
from tests.chaos.kinds import DOMAINS, registry_for
from tests.chaos.operator import Operator
from tests.chaos.recording import record
from tests.chaos.sender import Sender
from tests.os_processes.child import Config, metrics_of, say, stop_on_sigterm, worker_options
from tests.os_processes.journal import Journal


def open_patiently(url: str) -> SyncCommandBus:
    """The store may be away just now: whoever supervises a worker would start it again and again."""
    bus = SyncCommandBus(url)
    while True:
        try:
            return bus.open()
        except StoreUnavailable:
            time.sleep(0.1)


async def open_patiently_async(url: str) -> CommandBus:
    bus = CommandBus(url)
    while True:
        try:
            return await bus.open()
        except StoreUnavailable:
            await asyncio.sleep(0.1)


async def work_async(config: Config, journal: Journal) -> None:
    async with await open_patiently_async(config["url"]) as bus:
        record(bus.engine, journal)
        worker = Worker(bus, DOMAINS, registry_for(config, journal), **worker_options(config))
        stop_on_sigterm(worker, config, asyncio.get_running_loop())
        say("ready", name=worker.name)
        await worker.run()
        say("stopped", **metrics_of(worker))
    journal.write("exiting")
    # A handler that swallows its cancellation would keep the event loop from ending, for ever.
    os._exit(0)


def work_in_threads(config: Config, journal: Journal) -> None:
    with open_patiently(config["url"]) as bus:
        record(bus.engine, journal)
        worker = SyncWorker(bus, DOMAINS, registry_for(config, journal), **worker_options(config))
        stop_on_sigterm(worker, config, None)
        say("ready", name=worker.name)
        worker.run()
        say("stopped", **metrics_of(worker))
    journal.write("exiting")
    os._exit(0)


def prepare(config: Config) -> None:
    """What is special about this process: a wrong clock, or receipts for few commands. Everything else,
    every patience too, is as users have it, but for a bug that the nursery has switched on."""
    if skew := config.get("skew"):
        real = time.time
        time.time = lambda: real() + skew
    if zlib.crc32(config["history"].encode()) % 2:
        # Few settles of a short stay have as many outcomes at once as a receipt has elsewhere.
        receipts.MEMBERS_MIN = 2


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
        case "operator", _:
            with open_patiently(config["url"]) as bus:
                Operator(bus, config, journal).run()
        case unknown:
            raise SystemExit(f"no such role: {unknown}")


if __name__ == "__main__":
    main()
