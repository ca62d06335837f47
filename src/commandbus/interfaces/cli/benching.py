"""`bench`: how fast this store is, from here."""

from __future__ import annotations

import asyncio
import statistics
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from commandbus.interfaces.cli import options, output, target

if TYPE_CHECKING:
    from commandbus import CommandBus

TYPE = "nothing"
CHUNK = 1_000
SINGLE_PART = 20
"""Of so many commands, one is sent alone."""
ROUND_TRIPS = 50


@dataclass(frozen=True, slots=True)
class Figures:
    """What was measured; rates in commands per second, times in seconds."""

    commands: int
    sent_alone: float
    sent_in_bulk: float
    carried_out: float
    round_trip_median: float
    round_trip_slowest: float


def bench(
    count: Annotated[
        int, typer.Option("--count", "-n", min=100, max=1_000_000, help="How many commands.")
    ] = 10_000,
    concurrency: Annotated[
        int, typer.Option("--concurrency", "-c", min=1, help="Handlers that run at once.")
    ] = 16,
    url: options.Url = None,
    json: options.Json = False,
) -> None:
    """Measure this store: sends, work, round trips.

    One process sends commands that do nothing to a domain of its own and carries them out; they are
    forgotten afterwards. Whatever else uses the store is slower meanwhile.
    """
    store = target.find_url(url)
    with target.opened(store, create=True):
        pass
    figures = asyncio.run(_measure(store, count, concurrency))
    if json:
        output.json_document(asdict(figures))
        return
    for name, value in (
        ("sent one at a time", f"{figures.sent_alone:,.0f} commands/s"),
        ("sent in bulk", f"{figures.sent_in_bulk:,.0f} commands/s"),
        ("carried out", f"{figures.carried_out:,.0f} commands/s"),
        ("from send to outcome", f"{figures.round_trip_median * 1e3:.1f} ms in the median"),
        ("", f"{figures.round_trip_slowest * 1e3:.1f} ms the slowest of {ROUND_TRIPS}"),
    ):
        output.write(f"{name:<22}{value}")


async def _measure(store: str, count: int, concurrency: int) -> Figures:
    from commandbus import CommandBus, SendRequest, Worker
    from commandbus.domain.ids import new_id

    domain, alone = f"bench-{new_id().hex[-12:]}", max(1, count // SINGLE_PART)
    async with CommandBus(store) as bus:
        try:
            with output.progress("measuring", count) as told:
                began = time.perf_counter()
                for _ in range(alone):
                    await bus.send(domain, TYPE)
                    told()
                sent_alone = alone / (time.perf_counter() - began)
                began = time.perf_counter()
                for start in range(alone, count, CHUNK):
                    size = min(CHUNK, count - start)
                    await bus.send_many([SendRequest(domain, TYPE)] * size)
                    told(size)
                sent_in_bulk = (count - alone) / (time.perf_counter() - began)
            worker = Worker(
                bus, domain, _registry(domain), concurrency=concurrency, recycle_after=count
            )
            began = time.perf_counter()
            await worker.run()
            carried_out = count / (time.perf_counter() - began)
            trips = await _round_trips(bus, domain)
        finally:
            await bus.purge(domain)
    return Figures(count, sent_alone, sent_in_bulk, carried_out, statistics.median(trips), max(trips))


async def _round_trips(bus: CommandBus, domain: str) -> list[float]:
    """Seconds from a send to its outcome, with an idle worker."""
    from commandbus import Worker

    worker = Worker(bus, domain, _registry(domain))
    running = asyncio.create_task(worker.run())
    trips: list[float] = []
    for _ in range(ROUND_TRIPS):
        began = time.perf_counter()
        sent = await bus.send(domain, TYPE)
        await bus.wait(sent.command_id, 30, domain=domain)
        trips.append(time.perf_counter() - began)
    await worker.stop()
    await running
    return trips


def _registry(domain: str) -> Any:
    from commandbus import HandlerRegistry

    registry = HandlerRegistry()

    @registry.handler(domain, TYPE)
    async def nothing(command: Any, context: Any) -> None:
        return None

    return registry
