"""A worker of either runtime in a thread of the test, and the commands that it carried out."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from commandbus import CommandBus, HandlerRegistry, Worker
from commandbus.sync import SyncCommandBus, SyncWorker

DOMAIN = "orders"


class Done:
    """Which commands were carried out, and how often each."""

    def __init__(self) -> None:
        self.runs: Counter[str] = Counter()
        self.worker: Any = None
        self.ended: BaseException | None = None
        """What run() raised: a worker that is dead."""

    def __contains__(self, command_id: object) -> bool:
        return str(command_id) in self.runs

    def has(self, ids: Any) -> bool:
        return all(str(command_id) in self.runs for command_id in ids)


@contextmanager
def working(
    url: str,
    runtime: str = "threads",
    handle: Callable[[Any, Any], None] | None = None,
    **options: Any,
) -> Iterator[Done]:
    """Runs until the end of the block; fails if the worker died before."""
    done = Done()
    ready = threading.Event()
    stops: list[Callable[[], None]] = []

    def note(command: Any, context: Any) -> None:
        if handle is not None:
            handle(command, context)
        done.runs[str(command.command_id)] += 1

    async def note_async(command: Any, context: Any) -> None:
        note(command, context)

    registry = HandlerRegistry()
    registry.register(DOMAIN, "ship", note_async if runtime == "asyncio" else note)

    def run_in_threads() -> None:
        with SyncCommandBus(url) as bus:
            worker = done.worker = SyncWorker(bus, DOMAIN, registry, **options)
            stops.append(lambda: worker.stop(5))
            ready.set()
            worker.run()

    async def run_async() -> None:
        async with CommandBus(url) as bus:
            worker = done.worker = Worker(bus, DOMAIN, registry, **options)
            loop = asyncio.get_running_loop()
            stops.append(lambda: asyncio.run_coroutine_threadsafe(worker.stop(5), loop).result(30))
            ready.set()
            await worker.run()

    def run() -> None:
        try:
            if runtime == "threads":
                run_in_threads()
            else:
                asyncio.run(run_async())
        except BaseException as error:  # told to the test, below
            done.ended = error
            ready.set()

    thread = threading.Thread(target=run, name=f"working-{runtime}", daemon=True)
    thread.start()
    assert ready.wait(30)
    try:
        yield done
        assert thread.is_alive(), f"the worker died: {done.ended!r}"
    finally:
        if thread.is_alive() and stops:
            stops[0]()
        thread.join(30)
    assert done.ended is None, f"the worker died: {done.ended!r}"
