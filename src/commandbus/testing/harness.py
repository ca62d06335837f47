"""One way to drive a bus of either runtime: blocking calls, so that a test is written once.

A `Configuration` says how to reach a store and how time passes there; `SyncHarness` calls the thread
API directly, and `AsyncHarness` calls the asyncio API on a loop in a thread of its own. What a test
sees is a `Harness`.
"""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, suppress
from copy import copy
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol, Self, TypeVar
from uuid import UUID

from commandbus.domain.audit import AuditEvent
from commandbus.domain.command import CommandRecord, SendRequest, SendResult
from commandbus.domain.lifecycle import Cancellation
from commandbus.domain.page import Page
from commandbus.runtimes.asyncio.bus import CommandBus, TroubleshootingQueue
from commandbus.runtimes.asyncio.processes import ProcessManager, ProcessReplyRouter
from commandbus.runtimes.asyncio.worker import Worker
from commandbus.runtimes.threads.bus import SyncCommandBus, SyncTroubleshootingQueue
from commandbus.runtimes.threads.processes import SyncProcessManager, SyncProcessReplyRouter
from commandbus.runtimes.threads.worker import SyncWorker
from commandbus.store.capabilities import Capabilities
from commandbus.store.op import Op
from commandbus.store.records import QueueStats
from commandbus.testing.clock import FakeClock
from commandbus.testing.handlers import Gate
from commandbus.testing.waiting import PATIENCE_SECONDS, eventually
from commandbus.worker.base import ReceivedCommand
from commandbus.worker.handlers import HandlerRegistry

T = TypeVar("T")

DOMAIN = "orders"
"""The domain of a test for which any will do."""

CALL_SECONDS_MAX = 60.0


class CallerTransaction(Protocol):
    """A transaction of the caller's own, for `within`."""

    @property
    def connection(self) -> Any: ...
    def commit(self) -> None: ...
    def rollback(self) -> None: ...


@dataclass(frozen=True)
class Configuration:
    """An engine as a test meets it: its URL, and how time passes in its store.

    With a `clock`, buses are opened on it and time is moved by moving it. A store with a clock of its
    own brings `advance` instead, which makes everything stored look older by so many seconds.
    `begin` begins a caller's transaction, where the engine has that capability.
    """

    name: str
    url: str
    clock: FakeClock | None = None
    advance: Callable[[float], None] | None = None
    begin: Callable[[Harness], AbstractContextManager[CallerTransaction]] | None = None
    transport: str | None = None

    def open(self, runtime: str, *, real_time: bool = False, **settings: Any) -> Harness:
        """An open bus of the runtime "asyncio" or "threads" on this store."""
        if self.clock is not None and not real_time:
            settings["clock"] = self.clock
        if self.transport is not None:
            settings["transport"] = self.transport
        harness: Harness = {"asyncio": AsyncHarness, "threads": SyncHarness}[runtime](self, settings)
        return harness


class RunningWorker:
    """A worker at work in the background."""

    def __init__(self, harness: Harness, worker: Any, ended: Future[None]) -> None:
        self._harness = harness
        self.worker = worker
        self.ended = ended

    @property
    def metrics(self) -> Any:
        return self.worker.metrics

    def stop(self, timeout: float | None = None) -> None:
        """Stop the worker and wait for its end; raises what its run() raised."""
        self._harness.call(self.worker.stop, timeout)
        self.ended.result(CALL_SECONDS_MAX)

    def wait_until_idle(self) -> None:
        """Return when everything is recorded and the last claim was empty."""
        eventually(lambda: self.worker._core.idle)

    def wakeups(self, *, without: Iterable[str] = (), only: Iterable[str] | None = None) -> int:
        """How often it was woken, by any source or `only` by these, and not by those `without`."""
        wakeups = self.metrics.wakeups.items()
        return sum(n for s, n in wakeups if s not in without and (only is None or s in only))


class Harness(ABC):
    """A bus, its workers and its troubleshooting queue, as blocking calls. Safe to use from threads."""

    bus: Any
    bus_class: type[Any]
    queue_class: type[Any]
    worker_class: type[Any]
    manager_class: type[Any]
    router_class: type[Any]
    runtime: str

    def __init__(self, configuration: Configuration, settings: dict[str, Any]) -> None:
        self.configuration = configuration
        self._clock: FakeClock | None = settings.get("clock")
        self.bus = self.bus_class(configuration.url, **settings)
        self._start()
        try:
            self.call(self.bus.open)
        except BaseException:
            self._end()
            raise

    @abstractmethod
    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a method of the bus or of a worker and wait for its result."""

    @abstractmethod
    def spawn(self, function: Callable[..., Any]) -> Future[Any]:
        """Call a method that takes long, in the background."""

    @abstractmethod
    def run(self, op: Op[T]) -> T:
        """Run an op of the store."""

    def _start(self) -> None:
        """Make ready for calls."""
        return

    def _end(self) -> None:
        """Let go of what `_start` made."""
        return

    def close(self) -> None:
        self.call(self.bus.close)
        self._end()

    def acting(self, actor: str) -> Self:
        """The same harness, whose bus acts in this name."""
        view = copy(self)
        view.bus = self.bus.acting(actor)
        return view

    @property
    def engine(self) -> Any:
        return self.bus.engine

    @property
    def store(self) -> Any:
        return self.bus.engine.store

    @property
    def capabilities(self) -> Capabilities:
        found: Capabilities = self.store.capabilities
        return found

    # Time.

    @property
    def now(self) -> datetime:
        """What the store's clock says."""
        return self._clock.now if self._clock is not None else datetime.now(UTC)

    def advance(self, seconds: float) -> None:
        """Let time pass in the store, and let running workers look, for their timers did not move."""
        if self._clock is not None:
            self._clock.advance(seconds)
        else:
            assert self.configuration.advance is not None, "nothing here can move the store's time"
            self.configuration.advance(seconds)
        self.engine.hub.wake_all("test")

    def seconds_until(self, moment: datetime | None) -> float:
        assert moment is not None
        return (moment - self.now).total_seconds()

    # The bus.

    def send(self, domain: str = DOMAIN, command_type: str = "ship", *args: Any, **kw: Any) -> UUID:
        """Send a command; returns its id."""
        result: SendResult = self.call(self.bus.send, domain, command_type, *args, **kw)
        return result.command_id

    def send_result(self, *args: Any, **kwargs: Any) -> SendResult:
        """As `send` of the bus, with its whole result."""
        result: SendResult = self.call(self.bus.send, *args, **kwargs)
        return result

    def send_many(self, requests: Iterable[SendRequest]) -> Sequence[SendResult]:
        results: Sequence[SendResult] = self.call(self.bus.send_many, requests)
        return results

    def get(self, command_id: UUID, domain: str = DOMAIN) -> CommandRecord:
        """The record of a command that must be there."""
        record = self.find(command_id, domain)
        assert record is not None, f"there is no command {command_id} in {domain}"
        return record

    def find(self, command_id: UUID | str, domain: str = DOMAIN) -> CommandRecord | None:
        record: CommandRecord | None = self.call(self.bus.get_command, command_id, domain=domain)
        return record

    def query(self, **filters: Any) -> Page[CommandRecord]:
        page: Page[CommandRecord] = self.call(self.bus.query_commands, **filters)
        return page

    def trail(self, command_id: UUID, domain: str | None = None) -> list[AuditEvent]:
        events: list[AuditEvent] = self.call(self.bus.get_audit_trail, command_id, domain=domain)
        return events

    def kinds(self, command_id: UUID) -> list[str]:
        """The types of the events in a command's trail."""
        return [str(event.event_type) for event in self.trail(command_id)]

    def wait(self, command_id: Any, timeout: Any = PATIENCE_SECONDS, **kw: Any) -> CommandRecord:
        record: CommandRecord = self.call(self.bus.wait, command_id, timeout, **kw)
        return record

    def cancel(
        self, command_id: UUID, reason: str | None = None, *, domain: str = DOMAIN
    ) -> Cancellation:
        did: Cancellation = self.call(self.bus.cancel, command_id, domain=domain, reason=reason)
        return did

    def pause(self, domain: str = DOMAIN, *args: Any, **kwargs: Any) -> None:
        self.call(self.bus.pause, domain, *args, **kwargs)

    def resume(self, domain: str = DOMAIN) -> None:
        self.call(self.bus.resume, domain)

    def stats(self, domain: str = DOMAIN) -> QueueStats:
        stats: QueueStats = self.call(self.bus.stats, domain)
        return stats

    # The troubleshooting queue.

    @property
    def troubleshooting(self) -> Any:
        return self.queue_class(self.bus)

    def operator_retry(self, command_id: UUID, **kwargs: Any) -> None:
        self.call(self.troubleshooting.operator_retry, command_id, **kwargs)

    def operator_cancel(self, command_id: UUID, reason: str = "no use", **kwargs: Any) -> None:
        self.call(self.troubleshooting.operator_cancel, command_id, reason=reason, **kwargs)

    def operator_complete(self, command_id: UUID, result: Any = None, **kwargs: Any) -> None:
        self.call(self.troubleshooting.operator_complete, command_id, result, **kwargs)

    # Processing by hand.

    def worker(
        self,
        domain: str | Iterable[str] = DOMAIN,
        registry: HandlerRegistry | None = None,
        **options: Any,
    ) -> Any:
        """A worker that does not run."""
        return self.worker_class(self.bus, domain, registry, **options)

    def receive(self, worker: Any, *args: Any, **kwargs: Any) -> list[ReceivedCommand]:
        received: list[ReceivedCommand] = self.call(worker.receive, *args, **kwargs)
        return received

    def take(self, worker: Any, **kwargs: Any) -> ReceivedCommand:
        """The next command, which must be there."""
        received = self.receive(worker, **kwargs)
        assert received, "nothing was eligible"
        return received[0]

    # Running workers.

    @contextmanager
    def run_worker(
        self,
        registry: HandlerRegistry,
        domain: str | Iterable[str] = DOMAIN,
        **options: Any,
    ) -> Iterator[RunningWorker]:
        """A worker that runs in the background until the end of the block. Gates that are still
        closed then are opened, so that a test that fails does not wait for its handlers."""
        worker = self.worker(domain, registry, **options)
        running = RunningWorker(self, worker, self.spawn(worker.run))
        eventually(lambda: worker.is_running or running.ended.done())
        try:
            yield running
        finally:
            for handler in registry:
                if isinstance(handler.function, Gate):
                    handler.function.open()
            running.stop()

    # Processes.

    @contextmanager
    def run_router(self, *processes: Any, **options: Any) -> Iterator[Any]:
        """A router that runs in the background until the end of the block."""
        router = self.router_class(self.bus, processes, **({"timer_interval": 0.1} | options))
        ended = self.spawn(router.run)
        eventually(lambda: router.is_running or ended.done())
        try:
            yield router
        finally:
            self.call(router.stop)
            ended.result(CALL_SECONDS_MAX)


class SyncHarness(Harness):
    """Drives `commandbus.sync` from the thread of the caller."""

    bus_class, queue_class, worker_class = SyncCommandBus, SyncTroubleshootingQueue, SyncWorker
    manager_class, router_class = SyncProcessManager, SyncProcessReplyRouter
    runtime = "threads"

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    def spawn(self, function: Callable[..., Any]) -> Future[Any]:
        future: Future[Any] = Future()

        def work() -> None:
            try:
                future.set_result(function())
            except BaseException as error:  # the waiter of the future gets it
                future.set_exception(error)

        threading.Thread(target=work, name="harness-background", daemon=True).start()
        return future

    def run(self, op: Op[T]) -> T:
        result: T = self.bus.session.run(op)
        return result


class AsyncHarness(Harness):
    """Drives `commandbus` on an event loop in a thread of its own."""

    bus_class, queue_class, worker_class = CommandBus, TroubleshootingQueue, Worker
    manager_class, router_class = ProcessManager, ProcessReplyRouter
    runtime = "asyncio"

    def _start(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="harness-loop", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            left = asyncio.all_tasks(self._loop)
            for task in left:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
        finally:
            self._loop.close()

    def _end(self) -> None:
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CALL_SECONDS_MAX)

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        async def work() -> Any:
            return await function(*args, **kwargs)

        return asyncio.run_coroutine_threadsafe(work(), self._loop).result(CALL_SECONDS_MAX)

    def spawn(self, function: Callable[..., Any]) -> Future[Any]:
        async def work() -> Any:
            return await function()

        return asyncio.run_coroutine_threadsafe(work(), self._loop)

    def run(self, op: Op[T]) -> T:
        result: T = self.call(self.bus.session.run, op)
        return result
