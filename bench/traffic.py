"""Live traffic for a store that is looked at meanwhile: a sender, a worker and a process router.

    python -m bench.traffic sqlite:///jobs.db

Sends some 20 commands and starts a process per second, until it is ended. One command of twenty is
parked. Prints a line when the first process has ended.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from subprocess import PIPE, Popen

from commandbus import (
    CommandBus,
    HandlerRegistry,
    PermanentCommandError,
    ProcessManager,
    ProcessReplyRouter,
    SendRequest,
    Worker,
)
from commandbus.processes import Process, step

registry = HandlerRegistry("live")


@registry.command
async def ship(order: int, city: str) -> str:
    await asyncio.sleep(0.02)
    if city == "Atlantis":
        raise PermanentCommandError("NO_SUCH_CITY", f"order {order}: {city} is not on the map")
    return f"P-{order:05}"


@dataclass
class Order:
    number: int


class Deliver(Process[Order]):
    @step(fork=["pack", "notify"])
    def charge(self, state: Order) -> SendRequest:
        return self._ship(state)

    @step(then="close")
    def pack(self, state: Order) -> SendRequest:
        return self._ship(state)

    @step(then="close")
    def notify(self, state: Order) -> SendRequest:
        return self._ship(state)

    @step(joins=["pack", "notify"])
    def close(self, state: Order) -> SendRequest:
        return self._ship(state)

    @staticmethod
    def _ship(state: Order) -> SendRequest:
        return SendRequest("live", "ship", {"order": state.number, "city": "Oslo"})


async def send(url: str) -> None:
    async with CommandBus(url) as bus:
        router = ProcessReplyRouter(bus, Deliver)
        manager = ProcessManager(bus, Deliver)
        async with Worker(bus, registry, concurrency=8), asyncio.TaskGroup() as tasks:
            tasks.create_task(router.run())
            first = await manager.start(Order(0))
            await manager.wait(first.process_id, timeout=60)
            print("ready", flush=True)
            for n in itertools.count(1):
                cities = ["Atlantis" if n % 4 == 0 and k == 0 else "Oslo" for k in range(5)]
                await bus.send_many([ship(order=5 * n + k, city=c) for k, c in enumerate(cities)])
                if n % 4 == 0:
                    await manager.start(Order(n))
                await asyncio.sleep(0.25)


@contextmanager
def traffic(url: str) -> Iterator[None]:
    """A process that sends and works, as long as the block runs."""
    program = [sys.executable, "-m", "bench.traffic", url]
    with Popen(program, stdout=PIPE, text=True) as running:
        assert running.stdout is not None
        if running.stdout.readline() != "ready\n":
            raise RuntimeError("The traffic did not begin; its error is above.")
        try:
            yield
        finally:
            running.terminate()


if __name__ == "__main__":
    logging.getLogger("commandbus").setLevel(logging.CRITICAL)  # parked commands are wanted here
    asyncio.run(send(sys.argv[1]))
