"""Runs services in threads."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable

from commandbus.runtimes.threads.bus import SyncCommandBus
from commandbus.services.base import Service

logger = logging.getLogger("commandbus.services")

PAUSE_AFTER_FAILURE = 5.0


class SyncServices:
    """A thread for each service, until `stop()`."""

    def __init__(self, bus: SyncCommandBus, services: Iterable[Service]) -> None:
        self._bus = bus
        self._stopped = False
        self._news = {service: threading.Event() for service in services}
        self._unsubscribe: list[Callable[[], None]] = []
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        for service, news in self._news.items():
            self._unsubscribe.append(self._bus.hub.subscribe(service.topic, news.set))
            name = f"commandbus-{service.name}"
            thread = threading.Thread(target=self._run, args=(service, news), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        self._stopped = True
        for unsubscribe in self._unsubscribe:
            unsubscribe()
        for news in self._news.values():
            news.set()
        for thread in self._threads:
            thread.join(timeout=10)

    def _run(self, service: Service, news: threading.Event) -> None:
        while not self._stopped:
            news.clear()
            try:
                seconds = self._bus.session.run(service.work(self._bus.scope))
            except Exception as error:  # a service outlives its failures
                logger.warning("service %s failed, trying again: %s", service.name, error)
                seconds = PAUSE_AFTER_FAILURE
            if not self._stopped:
                news.wait(seconds)
