"""How the tests run the tasks of an app, and errors that their tasks raise."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from commandbus import CommandBus, Worker
from commandbus.integrations.celery import (
    Celery,
)
from commandbus.sync import SyncWorker
from commandbus.testing import drain


def run(app: Celery) -> None:
    drain(app.bus, app.registry)


@contextmanager
def working(app: Celery, is_async: bool) -> Iterator[None]:
    """A worker of either runtime, in a thread of its own."""
    if not is_async:
        with SyncWorker(app.bus, app.registry):
            yield
        return
    over = threading.Event()

    async def work() -> None:
        async with CommandBus(app.bus.url) as bus, Worker(bus, app.registry):
            await asyncio.to_thread(over.wait)

    thread = threading.Thread(target=asyncio.run, args=(work(),), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


class Declined(Exception):
    pass


class Difficult(Exception):
    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text}")
