"""A process router in this process, until a signal stops it."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import Any

from commandbus.interfaces.cli import output, target, text
from commandbus.interfaces.cli.serving import run_async, tell_loop
from commandbus.interfaces.cli.signals import Signals
from commandbus.settings import SHUTDOWN_SECONDS
from commandbus.store.urls import shown_url


def serve_router(url: str, declarations: list[Any], concurrency: int, *, threads: bool) -> None:
    if threads:
        _serve_threads(url, declarations, concurrency)
    else:
        run_async(_serve_asyncio(url, declarations, concurrency))


async def _serve_asyncio(url: str, declarations: list[Any], concurrency: int) -> None:
    from commandbus import CommandBus, ProcessReplyRouter

    bus = CommandBus(url)
    target.check_store(bus.engine, create=True)
    async with bus:
        router = ProcessReplyRouter(bus, declarations, concurrency=concurrency)
        loop, stops = asyncio.get_running_loop(), set[asyncio.Task[None]]()

        def begin(_: float | None) -> None:
            stops.add(loop.create_task(router.stop()))

        running = loop.create_task(router.run())
        Signals(partial(tell_loop, loop, begin), SHUTDOWN_SECONDS)
        _hello(router, url)
        await running
        await asyncio.gather(*stops)
    _goodbye(router)


def _serve_threads(url: str, declarations: list[Any], concurrency: int) -> None:
    from commandbus.sync import SyncCommandBus, SyncProcessReplyRouter

    bus = SyncCommandBus(url)
    target.check_store(bus.engine, create=True)
    with bus:
        router = SyncProcessReplyRouter(bus, declarations, concurrency=concurrency)

        def begin(_: float | None) -> None:
            # In a thread, for stop() waits until run() ends, and run() has this one.
            threading.Thread(target=router.stop, daemon=True).start()

        Signals(begin, SHUTDOWN_SECONDS)
        _hello(router, url)
        router.run()
    _goodbye(router)


def _hello(router: Any, url: str) -> None:
    served = ", ".join(sorted(router.declarations))
    output.done(f"router {router.name} serves {served}, {shown_url(url)}")


def _goodbye(router: Any) -> None:
    routed = text.plural(router.metrics.routed, "reply", "replies")
    output.done(f"router {router.name} has stopped after {routed}")
