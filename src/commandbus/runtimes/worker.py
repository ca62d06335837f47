"""The part of a worker that both runtimes share: arguments, background threads, quick effects."""

from __future__ import annotations

import logging
import os
import socket
import time
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar, Unpack

from commandbus.domain.command import Command
from commandbus.domain.counts import as_count
from commandbus.domain.moment import Duration, as_seconds
from commandbus.domain.presence import WorkerRestart
from commandbus.domain.priority import Priority, as_priority
from commandbus.domain.shown import shows_options
from commandbus.errors import ConfigurationError, StoreUnavailable
from commandbus.operations.canceling import in_doubt, with_requests
from commandbus.operations.presence import forget_worker
from commandbus.operations.scope import Await, Flow, Send
from commandbus.runtimes.asyncio.bus import BusWithin, HandlerBus
from commandbus.runtimes.base import BusBase, tracing_module
from commandbus.runtimes.children.pool import Children
from commandbus.runtimes.farewell import Budget, attempt
from commandbus.runtimes.routing import RouterThread
from commandbus.runtimes.services import ServiceRunner
from commandbus.runtimes.threads.bus import SyncBusWithin, SyncHandlerBus
from commandbus.services.base import Service
from commandbus.services.batch_closer import BatchCloser
from commandbus.services.cancellations import Cancellations
from commandbus.services.crash_recovery import CrashRecovery
from commandbus.services.declarer import Declarer
from commandbus.services.historian import Historian
from commandbus.services.reclaimer import Reclaimer
from commandbus.services.restarts import Restarts
from commandbus.services.standard import standard_services
from commandbus.services.worker_requests import WorkerRequests
from commandbus.settings import WorkerOptions, WorkerSettings, defaults_of, settings_of
from commandbus.store.records import (
    CancelRequest,
    Claimed,
    ClaimReply,
    ClaimRequest,
    Settlement,
    SettleReport,
)
from commandbus.store.sent import SentFigures
from commandbus.store.sessions import CANCELLATIONS, WORKERS
from commandbus.store.wakeup import WakeHub
from commandbus.worker.asked import AskedWorker
from commandbus.worker.base import ReceivedCommand
from commandbus.worker.completing import confirm, unconfirmed
from commandbus.worker.context import HandlerContext, HandlerServices, SyncHandlerContext
from commandbus.worker.effects import Claim, Forget, PassOn
from commandbus.worker.events import (
    ClaimAnswered,
    ClaimFailed,
    LeasesGone,
    Settled,
    SettleFailed,
    StopRequested,
    Woken,
)
from commandbus.worker.execution import Call
from commandbus.worker.handlers import HandlerRegistry
from commandbus.worker.isolation.preparing import check_not_preparing
from commandbus.worker.keeper import LeaseKeeper
from commandbus.worker.middleware import Middleware
from commandbus.worker.recorder import open_recorder
from commandbus.worker.recordings import Recordings, witness_of
from commandbus.worker.releases import UNCHECKED, release
from commandbus.worker.serving import what_to_serve
from commandbus.worker.sizing import Sizer

logger = logging.getLogger("commandbus.worker")
Bus = TypeVar("Bus", bound=BusBase)
RECEIVE_MAX = 1_000


class RuntimeWorker(AskedWorker, Generic[Bus]):
    """Carries out the commands of one or several domains; see the workers of the two runtimes."""

    runtime: ClassVar[str]
    bus_type: ClassVar[type[BusBase]]
    context_type: ClassVar[type[HandlerContext | SyncHandlerContext]]

    @shows_options(defaults_of(WorkerSettings))
    def __init__(
        self,
        bus: Bus,
        domain: str | Iterable[str] | HandlerRegistry,
        *registries: HandlerRegistry | None,
        settings: WorkerSettings | None = None,
        name: str | None = None,
        middleware: Iterable[Middleware] = (),
        **options: Unpack[WorkerOptions],
    ) -> None:
        if not isinstance(bus, self.bus_type):
            raise ConfigurationError(
                f"{type(self).__name__} works on a {self.bus_type.__name__}, not on {bus!r}."
            )
        self._bus = bus
        domains, registry = what_to_serve(domain, registries)
        super().__init__(
            bus.engine,
            bus.settings.max_attempts,
            bus.breakers,
            domains,
            registry,
            settings_of(WorkerSettings, settings, options),
            name,
            middleware,
        )
        self.health_status.routers = bus.routers
        self._closer = BatchCloser(self.domains)
        if bus.settings.tracing is not None:
            self._execution.trace(tracing_module().Traced(bus.settings.tracing))
        self._restarts = Restarts()
        self._recovery: CrashRecovery | None = None
        self._recordings: Recordings | None = None
        self._router = RouterThread(bus, self.registry, self.settings.recorder)
        self._set_up()

    @abstractmethod
    def _set_up(self) -> None:
        """What a runtime keeps beside this."""

    @property
    def sent(self) -> SentFigures:
        sent: SentFigures = self._bus.scope.sent
        return sent

    @property
    def session(self) -> Any:
        return self._bus.session

    @property
    def hub(self) -> WakeHub:
        return self._engine.hub

    def _stop_seconds(self, timeout: Duration | None) -> float:
        """How long a stop lets handlers finish."""
        return self.settings.shutdown_timeout if timeout is None else as_seconds(timeout, "timeout")

    def _stop_by_signal(self, seconds: float | None) -> None:
        """Begin to stop, without waiting for the end."""
        if not self._remember_stop():
            self._post_from_anywhere(StopRequested(self._stop_seconds(seconds)))

    def request_restart(self, reason: str, patience: float = 5.0) -> None:
        self._note_restart(reason)
        super().request_restart(reason, patience)

    def request_end(self, reason: str) -> None:
        self._note_restart(reason)
        super().request_end(reason)

    def _note_restart(self, reason: str) -> None:
        now = datetime.now(UTC)
        self._restarts.add(WorkerRestart(self.name, socket.gethostname(), os.getpid(), now, reason))

    def _bus_over(self, session: Any, is_async: bool, in_transaction: bool) -> Any:
        if in_transaction:
            kind: type[Any] = BusWithin if is_async else SyncBusWithin
        else:
            kind = HandlerBus if is_async else SyncHandlerBus
        return kind(self._bus.scope, session, self._bus.hub)

    def _receive(
        self,
        batch_size: int = 1,
        visibility_timeout: Duration | None = None,
        *,
        priority: Priority | None = None,
        wait: Duration = 0.0,
    ) -> Flow[list[ReceivedCommand]]:
        """Take up to `batch_size` commands by hand, for `visibility_timeout` seconds (default: the
        worker's), the most urgent first or of one `priority` only. With `wait`, an empty queue is
        waited on for up to so many seconds; a send or a due time ends the wait. An empty list means
        that nothing is eligible."""
        as_count(batch_size, "batch_size", highest=RECEIVE_MAX)
        seconds = self.settings.visibility_timeout
        if visibility_timeout is not None:
            seconds = as_seconds(visibility_timeout, "visibility_timeout", minimum=0.001)
        request = ClaimRequest(
            self.domains,
            batch_size,
            self.name,
            seconds,
            tags=self.settings.tags,
            ageing=self._ageing,
            priority=None if priority is None else as_priority(priority, self._bus.settings.priorities),
        )
        if patience := as_seconds(wait, "wait"):
            reply = yield from self._claim_waiting(request, patience)
        else:
            reply = yield Send(self._engine.store.claim(request))
        if in_doubt(reply.claimed):
            reply = yield with_requests(self._engine.store, reply)
        found = [(claimed, self._execution.received(claimed)) for claimed in reply.claimed]
        if unreadable := [one for _, one in found if isinstance(one, Settlement)]:
            yield Send(self._engine.store.settle(unreadable))
        return [
            self._received(claimed, one) for claimed, one in found if not isinstance(one, Settlement)
        ]

    def _claim_waiting(self, request: ClaimRequest, patience: float) -> Flow[ClaimReply]:
        """Claim until something is found or patience is over."""
        hub, fallback = self.hub, self.settings.poll_interval
        # A flow waits for commits; an event for these domains ends its wait as well.
        waiter = hub.register(self.domains, lambda *_: hub.committed(), self.settings.tags)
        try:
            now = yield Await(0)
            deadline = now + patience
            while True:
                hub.arm(waiter)
                reply: ClaimReply = yield Send(self._engine.store.claim(request))
                if reply.claimed or now >= deadline:
                    return reply
                due_in = fallback if reply.next_due_in is None else reply.next_due_in
                now = yield Await(min(due_in, fallback, deadline - now))
        finally:
            hub.unregister(waiter)

    def _received(self, claimed: Claimed, command: Command[Any]) -> ReceivedCommand:
        if self._execution.recorder is not None:  # it runs as well, and this is its command, too
            self._execution.recorder.began(claimed)
        handler = self.registry.get(claimed.domain, claimed.command_type)
        limit = self._execution.limit(claimed, handler)
        session, is_async = self._bus.session, self.context_type is HandlerContext
        bus = self._bus_over(session, is_async, False)
        within = self._engine.within_async if is_async else self._engine.within
        services = HandlerServices(
            self._engine.store,
            session,
            self.name,
            self._execution.requests,
            bus,
            within,
            outcome_of=self._execution.outcome_of,
        )
        context = self.context_type(claimed, limit, services)
        return ReceivedCommand(command, claimed.attempt, limit, context, claimed)

    def _start_helpers(self) -> None:
        """Everything that runs in threads or processes of its own, whatever the runtime."""
        check_not_preparing()
        isolated = [found.isolated for found in self.registry if found.isolated is not None]
        report = partial(self._engine.hub.wake, WORKERS, None, "children")
        self._children = Children(isolated, lambda: self._core.concurrency, self.metrics, report)
        self._children.start()
        self._execution.isolate(self._children)
        self._waiter = self._engine.hub.register(self.domains, self._on_wake, self.settings.tags)
        self._keeper = LeaseKeeper(
            self._engine.store,
            self._engine.reserved_session,
            self.settings.visibility_timeout,
            self._on_leases_gone,
            partial(self._engine.hub.wake, CANCELLATIONS, None, "renewal"),
            self._outage,
            self._on_excused,
        )
        self._execution.keeper = self._keeper
        recording = self._record()
        self._reclaimer = Reclaimer(
            self.name,
            self.domains,
            self.settings.visibility_timeout,
            load=lambda: (self.metrics.commands_received, self._core.held),
            recordings=self._recordings,
            rescued=self._on_recovered,
        )
        self._keeper.start()
        services = standard_services(
            self._presence(self.runtime),
            self._bus.breakers,
            self._closer,
            Cancellations(self.domains, self._on_cancel_requests),
            self._restarts,
            self._reclaimer,
            Historian(lambda: (self.metrics.commands_received, self.metrics.commands_settled)),
            self.settings.visibility_timeout,
            self._bus.settings,
            self._refresh,
            lambda: self.metrics.commands_received,
        )
        services.append(WorkerRequests(self.name, self._on_request))
        services += [Declarer(self.registry), *recording]
        low, high = self.settings.min_concurrency, self.settings.max_concurrency
        if low is not None and high is not None:
            services.append(Sizer(self, low, high))
        self._services = ServiceRunner(self._engine, self._bus.scope, services)
        self._services.start()
        if self.registry.processes:
            self._router.start()

    def _record(self) -> list[Service]:
        """Begin to record what runs, if this is not another round of the same run; and the service that
        looks for workers that died."""
        setting, engine = self.settings.recorder, self._engine
        if not engine.store.capabilities.durable:
            return []
        lease_seconds = self.settings.visibility_timeout
        execution = self._execution
        if execution.recorder is None:
            execution.recorder = open_recorder(setting, engine.identity, self.name, self.supervisor)
        if execution.recorder is None:
            engine.store.consult(witness_of(None, self._outage, lease_seconds))
            return []
        self._recordings = recordings = Recordings(execution.recorder.path.parent)
        engine.store.consult(witness_of(recordings, self._outage, lease_seconds))
        self._core.suspects.after_death = recordings.has_dead()
        self._recovery = CrashRecovery(recordings, self._on_recovered)
        return [self._recovery]

    def _on_recovered(self, count: int) -> None:
        def add() -> None:
            self.metrics.rescued += count

        self._ask(add)

    def _stop_helpers(self, budget: Budget) -> None:
        """End them, the lease keeper last; blocks for a moment."""
        if self._restart_reason is not None:
            self._engine.leave_behind(self.name)
        if self.registry.processes:
            self._router.stop(budget.left() / 2)
        self._children.close()
        self._services.stop(budget.left())
        if self._recovery is not None:
            self._recovery.close()
        attempt(self._say_farewell, budget.left())
        self._keeper.stop(budget.left())
        recorder = self._execution.recorder
        if recorder is not None and self._restart_reason is None:
            self._execution.recorder = None
            recorder.close()

    def _say_farewell(self) -> None:
        session = self._engine.reserved_session
        if self._closer.touched:
            session.run(self._closer.work(self._bus.scope))
        goes_on = self._restart_reason is not None
        session.run(forget_worker(self._bus.scope, self.name, goes_on=goes_on))

    def _on_wake(self, source: str, due_in: float | None) -> None:
        self._post_from_anywhere(Woken(source, due_in))

    def _take_timer_turn(self, due_at: float, now: float) -> bool:
        return self._engine.hub.take_timer_turn(self._waiter, due_at, now)

    def _on_leases_gone(self, lease_ids: list[int]) -> None:
        if self._execution.recorder is not None:
            self._execution.recorder.leases_gone(lease_ids)
        self._post_from_anywhere(LeasesGone(lease_ids))

    def _on_excused(self, until: float) -> None:
        if self._execution.recorder is not None:
            self._execution.recorder.excused(until)

    def _on_cancel_requests(self, requests: dict[int, CancelRequest]) -> None:
        """All that stand: those that were not known before are passed on to their handlers."""
        known = self._execution.requests
        for ended in known.keys() - requests.keys():
            known.pop(ended, None)
        fresh = frozenset(requests.keys() - known.keys())
        known.update(requests)
        if fresh and self._running:
            self._ask(partial(self._stop_calls, fresh))
        if requests and self._running:
            self._children.cancel(requests)

    @abstractmethod
    def _stop_calls(self, seqs: frozenset[int]) -> None:
        """Cancel the handlers of these commands, where a runtime can."""

    def _perform_here(self, effect: Forget | PassOn) -> None:
        """The effects that need no waiting."""
        if isinstance(effect, Forget):
            self._keeper.forget(effect.lease_ids)
            return
        if self._core.quiet:  # events go to others from now on
            self._engine.hub.disarm(self._waiter)
        for domain in self.domains if effect.domains is None else effect.domains:
            self._engine.hub.wake(domain, None, "chain", besides=self._waiter)

    async def _answer_claim(
        self, claim: Claim, run: Callable[..., Awaitable[Any]]
    ) -> ClaimAnswered | ClaimFailed:
        """Claim what the core asks for. Every effect answers: after a failure, the core backs off."""
        transactional = self._execution.own_transactions or any(
            found.transactional and found.domain in self.domains for found in self.registry
        )
        request = ClaimRequest(
            domains=self.domains,
            limit=claim.limit,
            worker=self.name,
            lease_seconds=self.settings.visibility_timeout,
            sweep=claim.sweep,
            tags=self.settings.tags,
            ageing=self._ageing,
            idle=claim.idle,
            skip_sweep=claim.skip_sweep,
            lease_per_command=transactional,
            followers=claim.followers,
            chain=claim.chain,
            suspects=claim.suspects,
        )
        began = time.monotonic()
        reply: ClaimReply | None = None
        try:
            made: ClaimReply = await run(self._engine.store.claim(request))
            reply = made
            if in_doubt(made.claimed):
                reply = await run(with_requests(self._engine.store, made), read=True)
        except Exception as error:  # whatever it is, the core decides
            if reply is not None:  # claimed, and not to begin: others need not wait for the lease
                back = [release(one, UNCHECKED) for one in reply.claimed]
                try:
                    await run(self._engine.store.settle(back))
                except Exception as failure:  # as when the answer to a claim is lost
                    logger.warning("%d claimed commands wait for their lease: %s", len(back), failure)
            return ClaimFailed(error)
        assert reply is not None
        if reply.claimed:
            self._engine.hub.disarm(self._waiter)
            self._execution.arrived(reply.claimed)
            # Renewed from now on, also what has to wait for its turn.
            self._keeper.keep({claimed.lease_id for claimed in reply.claimed}, began)
            if self._engine.store.session and self._reclaimer.took(began):
                self._services.hasten(self._reclaimer)
        return ClaimAnswered(reply, claim.limit, time.monotonic() - began)

    async def _answer_settle(
        self, batch: list[Settlement], run: Callable[..., Awaitable[Any]]
    ) -> Settled | SettleFailed:
        """Record outcomes. Every effect answers: after a failure, the core keeps the batch."""
        try:
            report: SettleReport = await run(self._engine.store.settle(batch))
        except Exception as error:  # whatever it is, the core decides
            return SettleFailed(error, isinstance(error, StoreUnavailable))
        self._note(report)
        return Settled(report)

    def _note(self, report: SettleReport) -> None:
        """After a settle: batches whose counts changed may be complete."""
        if report.batches:
            self._closer.touch(report.batches, self._engine.hub)

    async def _confirmed(
        self, call: Call, settlement: Settlement, run: Callable[..., Awaitable[Any]]
    ) -> Settlement:
        """The settlement of a handler with a transaction of its own, which may not have committed."""
        try:
            confirmed: Settlement = await run(confirm(self._execution, call, settlement), read=True)
        except Exception as error:  # the store refuses what it must, later
            logger.warning("cannot see how %s ended: %s", call.claimed.command_id, error)
            return unconfirmed(self._execution, call, settlement)
        return confirmed
