"""Runs services on an event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial

from commandbus.runtimes.asyncio.bus import CommandBus
from commandbus.services.base import Service

logger = logging.getLogger("commandbus.services")

PAUSE_AFTER_FAILURE = 5.0


class Services:
    """A task for each service, until `stop()`."""

    def __init__(self, bus: CommandBus, services: Iterable[Service]) -> None:
        self._bus = bus
        self._services = list(services)
        self._unsubscribe: list[Callable[[], None]] = []
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        for service in self._services:
            news = asyncio.Event()
            tell = partial(loop.call_soon_threadsafe, news.set)
            self._unsubscribe.append(self._bus.hub.subscribe(service.topic, tell))
            self._tasks.append(asyncio.create_task(self._run(service, news)))

    async def stop(self) -> None:
        for unsubscribe in self._unsubscribe:
            unsubscribe()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(self, service: Service, news: asyncio.Event) -> None:
        while True:
            news.clear()
            try:
                seconds = await self._bus.session.run(service.work(self._bus.scope))
            except Exception as error:  # a service outlives its failures
                logger.warning("service %s failed, trying again: %s", service.name, error)
                seconds = PAUSE_AFTER_FAILURE
            try:
                async with asyncio.timeout(seconds):
                    await news.wait()
            except TimeoutError:
                pass
