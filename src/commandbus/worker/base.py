"""The base of the workers of both runtimes: everything but waiting."""

from __future__ import annotations

import logging
import os
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from commandbus.domain.breaker_board import BreakerBoard
from commandbus.domain.command import Command
from commandbus.domain.ids import new_id
from commandbus.domain.moment import SECOND, Duration, as_seconds
from commandbus.domain.names import as_name
from commandbus.domain.outcome import Outcome, Released
from commandbus.errors import (
    ConfigurationError,
    InvalidOperationError,
    LeaseLost,
    NotOpen,
    PermanentCommandError,
    TransientCommandError,
)
from commandbus.settings import WorkerSettings, check_concurrency, check_poll_interval
from commandbus.store.batching import TOPIC as BATCHES
from commandbus.store.op import Op, Wake, autocommit
from commandbus.store.outage import outage_of
from commandbus.store.records import Claimed, Settlement, SettleReport
from commandbus.store.sent import SentFigures
from commandbus.store.session import ConnectionUse, Demand, Engine, bus_closed
from commandbus.worker.context import HandlerContext, SyncHandlerContext
from commandbus.worker.core import WorkerCore
from commandbus.worker.encoding import result_of
from commandbus.worker.events import (
    ClaimAnswered,
    ClaimFailed,
    Event,
    Finished,
    PollChanged,
    Resized,
    Settled,
    SettleFailed,
    StopRequested,
)
from commandbus.worker.execution import Execution
from commandbus.worker.fates import CaughtException
from commandbus.worker.handlers import Handler, HandlerRegistry
from commandbus.worker.health import HealthStatus
from commandbus.worker.isolation.options import check_runnable
from commandbus.worker.metrics import WorkerMetrics
from commandbus.worker.middleware import Middleware, check_middleware
from commandbus.worker.readiness import ANSWER_SECONDS, StoreAnswer, StoreCheck
from commandbus.worker.settlements import settlement_of
from commandbus.worker.until_idle import idle_seconds

logger = logging.getLogger("commandbus.worker")

Observer = Callable[[Sequence[Settlement]], None]
CUT_GRACE = 1.0
"""At a restart, connections without an answer for this long after the server should have given up are
broken, so that calls that wait on them can go on."""


class ReceivedCommand(msgspec.Struct, frozen=True):
    """A command taken by hand: settle it with `complete`, `fail` or `release` before its lease ends,
    for nothing renews it."""

    command: Command[Any]
    attempt: int
    max_attempts: int
    context: HandlerContext | SyncHandlerContext
    claimed: Claimed


class WorkerBase(ABC):
    """Configuration, counters and manual processing of a worker; a runtime adds what waits."""

    def __init__(
        self,
        engine: Engine,
        bus_max_attempts: int,
        breakers: BreakerBoard,
        domains: tuple[str, ...],
        registry: HandlerRegistry,
        settings: WorkerSettings,
        name: str | None,
        middleware: Iterable[Middleware] = (),
    ) -> None:
        self.domains = domains
        self.registry = registry
        self.settings = settings
        # The boot id makes a worker that comes back under the same name another worker.
        boot_id = new_id().hex[-8:]
        host = "".join(c if c.isalnum() or c in "_.-" else "-" for c in socket.gethostname())
        base = as_name(name, "name") if name else f"w-{host[:30]}-{os.getpid()}"
        self.name = f"{base[:54]}-{boot_id}"
        self._engine = engine
        self._outage = outage_of(engine.url)
        self._demand = self._demand_of(settings.concurrency)
        engine.check_demand(self._demand_of(settings.max_concurrency or settings.concurrency))
        self._check_handlers()
        self._ageing = self._check_ageing()
        self.health_status = HealthStatus(settings.silence_timeout, self._deafness)
        """How the machinery of this worker is doing."""
        self._store_check = StoreCheck(self._ask_store)
        self._core = WorkerCore(settings, take_timer_turn=self._take_timer_turn)
        self._configured = self._core.concurrency
        self._execution = Execution(
            engine,
            self.registry,
            self.name,
            policy=settings.retry_policy,
            max_attempts=bus_max_attempts,
            breakers=breakers,
            demand=self._demand,
            health=self.health_status,
            middleware=[check_middleware(one) for one in middleware],
            bus_over=self._bus_over,
            settled=self._note,
        )
        self.observer: Observer | None = None
        """Called with all runs that ended, some at a time; for metrics."""
        self._running = False
        self.supervisor = 0
        """The process that watches this one, and knows how it ends; 0 for none."""
        self._restart_reason: str | None = None
        self._stop_early: bool | None = None
        self._until_idle: float | None = None
        self._fresh = True

    def _check_handlers(self) -> None:
        """Raises ConfigurationError when the store cannot do what a handler was registered for."""
        if self.registry.limits and not self._engine.store.capabilities.gates:
            raise ConfigurationError(
                f"The registry declares a limit ({self.registry.limits[0]}), but over PGMQ only sends "
                "can be limited; leave rate= and concurrency= out, or use postgresql:// without the "
                "transport."
            )
        for found in self.registry:
            if found.isolated is not None:
                check_runnable(found.isolated, getattr(found.contract, "function", found.function))
        if self._engine.store.capabilities.handler_transactions:
            return
        for found in self.registry:
            if found.transactional and found.domain in self.domains:
                raise ConfigurationError(
                    f"The handler for {found.command_type!r} in domain {found.domain!r} is "
                    f"transactional, but {self.scheme}:// has no transactions for handlers; register "
                    "it without transactional=True, or use postgresql://…."
                )

    def _check_ageing(self) -> int | None:
        """Microseconds of waiting per step of priority."""
        ageing = self.settings.ageing
        if ageing is not None and not self._engine.store.capabilities.ageing:
            raise ConfigurationError(
                "A PGMQ queue gives out its messages in order, so waiting cannot make one more urgent; "
                "leave ageing= out, or use postgresql:// without the transport."
            )
        return None if ageing is None else int(ageing * SECOND)

    @abstractmethod
    def _bus_over(self, session: Any, is_async: bool, in_transaction: bool) -> Any:
        """The bus that a handler gets."""

    @abstractmethod
    def _note(self, report: SettleReport) -> None:
        """What follows a settle."""

    @abstractmethod
    def _take_timer_turn(self, due_at: float, now: float) -> bool:
        """Whether this worker of its process claims for a timer that has expired."""

    def wrap_handlers(self, wrap: Callable[[Handler], Handler]) -> None:
        """Call every handler through a wrapper from now on; the last one given is outermost."""
        self._execution.wrap_handlers(wrap)

    def _begin_anew(self) -> None:
        """A fresh core for a new run; counters and what was set at run time stay."""
        before = self._core
        self._core = WorkerCore(
            self.settings,
            metrics=before.metrics,
            take_timer_turn=self._take_timer_turn,
            until_idle=self._until_idle,
        )
        self._core.concurrency, self._core.quiet = before.concurrency, before.quiet
        self._core.poll_interval = before.poll_interval

    def _another_round(self) -> bool:
        """Whether to run: the first time yes, then as often as a restart was asked for."""
        first, self._fresh = self._fresh, False
        if first:
            return True
        closed = self._core.ending.failure
        if closed is not None:
            raise bus_closed(f"worker {self.name}") from closed
        again, self._restart_reason = self._restart_reason is not None, None
        if again:
            self.health_status.reset()
        return again

    def _observe(self, event: Event) -> None:
        """Update health from an event, and report ended commands to the observer."""
        if isinstance(event, Finished):
            if self.observer is not None:
                try:
                    self.observer(event.settlements)
                except Exception:  # an observer must not stop the work
                    logger.exception("the observer of ended commands failed")
            return
        if not isinstance(event, ClaimAnswered | ClaimFailed | Settled | SettleFailed):
            return
        health = self.health_status
        what = "claim" if isinstance(event, ClaimAnswered | ClaimFailed) else "settle"
        health.answered(what)
        if isinstance(event, ClaimAnswered | Settled):
            if isinstance(event, Settled) and self._execution.recorder is not None:
                self._execution.recorder.settled(self._core.settling)
            health.record_success(what)
            self._outage.answered()
            if isinstance(event, ClaimAnswered) and event.reply.stuck is not None:
                health.record_stuck_leases(event.reply.stuck)
            return
        if not isinstance(event.error, NotOpen):
            self._outage.failed(what, event.error, logger)
        health.record_error(event.error, what)

    def request_restart(self, reason: str, patience: float = 5.0) -> None:
        """Restart inside `run()`: drain for up to `patience` seconds what can be drained, leave
        stuck threads behind, and go on with new threads and a new core. From any thread."""
        logger.error("restarting worker %s: %s", self.name, reason)
        self._restart_reason = reason
        self._engine.cut(self.settings.statement_seconds + CUT_GRACE)
        # Idle connections may be as dead as those that were cut; a draining worker must not get one.
        self._engine.replace()
        self._post_from_anywhere(StopRequested(patience))

    def request_end(self, reason: str) -> None:
        """End `run()`, as a stop does, so that the supervisor of this process starts another. From any
        thread."""
        logger.error("worker %s ends, and its supervisor starts another process: %s", self.name, reason)
        self._post_from_anywhere(StopRequested(self.settings.shutdown_timeout))

    @property
    def metrics(self) -> WorkerMetrics:
        """Counters since the worker was made."""
        return self._core.metrics

    @property
    def concurrency(self) -> int:
        return self._core.concurrency

    @property
    def scheme(self) -> str:
        """The scheme of the store's URL."""
        return self._engine.url.partition(":")[0]

    @property
    @abstractmethod
    def sent(self) -> SentFigures:
        """What its bus has sent."""

    @property
    def connections(self) -> ConnectionUse | None:
        """The connections that this process holds; None where there is no server."""
        return self._engine.connections

    def _deafness(self) -> str | None:
        held = self._engine.connections
        return None if held is None else held.deaf

    @property
    def in_flight_count(self) -> int:
        """Commands that this worker holds and has not finished."""
        return self._core.held

    @property
    def has_backlog(self) -> bool:
        """Whether more was waiting at the last claim than could be taken."""
        return self._core.backlog

    @property
    def is_running(self) -> bool:
        return self._running

    @property
    def last_exceptions(self) -> list[CaughtException]:
        """The newest exceptions of handlers, oldest first; for tests and for inspection."""
        return list(self._execution.last_exceptions)

    def set_concurrency(self, concurrency: int) -> None:
        """Change how many handlers run at once, at least 1. Running ones are not interrupted. Raises
        ConfigurationError when the pool is smaller than that."""
        checked = check_concurrency(concurrency)
        self._engine.check_demand(self._demand_of(checked))
        self._post_from_anywhere(Resized(checked))

    def set_poll_interval(self, seconds: Duration) -> None:
        """Change the fallback interval of an idle worker, at least 0.1 s."""
        checked = check_poll_interval(as_seconds(seconds, "poll_interval"))
        self._post_from_anywhere(PollChanged(checked))

    def _demand_of(self, concurrency: int) -> Demand:
        return Demand(concurrency, self.settings.statement_seconds, self.name)

    @property
    def is_stopping(self) -> bool:
        return self._core.stopping

    def ping(self, timeout: float = 1.0) -> bool:
        """Whether the worker's loop advances: it must answer within `timeout` seconds. Asks nothing
        of the store. From any other thread."""
        if not self._running:
            return False
        answered = threading.Event()
        self._ask(answered.set)
        return answered.wait(timeout)

    def check_store(self) -> None:
        """Whether the store can be written and has the right schema; raises what is wrong, or
        StoreUnavailable when it does not answer within 1.5 s. Blocks, so under asyncio call it from
        another thread."""
        self.ask_store().wait(ANSWER_SECONDS)

    def ask_store(self, max_age: float = 0.0) -> StoreAnswer:
        """Begin that check, on a connection that handlers and senders cannot keep busy; or return the
        last one, if it is no older than so many seconds."""
        return self._store_check.begin(max_age)

    def _ask_store(self) -> None:
        self._engine.reserved_session.run(self._engine.store.check())

    @abstractmethod
    def _ask(self, answer: Callable[[], None]) -> None:
        """Call this in the worker's loop; from any thread."""

    @abstractmethod
    def _post_from_anywhere(self, event: Event) -> None:
        """Hand an event to the core; from any thread."""

    def _remember_stop(self) -> bool:
        """Whether there is nothing to stop. A stop that comes before the first run is remembered,
        since a program that started that run in a thread or task cannot know how far it is."""
        self._restart_reason = None
        # First this, then the look: `_may_run` does both the other way round, so one sees the other.
        if self._stop_early is None:
            self._stop_early = True
        return not self._running

    @property
    def is_drained(self) -> bool:
        """Whether the last run ended by itself, because of its `until_idle`."""
        return self._core.until_idle.is_over

    def _may_run(self, until_idle: bool | Duration | None = None) -> bool:
        """Take the right to run; False when a stop came first."""
        self._check_can_run()
        self._until_idle = idle_seconds(until_idle)
        self._check_handlers()
        self._execution.check_middleware()
        self._warn_of_idle_domains()
        self._running = self._fresh = True
        early, self._stop_early = self._stop_early, False
        if early:
            self._running = False
        return self._running

    def _warn_of_idle_domains(self) -> None:
        served = {domain for domain, _ in self.registry.registered_handlers()}
        for domain in self.domains:
            if domain not in served:
                logger.warning("no handler is registered for domain %s; its commands go back", domain)

    def _check_can_run(self) -> None:
        if self._running:
            raise InvalidOperationError("This worker is running already; make another one.")
        if not self.registry.registered_handlers() and not self.registry.processes:
            raise ConfigurationError(
                "The worker has no handlers: pass a HandlerRegistry with at least one, or use "
                "receive() and complete() to process by hand."
            )
        self._engine.check_open()

    @autocommit
    def _complete(self, received: ReceivedCommand, result: Any = None) -> Op[None]:
        """Record that a command taken by hand is done. Raises LeaseLost when it is too late."""
        command = received.command
        handler = self.registry.get(command.domain, command.command_type)
        yield from self._settle_by_hand(received, result_of(handler, result))

    @autocommit
    def _fail(
        self, received: ReceivedCommand, error: BaseException | str, is_transient: bool = True
    ) -> Op[None]:
        """Record that a command taken by hand failed: retried, parked or rejected as if a handler
        had raised `error`. With is_transient=False it is parked at once. Raises LeaseLost."""
        if isinstance(error, str):
            error = TransientCommandError("FAILED", error)
        if not is_transient and not isinstance(error, PermanentCommandError):
            error = PermanentCommandError(type(error).__name__, str(error))
        command = received.command
        handler = self.registry.get(command.domain, command.command_type)
        outcome = self._execution.judge(received.claimed, handler, error)
        yield from self._settle_by_hand(received, outcome)

    @autocommit
    def _release(self, received: ReceivedCommand, delay: Duration = 0.0) -> Op[None]:
        """Give back a command taken by hand without using an attempt. Raises LeaseLost."""
        outcome = Released("released by hand", as_seconds(delay, "delay"))
        yield from self._settle_by_hand(received, outcome)

    def _settle_by_hand(self, received: ReceivedCommand, outcome: Outcome) -> Op[None]:
        claimed = received.claimed
        settlement = settlement_of(claimed, outcome)
        report = yield from self._engine.store.settle([settlement])
        if self._execution.recorder is not None:
            self._execution.recorder.settled([settlement])
        if report.batches:
            yield Wake(BATCHES)
        if report.lost:
            raise LeaseLost(
                f"The lease on command {claimed.command_id} (attempt {claimed.attempt}) is gone: it "
                "expired or was settled before. Nothing was recorded; take the command again."
            )
