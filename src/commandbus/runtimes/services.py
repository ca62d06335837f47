"""Runs services, in either runtime: one thread for all of them, over the engine's blocking session.

They are short and rare, so they need neither a loop nor a thread each; and a blocked event loop cannot
keep a worker from reporting itself.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial

from commandbus.errors import NotOpen
from commandbus.operations.scope import Scope
from commandbus.services.base import Confirming, Looking, Nudged, Service
from commandbus.store.outage import outage_of
from commandbus.store.session import Engine

logger = logging.getLogger("commandbus.services")

PAUSE_AFTER_FAILURE = 5.0
STOP_SECONDS = 10.0


class ServiceRunner:
    def __init__(self, engine: Engine, scope: Scope, services: Iterable[Service]) -> None:
        self._engine = engine
        self._outage = outage_of(engine.url)
        self._scope = scope
        self._due = dict.fromkeys(services, 0.0)
        self._changed = threading.Condition()
        self._stopped = False
        self._unsubscribe: list[Callable[[], None]] = []
        self._thread = threading.Thread(target=self._run, name="commandbus-services", daemon=True)

    def start(self) -> None:
        for service in self._due:
            tell = partial(self._nudge, service)
            self._unsubscribe.append(self._engine.hub.subscribe(service.topic, tell))
        self._thread.start()

    def stop(self, seconds: float = STOP_SECONDS) -> None:
        """End, and wait for it for so long: a service may wait for a store that does not answer."""
        for unsubscribe in self._unsubscribe:
            unsubscribe()
        with self._changed:
            self._stopped = True
            self._changed.notify()
        self._thread.join(timeout=seconds)

    def _nudge(self, service: Service) -> None:
        if isinstance(service, Nudged):
            service.nudged()
        self.hasten(service)

    def hasten(self, service: Service) -> None:
        """Run it now; from any thread."""
        with self._changed:
            self._due[service] = 0.0
            self._changed.notify()

    def _run(self) -> None:
        while (service := self._next()) is not None:
            try:
                if isinstance(service, Looking) and not service.look():
                    seconds = service.look_seconds
                else:
                    seconds = self._engine.service_session.run(service.work(self._scope))
                    self._outage.answered()
                    if isinstance(service, Confirming):
                        service.confirm()
            except NotOpen:  # closed before the worker has stopped: nothing is left to do, or to tell
                seconds = PAUSE_AFTER_FAILURE
            except Exception as error:  # a service outlives its failures
                self._outage.failed(f"service {service.name}", error, logger)
                seconds = PAUSE_AFTER_FAILURE
            with self._changed:
                # A nudge that came meanwhile stands.
                if self._due[service] > 0:
                    self._due[service] = time.monotonic() + seconds

    def _next(self) -> Service | None:
        """The service that is due, after waiting for it; None when stopped."""
        with self._changed:
            while not self._stopped:
                service = min(self._due, key=self._due.__getitem__)
                now = time.monotonic()
                if self._due[service] <= now:
                    self._due[service] = now
                    return service
                self._changed.wait(self._due[service] - now)
            return None
