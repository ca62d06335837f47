"""The router of a worker's own processes: a thread beside its handlers, in either runtime.

What a process declares only decides and never waits, so a thread over the engine's blocking session
serves both runtimes, as it does for services.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

from commandbus.runtimes.threads.processes import SyncProcessReplyRouter
from commandbus.worker.handlers import HandlerRegistry

logger = logging.getLogger("commandbus.processes")


class RouterThread:
    def __init__(self, bus: Any, registry: HandlerRegistry, recorder: str | None) -> None:
        self._bus, self._registry, self._recorder = bus, registry, recorder
        self._router: SyncProcessReplyRouter | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Drive on what is registered at this moment."""
        self._router = SyncProcessReplyRouter(self._bus, list(self._registry.processes.values()))
        self._router.recorder, self._router.is_witness = self._recorder, False
        self._thread = threading.Thread(target=self._run, name=self._router.name, daemon=True)
        self._thread.start()

    def stop(self, seconds: float) -> None:
        """Finish what is under way, and wait for the end for so long."""
        if self._router is not None and self._thread is not None:
            self._router.stop(seconds)
            self._thread.join(seconds)

    def _run(self) -> None:
        assert self._router is not None
        try:
            self._router.run()
        except Exception:  # the bus was closed before the worker was stopped, which then ends, too
            logger.exception("the router %s has ended", self._router.name)
