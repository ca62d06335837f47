"""A worker among other coroutines: it leaves them their turn, and may be canceled like any task."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from commandbus import CommandBus, CommandStatus, HandlerRegistry, SendRequest, Worker


def test_a_draining_worker_leaves_other_coroutines_their_turn() -> None:
    seen: list[int] = []
    turns = 0
    registry = HandlerRegistry()

    @registry.handler("orders", "ship")
    async def ship(command: Any, context: Any) -> None:
        time.sleep(0.001)  # a handler that never waits
        seen.append(turns)

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def main() -> None:
        async with CommandBus("memory://") as bus:
            await bus.send_many([SendRequest("orders", "ship")] * 100)
            worker = Worker(bus, "orders", registry, concurrency=1, prefetch=100, recycle_after=100)
            neighbour = asyncio.create_task(others())
            await worker.run()
            neighbour.cancel()

    asyncio.run(main())
    assert len(seen) == 100
    assert len(set(seen)) > 5


def test_a_worker_whose_task_is_canceled_loses_nothing() -> None:
    registry = HandlerRegistry()
    runs: list[int] = []

    async def main() -> None:
        begun = asyncio.Event()

        @registry.handler("orders", "ship")
        async def ship(command: Any, context: Any) -> None:
            runs.append(context.attempt)
            begun.set()
            if len(runs) == 1:
                await asyncio.Event().wait()

        async with CommandBus("memory://") as bus:
            sent = await bus.send("orders", "ship")
            options: dict[str, Any] = {"poll_interval": 0.1, "shutdown_timeout": 0.1}
            running = asyncio.create_task(Worker(bus, "orders", registry, **options).run())
            await begun.wait()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            second = Worker(bus, "orders", registry, **options)
            running = asyncio.create_task(second.run())
            record = await bus.wait(sent.command_id, timeout=20)
            await second.stop()
            await running
            assert record.status is CommandStatus.COMPLETED

    asyncio.run(main())
    assert len(runs) == 2
