"""The base of the process managers and routers of both runtimes."""

from __future__ import annotations

import os
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar
from uuid import UUID

from commandbus.domain.command import SendRequest
from commandbus.domain.ids import new_id
from commandbus.domain.moment import Duration, as_seconds
from commandbus.domain.names import as_name
from commandbus.domain.page import Page
from commandbus.domain.presence import WorkerInfo
from commandbus.domain.process.declaration import Process, require_declaration
from commandbus.domain.process.picture import mermaid, svg
from commandbus.domain.process.values import ProcessRecord, ProcessStatus
from commandbus.errors import InvalidArgumentError, InvalidOperationError
from commandbus.operations import processes
from commandbus.operations.presence import forget_worker
from commandbus.operations.process_writes import TIMERS
from commandbus.runtimes.base import BusBase
from commandbus.runtimes.farewell import Budget, attempt
from commandbus.runtimes.services import ServiceRunner
from commandbus.services.base import Service
from commandbus.services.batch_closer import BatchCloser
from commandbus.services.presence import Presence
from commandbus.services.process_router import (
    RouterLoop,
    RouterMetrics,
    declarations_of,
    queues_of,
    router_settings,
)
from commandbus.services.reclaimer import Reclaimer
from commandbus.settings import SHUTDOWN_SECONDS, VERSION
from commandbus.store.op import Op
from commandbus.store.outage import outage_of
from commandbus.store.process_list import this_process
from commandbus.worker.events import StopRequested
from commandbus.worker.health import HealthStatus
from commandbus.worker.recordings import recordings_beside, witness_of

GIVING_UP = "commandbus-giving-up"
CUT_SECONDS = 1.0
"""Statements that have been waiting for so long at the end of a stop are given up."""


S = TypeVar("S")
Bus = TypeVar("Bus", bound=BusBase)


class ManagerBase(Generic[S]):
    """Starts processes of one declaration, and looks after them.

    `bus` is a bus, or one inside a caller's transaction; `process` a subclass of Process.
    """

    def __init__(self, bus: Any, process: type[Process[S]]) -> None:
        self._bus = bus
        self.process: type[Process[S]] = require_declaration(process)
        self.scope, self.session, self.hub = bus.scope, bus.session, bus.hub

    def draw(self, record: ProcessRecord | None = None, format: str = "mermaid") -> str:  # noqa: A002
        """The declaration as a picture, "mermaid" or "svg"; with a record, coloured by how far that
        process is."""
        painters = {"mermaid": mermaid, "svg": svg}
        if format not in painters:
            raise InvalidArgumentError(f"format must be mermaid or svg, not {format!r}.")
        return painters[format](self.process, record)

    def _start(
        self,
        state: Any = None,
        *,
        process_id: UUID | str | None = None,
        batch_id: UUID | str | None = None,
    ) -> Op[processes.StartProcessResult]:
        """Start a process with its first state. When this returns, the process is
        durable and will be carried to an end.

        `process_id` makes a repeated start safe: the second one raises DuplicateProcessError. With
        `batch_id`, it belongs to an open batch of processes.
        """
        one = processes.ProcessStart(state, process_id)
        return _first(processes.start_processes(self.scope, self.process, [one], batch_id))

    def _start_many(
        self, states: Iterable[Any], *, batch_id: UUID | str | None = None
    ) -> Op[list[processes.StartProcessResult]]:
        """Start any number of processes, all or none; the results are in order. An item is a first
        state, or a ProcessStart with an id."""
        return processes.start_processes(self.scope, self.process, states, batch_id)

    def _create_batch(
        self,
        states: Iterable[Any],
        *,
        batch_id: UUID | str | None = None,
        name: str | None = None,
        custom_data: Any = None,
        on_complete: SendRequest | None = None,
    ) -> Op[processes.CreateProcessBatchResult]:
        """Start processes as a batch. When the last of them has ended, `on_complete` is sent, exactly
        once. Its domain is the one that `reply_to` names."""
        return processes.create_process_batch(
            self.scope,
            self.process,
            states,
            batch_id=batch_id,
            name=name,
            custom_data=custom_data,
            on_complete=on_complete,
        )

    def _list_processes(
        self,
        *,
        status: ProcessStatus | str | None = None,
        batch_id: UUID | str | None = None,
        parent_id: UUID | str | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> Op[Page[ProcessRecord]]:
        """The processes of this declaration that meet all conditions, newest first, a page at a time;
        `after` is the `next` of the page before."""
        return processes.list_processes(
            self.scope,
            process_type=self.process.process_type,
            status=status,
            batch_id=batch_id,
            parent_id=parent_id,
            created_after=created_after,
            created_before=created_before,
            after=after,
            limit=limit,
        )


def _first(op: Op[list[processes.StartProcessResult]]) -> Op[processes.StartProcessResult]:
    return (yield from op)[0]


def stop_seconds(timeout: Duration | None) -> float | None:
    """How long a router's stop is waited for."""
    return None if timeout is None else as_seconds(timeout, "timeout")


class RouterBase(ABC, Generic[Bus]):
    """Drives processes on with the replies to their commands; any number of routers may run.

    `processes` are the declarations it serves, each with its steps; a batch of replies is one
    transaction. `poll_interval` is the fallback for a lost wake-up. Deadlines of steps and processes
    are looked at when one is due or announced, and every `timer_interval` seconds where a session does
    not prove that this process hears of new ones.
    """

    runtime: ClassVar[str]

    def __init__(
        self,
        bus: Bus,
        processes: type[Process[Any]] | Iterable[type[Process[Any]]],
        *,
        concurrency: int = 1,
        batch_size: int = 200,
        poll_interval: Duration = 60.0,
        timer_interval: Duration = 1.0,
        visibility_timeout: Duration = 30.0,
        name: str | None = None,
    ) -> None:
        self._bus = bus
        self.declarations = declarations_of(processes)
        self.settings = router_settings(
            concurrency, batch_size, poll_interval, timer_interval, visibility_timeout
        )
        given = name or f"router-{socket.gethostname()[:30]}-{os.getpid()}"
        # As with workers: one that comes back under the same name is another one.
        self.name = f"{as_name(given, 'name')[:46]}-{new_id().hex[-8:]}"
        self.health_status = HealthStatus(impairment=self._deafness)
        """How the machinery of this router is doing."""
        self._metrics = RouterMetrics()
        self._guard = threading.Lock()
        self._loops: list[RouterLoop] = []
        self._queues = queues_of(self.declarations)
        self.recorder = os.environ.get("COMMANDBUS_RECORDER") or None
        """The folder of the flight recorders, as `WorkerSettings` has it: a router that takes back what
        a dead worker held asks them what had begun."""
        self.is_witness = True
        """Whether it says what is known of lost workers; beside a worker, that one does."""
        self._giving_up: threading.Event | None = None
        self._stop_early: bool | None = None

    @property
    def metrics(self) -> RouterMetrics:
        """What it has done so far."""
        return self._metrics

    def _deafness(self) -> str | None:
        held = self._bus.engine.connections
        return None if held is None else held.deaf

    @property
    def is_running(self) -> bool:
        return bool(self._loops)

    def _prepare(self) -> None:
        """Make the loops that `run` serves, each with its own registration for wake-ups."""
        with self._guard:
            if self._loops:
                raise InvalidOperationError(f"Router {self.name} runs already; make another one.")
            self._bus.engine.check_open()
            self._set_up()
            self._closer, self._giving_up = BatchCloser(self._queues), None
            self._forget = self._bus.hub.subscribe(TIMERS, self._timers_changed)
            self._loops = [self._loop(number) for number in range(self.settings.concurrency)]
            self._services = ServiceRunner(self._bus.engine, self._bus.scope, self._make_services())
            self._services.start()
            self.health_status.reset()
            self._bus.routers[self.name] = self.health_status
        early, self._stop_early = self._stop_early, False
        if early:
            self._ask_to_stop()

    @abstractmethod
    def _set_up(self) -> None:
        """Make what a runtime needs to reach its loops."""

    def _loop(self, number: int) -> RouterLoop:
        return RouterLoop(
            self._bus.scope,
            self._bus.hub,
            self.declarations,
            self.settings,
            self.name,
            self._metrics,
            self._closer,
            outage=outage_of(self._bus.engine.url),
            health=self.health_status,
            number=number,
            tell=partial(self._tell, number),
        )

    def _make_services(self) -> list[Service]:
        """What every worker runs beside its handlers, as far as a router needs it."""
        seconds = self.settings.visibility_timeout
        engine = self._bus.engine
        recordings = recordings_beside(engine, self.recorder)
        if self.is_witness:
            engine.store.consult(witness_of(recordings, outage_of(engine.url), seconds))
        reclaimer = Reclaimer(
            self.name,
            self._queues,
            seconds,
            load=lambda: (self._metrics.routed, sum(loop.held for loop in self._loops)),
            recordings=recordings,
        )
        return [Presence(self._info(), seconds), self._closer, reclaimer]

    def _info(self) -> WorkerInfo:
        """The presence record of this router."""
        now = datetime.now(UTC)
        return WorkerInfo(
            name=self.name,
            host=socket.gethostname(),
            pid=os.getpid(),
            runtime=self.runtime,
            domains=self._queues,
            command_types=(),
            concurrency=self.settings.concurrency,
            started_at=now,
            seen_at=now,
            version=VERSION,
            processes=tuple(sorted(self.declarations)),
            process=this_process(),
        )

    @abstractmethod
    def _tell(self, number: int) -> None:
        """Let a loop look again; from any thread."""

    def _timers_changed(self) -> None:
        for loop in self._loops:
            loop.timers_changed()

    def _stop(self) -> bool:
        """Ask the loops to end, from any thread or signal handler; whether there are any. A stop before
        the first run is remembered: a program that started it in a thread or task cannot know how far
        it is."""
        # First this, then the look: `_prepare` does both the other way round, so one sees the other.
        if self._stop_early is None:
            self._stop_early = True
        self._ask_to_stop()
        return self.is_running

    def _ask_to_stop(self) -> None:
        loops = self._loops
        for loop in loops:
            loop.post(StopRequested(0.0))
        if loops and self._giving_up is None:
            self._giving_up = over = threading.Event()
            arguments = over, loops
            threading.Thread(target=self._give_up, args=arguments, name=GIVING_UP, daemon=True).start()

    def _give_up(self, over: threading.Event, loops: list[RouterLoop]) -> None:
        """Transactions under way may take as long as handlers may. Then the store is given up, again
        and again: a statement may have begun just before. It ends with the run of these loops, also
        when two threads ask for the stop at once, or one does while the run ends."""
        seconds = SHUTDOWN_SECONDS
        while not over.wait(seconds) and self._loops is loops:
            for loop in loops:
                loop.given_up = True
            self._bus.engine.cut(CUT_SECONDS)
            seconds = CUT_SECONDS / 4

    def _let_go(self) -> None:
        """The loops have ended; blocks for a moment at most."""
        budget, engine = Budget(), self._bus.engine
        self._bus.routers.pop(self.name, None)
        self._services.stop(budget.left() / 2)
        farewell = forget_worker(self._bus.scope, self.name)
        attempt(lambda: engine.service_session.run(farewell), budget.left())
        if self._giving_up is not None:
            self._giving_up.set()
            self._giving_up = None
        self._forget()
        for loop in self._loops:
            self._bus.hub.unregister(loop.waiter)
        self._loops = []
