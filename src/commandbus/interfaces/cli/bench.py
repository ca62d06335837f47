"""`bench`: how fast the bus is on one's own store, in one minute at most."""

from __future__ import annotations

import asyncio
import secrets
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from commandbus.interfaces.cli import options, output, target
from commandbus.interfaces.cli.exits import CliError, Exit
from commandbus.store.urls import shown_url

if TYPE_CHECKING:
    from commandbus.sync import SyncCommandBus

TYPE = "nothing"
CHUNK = 1_000
PICKUPS = 50
PICKUP_PAUSE = 0.02
PATIENCE_SECONDS = 120.0
POLL_SECONDS = 0.002


def bench(
    count: Annotated[
        int, typer.Option("--count", "-n", min=100, max=1_000_000, help="Commands to carry out.")
    ] = 20_000,
    concurrency: Annotated[
        int, typer.Option("--concurrency", "-c", min=1, max=1_000, help="Handlers at once.")
    ] = 100,
    senders: Annotated[
        int, typer.Option("--senders", min=1, max=64, help="Concurrent senders of single commands.")
    ] = 16,
    runtime: Annotated[
        Literal["asyncio", "threads"], typer.Option("--runtime", help="How the worker runs.")
    ] = "asyncio",
    size: Annotated[
        int, typer.Option("--size", min=16, max=1_000_000, help="Bytes of each payload.")
    ] = 100,
    seconds: Annotated[
        float, typer.Option("--seconds", min=0.1, max=60, help="How long single sends last.")
    ] = 2.0,
    url: options.Url = None,
    json: options.Json = False,
) -> None:
    """Measure the bus on your own store: sends, drain, pick-up.

    The commands go to a domain of their own, which is forgotten at the end; other domains are not
    touched. The store works hard meanwhile, so think before you do this in production.
    """
    data = {"text": "x" * max(1, size - len('{"text": ""}'))}
    domain = f"bench-{secrets.token_hex(4)}"
    found: dict[str, float] = {}

    def note(name: str, value: float, unit: str = "commands/s") -> None:
        """As it comes: a run takes a while."""
        found[name] = round(value, 3)
        if not json:
            output.write(f"{name:<26}{value:>12,.1f} {unit}")

    with target.opened(url, create=True) as bus:
        shown = shown_url(bus.url)
        try:
            note("bulk send", _bulk(bus, domain, data, count))
            note("drain", _drain(bus, domain, count, concurrency, runtime))
            for number in sorted({1, senders}):
                note(f"single sends, {number}", _singles(bus, domain, data, number, seconds))
            bus.purge(domain)
            late = _pickups(bus, domain, runtime)
            note("pick-up, median", statistics.median(late), "ms")
            note("pick-up, one of ten above", sorted(late)[int(len(late) * 0.9)], "ms")
        finally:
            bus.purge(domain)
    if json:
        output.json_document({"url": shown, "count": count, "runtime": runtime, "figures": found})
    else:
        output.note(f"measured on {shown}")


def _bulk(bus: SyncCommandBus, domain: str, data: Any, count: int) -> float:
    from commandbus.domain.command import SendRequest

    began = time.perf_counter()
    for first in range(0, count, CHUNK):
        size = min(CHUNK, count - first)
        bus.send_many([SendRequest(domain, TYPE, data) for _ in range(size)])
    return count / (time.perf_counter() - began)


def _singles(bus: SyncCommandBus, domain: str, data: Any, senders: int, seconds: float) -> float:
    counts = [0] * senders
    began = time.perf_counter()

    def send(number: int) -> None:
        while time.perf_counter() - began < seconds:
            bus.send(domain, TYPE, data)
            counts[number] += 1

    threads = [threading.Thread(target=send, args=(number,)) for number in range(senders)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.perf_counter() - began)


def _drain(bus: SyncCommandBus, domain: str, count: int, concurrency: int, runtime: str) -> float:
    """From the first handler to the last durable outcome."""
    begun: list[float] = []

    def handle(command: Any) -> None:
        if not begun:
            begun.append(time.perf_counter())

    with _working(bus.url, domain, handle, concurrency, runtime) as settled:
        deadline = time.perf_counter() + PATIENCE_SECONDS
        while settled() < count:
            if time.perf_counter() > deadline:
                raise CliError(
                    f"{settled():,} of {count:,} commands after {PATIENCE_SECONDS:.0f} s: take fewer "
                    "with --count.",
                    Exit.FAILURE,
                )
            time.sleep(POLL_SECONDS)
        return count / (time.perf_counter() - begun[0])


def _pickups(bus: SyncCommandBus, domain: str, runtime: str) -> list[float]:
    """Milliseconds from before a send to the handler of a worker that was waiting."""
    late: list[float] = []

    def handle(command: Any) -> None:
        late.append((time.perf_counter() - command.data["at"]) * 1_000)

    with _working(bus.url, domain, handle, 4, runtime) as settled:
        for number in range(PICKUPS):
            time.sleep(PICKUP_PAUSE)
            bus.send(domain, TYPE, {"at": time.perf_counter()})
            deadline = time.perf_counter() + PATIENCE_SECONDS
            while settled() <= number and time.perf_counter() < deadline:
                time.sleep(POLL_SECONDS)
    return late


@contextmanager
def _working(
    url: str, domain: str, handle: Callable[[Any], None], concurrency: int, runtime: str
) -> Iterator[Callable[[], int]]:
    """A worker on connections of its own, beside this thread; yields how many it has settled."""
    serve = _serve_asyncio if runtime == "asyncio" else _serve_threads
    with serve(url, domain, handle, concurrency) as metrics:
        yield lambda: int(metrics.commands_settled)


@contextmanager
def _serve_threads(
    url: str, domain: str, handle: Callable[[Any], None], concurrency: int
) -> Iterator[Any]:
    from commandbus.sync import SyncCommandBus, SyncWorker
    from commandbus.worker.handlers import HandlerRegistry

    registry = HandlerRegistry()
    registry.register(domain, TYPE, lambda command, context: handle(command))
    with SyncCommandBus(url) as bus:
        worker = SyncWorker(bus, domain, registry, concurrency=concurrency)
        thread = threading.Thread(target=worker.run)
        thread.start()
        try:
            yield worker.metrics
        finally:
            worker.stop()
            thread.join()


@contextmanager
def _serve_asyncio(
    url: str, domain: str, handle: Callable[[Any], None], concurrency: int
) -> Iterator[Any]:
    from commandbus.runtimes.asyncio.bus import CommandBus
    from commandbus.runtimes.asyncio.loop import new_event_loop
    from commandbus.runtimes.asyncio.worker import Worker
    from commandbus.worker.handlers import HandlerRegistry

    async def work(command: Any, context: Any) -> None:
        handle(command)

    registry = HandlerRegistry()
    registry.register(domain, TYPE, work)
    loop = new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        bus = asyncio.run_coroutine_threadsafe(CommandBus(url).open(), loop).result()
        worker = Worker(bus, domain, registry, concurrency=concurrency)
        running = asyncio.run_coroutine_threadsafe(worker.run(), loop)
        try:
            yield worker.metrics
        finally:
            asyncio.run_coroutine_threadsafe(worker.stop(), loop).result()
            running.result()
            asyncio.run_coroutine_threadsafe(bus.close(), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
