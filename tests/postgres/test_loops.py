"""A bus that stays open while event loops come and go: each has connections of its own."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from commandbus import CommandBus, HandlerRegistry, SendRequest, Worker
from tests.postgres.database import empty_url

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(60)]

SECONDS_MAX = 10.0
DOMAIN = "orders"


@pytest.fixture
def bus() -> CommandBus:
    return CommandBus(empty_url() + "&pool_size=2")


def run(work: Any) -> Any:
    """In an event loop of its own, and not for long."""
    return asyncio.run(asyncio.wait_for(work, SECONDS_MAX))


async def use(bus: CommandBus) -> int:
    """A single send, several at once, many in one call, reads, and the execution of them all."""
    registry = HandlerRegistry()
    registry.register(DOMAIN, "ship", lambda command, context: command.data, transactional=True)
    sent = await asyncio.gather(*(bus.send(DOMAIN, "ship", number) for number in range(5)))
    sent += await bus.send_many([SendRequest(DOMAIN, "ship", 5)] * 3)
    worker = Worker(bus, DOMAIN, registry, concurrency=2)
    running = asyncio.ensure_future(worker.run())
    for one in sent:
        await bus.wait(one.command_id, SECONDS_MAX)
    await worker.stop()
    await running
    return (await bus.stats(DOMAIN)).completed


def test_an_open_bus_works_in_one_event_loop_after_another(bus: CommandBus) -> None:
    run(bus.open())
    try:
        for count in (1, 2, 3):
            assert run(use(bus)) == 8 * count
        engine: Any = bus.engine
        assert len(engine._loops) == 1, "connections of loops that have ended are closed"
        assert len(engine.async_session._lanes) == 1
    finally:
        run(bus.close())


def test_an_open_bus_works_in_two_event_loops_at_once(bus: CommandBus) -> None:
    counts: list[int] = []
    ready = threading.Barrier(2)

    async def work() -> None:
        await asyncio.to_thread(ready.wait, SECONDS_MAX)
        counts.append(await use(bus))

    run(bus.open())
    try:
        threads = [threading.Thread(target=run, args=(work(),), daemon=True) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SECONDS_MAX)
        assert max(counts) == 16
    finally:
        run(bus.close())


def test_a_loop_that_ends_in_the_middle_of_a_call_leaves_nothing_behind(bus: CommandBus) -> None:
    async def give_up() -> None:
        sends = [asyncio.ensure_future(bus.send(DOMAIN, "ship")) for _ in range(20)]
        await asyncio.wait(sends, timeout=0.001)

    run(bus.open())
    try:
        for _ in range(5):
            run(give_up())
        assert run(use(bus)) >= 8
        assert bus.engine.connections.busy == 0  # type: ignore[union-attr]
    finally:
        run(bus.close())
