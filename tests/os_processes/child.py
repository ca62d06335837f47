"""A process under test: `python -m tests.os_processes.child '{"role": "worker", …}'`.

It says what happens to it as JSON lines on stdout, takes orders as words on stdin, and ends when stdin
does, so that nothing outlives the test that started it.
"""

import asyncio
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from commandbus import CommandBus, HandlerRegistry, SendRequest, Worker
from commandbus.sync import SyncCommandBus, SyncWorker
from tests.os_processes.handlers import add_noting, add_poison
from tests.os_processes.journal import Journal

Config = dict[str, Any]


def say(event: str, **facts: Any) -> None:
    os.write(1, json.dumps({"event": event} | facts).encode() + b"\n")


def obey(orders: dict[str, Callable[[], None]]) -> None:
    """Follow stdin in a thread of its own."""

    def listen() -> None:
        for line in sys.stdin:
            orders[line.strip()]()
        os._exit(3)

    threading.Thread(target=listen, daemon=True).start()


def worker_options(config: Config) -> Config:
    names = ("concurrency", "prefetch", "poll_interval", "visibility_timeout", "name")
    return {name: config[name] for name in names if name in config}


def metrics_of(worker: Any) -> dict[str, Any]:
    counted = worker.metrics
    return {name: getattr(counted, name) for name in counted.__struct_fields__}


def registry_for(config: Config) -> HandlerRegistry:
    registry = HandlerRegistry()
    add_noting(registry, config["domain"], Journal(config["effects"]), config["runtime"])
    add_poison(registry, config["domain"])
    return registry


def stop_on_sigterm(worker: Any, config: Config, loop: asyncio.AbstractEventLoop | None) -> None:
    """SIGTERM stops a worker of either runtime; stdin is heard."""
    grace = config.get("grace", 10)
    stopping: list[Any] = []

    def stop_thread(*_: Any) -> None:
        # In a thread, for stop() waits until run() ends, and run() has this one.
        threading.Thread(target=worker.stop, args=(grace,), daemon=True).start()

    if loop is None:
        signal.signal(signal.SIGTERM, stop_thread)
    else:
        loop.add_signal_handler(
            signal.SIGTERM, lambda: stopping.append(loop.create_task(worker.stop(grace)))
        )
    obey({"metrics": lambda: say("metrics", **metrics_of(worker))})


async def work_async(config: Config) -> None:
    async with CommandBus(config["url"]) as bus:
        worker = Worker(bus, config["domain"], registry_for(config), **worker_options(config))
        stop_on_sigterm(worker, config, asyncio.get_running_loop())
        say("ready", name=worker.name)
        await worker.run()
        say("stopped", **metrics_of(worker))


def work_in_threads(config: Config) -> None:
    with SyncCommandBus(config["url"]) as bus:
        worker = SyncWorker(bus, config["domain"], registry_for(config), **worker_options(config))
        stop_on_sigterm(worker, config, None)
        say("ready", name=worker.name)
        worker.run()
        say("stopped", **metrics_of(worker))


def send_singles(config: Config) -> None:
    """`count` sends, one commit each as far as this process can tell; errors are told, not hidden."""
    with SyncCommandBus(config["url"]) as bus:
        say("ready")
        ids, errors = [], []
        for number in range(config["count"]):
            try:
                result = bus.send(config["domain"], "note", {"n": number, "from": os.getpid()})
            except Exception as error:
                errors.append(f"{type(error).__name__}: {error}")
            else:
                ids.append(str(result.command_id))
        say("sent", ids=ids, errors=errors)


def send_on_order(config: Config) -> None:
    """One send for each line `send`, stamped with the moment before it."""
    with SyncCommandBus(config["url"]) as bus:
        sent = threading.Semaphore(0)
        obey({"send": sent.release})
        say("ready")
        while True:
            sent.acquire()
            began = time.time()
            result = bus.send(config["domain"], "note")
            say("sent", id=str(result.command_id), began=began)


def idle_bystander(config: Config) -> None:
    """Has the file open and does nothing."""
    with SyncCommandBus(config["url"]) as bus:
        bus.send_many([SendRequest("elsewhere", "note")])
        obey({})
        say("ready")
        threading.Event().wait()


def main() -> None:
    config = json.loads(sys.argv[1])
    match config["role"], config.get("runtime"):
        case "worker", "asyncio":
            asyncio.run(work_async(config))
        case "worker", "threads":
            work_in_threads(config)
        case "singles", _:
            send_singles(config)
        case "on_order", _:
            send_on_order(config)
        case "bystander", _:
            idle_bystander(config)
        case unknown:
            raise SystemExit(f"no such role: {unknown}")


if __name__ == "__main__":
    main()
