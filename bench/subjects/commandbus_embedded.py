"""Command Bus in memory and on SQLite, in both runtimes, everything recorded."""

import asyncio
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from bench.measure import (
    PAYLOAD,
    Options,
    Subject,
    percentiles,
    resident_megabytes,
    start_sender,
)
from commandbus import CommandBus, HandlerRegistry, SendRequest, Worker
from commandbus.sync import SyncCommandBus, SyncWorker

DOMAIN = "bench"
CHUNK = 1_000
BUSY_SECONDS = 0.005


def url_of(engine: str, options: Options) -> str:
    return "memory://" if engine == "memory" else f"sqlite:///{options.folder}/bench.db"


def chunks(count: int) -> list[list[SendRequest]]:
    return [
        [SendRequest(DOMAIN, "work", PAYLOAD) for _ in range(min(CHUNK, count - first))]
        for first in range(0, count, CHUNK)
    ]


class Stopwatch:
    """From the first handler to the moment when the last outcome is durable."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.began = 0.0

    def start(self) -> None:
        if not self.began:
            self.began = time.perf_counter()

    def finished(self, worker: Any) -> bool:
        return bool(worker.metrics.commands_settled >= self.count)

    def rate(self) -> float:
        return self.count / (time.perf_counter() - self.began)


def registry_async(watch: Stopwatch, seconds: float = 0.0) -> HandlerRegistry:
    registry = HandlerRegistry()

    async def nothing(command: Any, context: Any) -> None:
        watch.start()

    async def sleep(command: Any, context: Any) -> None:
        watch.start()
        await asyncio.sleep(seconds)

    registry.register(DOMAIN, "work", sleep if seconds else nothing)
    return registry


def registry_sync(watch: Stopwatch, seconds: float = 0.0) -> HandlerRegistry:
    registry = HandlerRegistry()

    def nothing(command: Any, context: Any) -> None:
        watch.start()

    def sleep(command: Any, context: Any) -> None:
        watch.start()
        time.sleep(seconds)

    registry.register(DOMAIN, "work", sleep if seconds else nothing)
    return registry


class OnAsyncio:
    """The measurements on an event loop."""

    def __init__(self, engine: str) -> None:
        self._engine = engine

    async def bulk_send(self, options: Options) -> Mapping[str, float]:
        groups = chunks(options.commands)
        async with CommandBus(url_of(self._engine, options)) as bus:
            began = time.perf_counter()
            for group in groups:
                await bus.send_many(group)
            return {"bulk_send": options.commands / (time.perf_counter() - began)}

    async def singles(self, senders: int, options: Options) -> Mapping[str, float]:
        async with CommandBus(url_of(self._engine, options)) as bus:
            await bus.send(DOMAIN, "work", PAYLOAD)
            each = options.singles // senders

            async def send() -> None:
                for _ in range(each):
                    await bus.send(DOMAIN, "work", PAYLOAD)

            began = time.perf_counter()
            await asyncio.gather(*(send() for _ in range(senders)))
            return {f"send_{senders}": each * senders / (time.perf_counter() - began)}

    async def drain(
        self, concurrency: int, options: Options, seconds: float = 0.0
    ) -> Mapping[str, float]:
        count = options.commands if not seconds else options.commands // 4
        watch = Stopwatch(count)
        async with CommandBus(url_of(self._engine, options)) as bus:
            for group in chunks(count):
                await bus.send_many(group)
            worker = Worker(bus, DOMAIN, registry_async(watch, seconds), concurrency=concurrency)
            running = asyncio.create_task(worker.run())
            while not watch.finished(worker):
                await asyncio.sleep(0.002)
            rate = watch.rate()
            await worker.stop()
            await running
        return _drained(concurrency, rate, seconds)

    async def pickup(self, options: Options) -> Mapping[str, float]:
        delays: list[float] = []
        registry = HandlerRegistry()

        @registry.handler(DOMAIN, "work")
        async def stamp(command: Any, context: Any) -> None:
            delays.append(time.time() - command.data["at"])

        async with CommandBus(url_of(self._engine, options)) as bus:
            worker = Worker(bus, DOMAIN, registry)
            running = asyncio.create_task(worker.run())
            if self._engine == "memory":
                for _ in range(options.pickups):
                    await asyncio.sleep(0.01)
                    await bus.send(DOMAIN, "work", {"at": time.time()})
            else:
                start_sender("sqlite", url=bus.url, paced=options.pickups)
            while len(delays) < options.pickups:
                await asyncio.sleep(0.05)
            await worker.stop()
            await running
        return percentiles(delays)

    async def memory(self, options: Options) -> Mapping[str, float]:
        watch = Stopwatch(options.commands // 4)
        async with CommandBus(url_of(self._engine, options)) as bus:
            start_sender("sqlite", url=bus.url, backlog=watch.count)
            worker = Worker(bus, DOMAIN, registry_async(watch), concurrency=10)
            running = asyncio.create_task(worker.run())
            while not watch.finished(worker):
                await asyncio.sleep(0.05)
            used = resident_megabytes()
            await worker.stop()
            await running
        return {"memory": used}


class InThreads:
    """The same measurements without an event loop."""

    def __init__(self, engine: str) -> None:
        self._engine = engine

    def bulk_send(self, options: Options) -> Mapping[str, float]:
        groups = chunks(options.commands)
        with SyncCommandBus(url_of(self._engine, options)) as bus:
            began = time.perf_counter()
            for group in groups:
                bus.send_many(group)
            return {"bulk_send": options.commands / (time.perf_counter() - began)}

    def singles(self, senders: int, options: Options) -> Mapping[str, float]:
        with SyncCommandBus(url_of(self._engine, options)) as bus:
            bus.send(DOMAIN, "work", PAYLOAD)
            each = options.singles // senders

            def send(_: int) -> None:
                for _ in range(each):
                    bus.send(DOMAIN, "work", PAYLOAD)

            with ThreadPoolExecutor(senders) as pool:
                began = time.perf_counter()
                list(pool.map(send, range(senders)))
                return {f"send_{senders}": each * senders / (time.perf_counter() - began)}

    def drain(self, concurrency: int, options: Options, seconds: float = 0.0) -> Mapping[str, float]:
        count = options.commands if not seconds else options.commands // 4
        watch = Stopwatch(count)
        with SyncCommandBus(url_of(self._engine, options)) as bus:
            for group in chunks(count):
                bus.send_many(group)
            worker = SyncWorker(bus, DOMAIN, registry_sync(watch, seconds), concurrency=concurrency)
            running = threading.Thread(target=worker.run)
            running.start()
            while not watch.finished(worker):
                time.sleep(0.002)
            rate = watch.rate()
            worker.stop()
            running.join()
        return _drained(concurrency, rate, seconds)

    def pickup(self, options: Options) -> Mapping[str, float]:
        delays: list[float] = []
        registry = HandlerRegistry()

        @registry.handler(DOMAIN, "work")
        def stamp(command: Any, context: Any) -> None:
            delays.append(time.time() - command.data["at"])

        with SyncCommandBus(url_of(self._engine, options)) as bus:
            worker = SyncWorker(bus, DOMAIN, registry)
            running = threading.Thread(target=worker.run)
            running.start()
            if self._engine == "memory":
                for _ in range(options.pickups):
                    time.sleep(0.01)
                    bus.send(DOMAIN, "work", {"at": time.time()})
            else:
                start_sender("sqlite", url=bus.url, paced=options.pickups)
            while len(delays) < options.pickups:
                time.sleep(0.05)
            worker.stop()
            running.join()
        return percentiles(delays)

    def memory(self, options: Options) -> Mapping[str, float]:
        watch = Stopwatch(options.commands // 4)
        with SyncCommandBus(url_of(self._engine, options)) as bus:
            start_sender("sqlite", url=bus.url, backlog=watch.count)
            worker = SyncWorker(bus, DOMAIN, registry_sync(watch), concurrency=10)
            running = threading.Thread(target=worker.run)
            running.start()
            while not watch.finished(worker):
                time.sleep(0.05)
            used = resident_megabytes()
            worker.stop()
            running.join()
        return {"memory": used}


def _drained(concurrency: int, rate: float, seconds: float) -> Mapping[str, float]:
    if seconds:
        return {"busy_100": 100 * rate / (concurrency / seconds)}
    return {f"drain_{concurrency}": rate}


def _run(measurement: Any, *arguments: Any, **more: Any) -> Any:
    """Any measurement, from the outside: coroutines get a loop."""
    result = measurement(*arguments, **more)
    return asyncio.run(result) if asyncio.iscoroutine(result) else result


def subjects() -> list[Subject]:
    found = []
    for engine in ("sqlite", "memory"):
        for runtime, kind in (("asyncio", OnAsyncio), ("threads", InThreads)):
            of = kind(engine)
            measurements = {
                "bulk_send": partial(_run, of.bulk_send),
                "send_1": partial(_run, of.singles, 1),
                "send_16": partial(_run, of.singles, 16),
                "drain_1": partial(_run, of.drain, 1),
                "drain_10": partial(_run, of.drain, 10),
                "drain_100": partial(_run, of.drain, 100),
                "busy_100": partial(_run, of.drain, 100, seconds=BUSY_SECONDS),
                "pickup": partial(_run, of.pickup),
            }
            if engine == "sqlite":
                measurements["memory"] = partial(_run, of.memory)
            note = "synchronous=FULL; at least once; result, attempts, times and worker of each kept"
            if engine == "memory":
                note = "nothing durable; sender and worker in one process"
            found.append(Subject(f"Command Bus, {engine}, {runtime}", "embedded", measurements, note))
    return found
