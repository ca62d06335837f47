"""A worker as the fleet sees it, and as operators ask it: its presence, and what it does on request."""

from __future__ import annotations

import logging
import os
import socket
import time
from abc import abstractmethod
from collections.abc import Callable
from datetime import UTC, datetime

import msgspec

from commandbus.domain.presence import WorkerInfo, WorkerRequest, WorkerState
from commandbus.errors import ConfigurationError
from commandbus.settings import VERSION
from commandbus.store.process_list import own_memory, this_process
from commandbus.store.sessions import WORKERS
from commandbus.worker.base import WorkerBase
from commandbus.worker.events import Event, Quieted, Resized, StopRequested

logger = logging.getLogger("commandbus.worker")


class AskedWorker(WorkerBase):
    """What both runtimes do about requests of operators. Not used on its own."""

    _request: WorkerRequest = WorkerRequest()
    obey_stop: Callable[[], object] | None = None
    """What ends the worker on an operator's request, where it is more than a stop."""

    @abstractmethod
    def _stop_by_signal(self, seconds: float | None) -> None:
        """Begin to stop, without waiting for the end."""

    def _presence(self, runtime: str) -> WorkerInfo:
        """The presence record of this worker."""
        now = datetime.now(UTC)
        return WorkerInfo(
            name=self.name,
            host=socket.gethostname(),
            pid=os.getpid(),
            runtime=runtime,
            domains=self.domains,
            command_types=tuple(self.registry.registered_handlers()),
            isolated=tuple((h.domain, h.command_type) for h in self.registry if h.isolated is not None),
            concurrency=self._core.concurrency,
            started_at=now,
            seen_at=now,
            version=VERSION,
            tags=self.settings.tags,
            process=this_process(),
            configured_concurrency=self._configured,
            concurrency_max=self._engine.slots_max,
        )

    def _refresh(self, info: WorkerInfo) -> WorkerInfo:
        """The presence record with the figures of now."""
        return msgspec.structs.replace(
            info,
            concurrency=self._core.concurrency,
            children=self.metrics.children,
            child_restarts=self.metrics.child_restarts,
            child_kills=dict(self.metrics.child_kills),
            state=self._state,
            memory_bytes=own_memory(),
            cpu_seconds=time.process_time(),
        )

    @property
    def _state(self) -> WorkerState:
        """What it does about commands that wait."""
        if self._core.stopping:
            return WorkerState.STOPPING
        return WorkerState.QUIET if self._core.quiet else WorkerState.RUNNING

    def _on_request(self, request: WorkerRequest) -> None:
        """Carry out what operators ask of this worker now. Called by the thread of services."""
        before, self._request = self._request, request
        if request == before:
            return
        slots = request.concurrency or self._configured
        logger.info("an operator asks worker %s: %s, %s at once", self.name, request.state, slots)
        if (request.quiet is None) != (before.quiet is None):
            self._post_from_anywhere(Quieted(request.quiet is not None))
        if request.concurrency != before.concurrency:
            self._resize(slots)
        if request.stop is not None and before.stop is None:
            self._stop_by_signal(None) if self.obey_stop is None else self.obey_stop()

    def _resize(self, slots: int) -> None:
        try:
            self._engine.check_demand(self._demand_of(slots))
        except ConfigurationError as error:  # the limit that operators see may be late
            logger.error("worker %s keeps its concurrency: %s", self.name, error)  # noqa: TRY400
        else:
            self._post_from_anywhere(Resized(slots, asked=True))

    @property
    def is_resized(self) -> bool:
        """Whether an operator decided how many handlers run at once."""
        return self._request.concurrency is not None

    @property
    def was_asked_to_stop(self) -> bool:
        """Whether an operator stopped this worker; a supervisor starts no other in its place."""
        return self._request.stop is not None

    def _changed(self, event: Event) -> None:
        """After an event of `STATES`."""
        if isinstance(event, Resized):
            self._engine.meet(self._demand_of(event.concurrency))
        if (
            isinstance(event, Quieted)
            or (isinstance(event, Resized) and event.asked)
            or (isinstance(event, StopRequested) and self._core.held)
        ):
            self._engine.hub.wake(WORKERS, None, "state")
