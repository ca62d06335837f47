"""What surrounds the loop of a worker in either runtime: arguments, helpers, quick effects."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any, ClassVar

from commandbus.domain.moment import Duration, as_seconds
from commandbus.domain.retry import RetryPolicy
from commandbus.errors import CommandBusError
from commandbus.operations.insight import forget_worker
from commandbus.runtimes.base import tracing_module
from commandbus.runtimes.services import ServiceRunner
from commandbus.services.batch_closer import BatchCloser
from commandbus.services.standard import standard_services
from commandbus.store.records import Claimed, ClaimReply, SettleReport
from commandbus.worker.base import ReceivedCommand, WorkerBase, settings_from
from commandbus.worker.context import HandlerContext, SyncHandlerContext
from commandbus.worker.effects import Forget, PassOn
from commandbus.worker.events import LeasesGone, Woken
from commandbus.worker.handlers import HandlerRegistry
from commandbus.worker.keeper import LeaseKeeper


class RuntimeWorker(WorkerBase):
    """Carries out the commands of one or several domains; see the workers of the two runtimes."""

    runtime: ClassVar[str]
    context_type: ClassVar[type[HandlerContext | SyncHandlerContext]]

    def __init__(
        self,
        bus: Any,
        domain: str | Iterable[str],
        registry: HandlerRegistry | None = None,
        *,
        concurrency: int = 4,
        prefetch: int | None = None,
        poll_interval: Duration = 60.0,
        visibility_timeout: Duration = 30.0,
        retry_policy: RetryPolicy | None = None,
        thread_timeout: Duration | None = None,
        jitter: Duration = 0.0,
        recycle_after: int | None = None,
        shutdown_timeout: Duration = 30.0,
        name: str | None = None,
    ) -> None:
        settings = settings_from(
            concurrency,
            prefetch,
            poll_interval,
            visibility_timeout,
            retry_policy,
            thread_timeout,
            jitter,
            recycle_after,
            shutdown_timeout,
        )
        super().__init__(
            bus.engine, bus.settings.max_attempts, bus.gates, domain, registry, settings, name
        )
        self._bus = bus
        self._closer = BatchCloser(self.domains)
        if bus.settings.tracing is not None:
            self.wrap_handlers(tracing_module().traced(bus.settings.tracing))
        self._set_up()

    def _set_up(self) -> None:
        """What a runtime keeps beside this."""
        raise AssertionError("a runtime knows what it needs")

    @property
    def session(self) -> Any:
        return self._bus.session

    def _stop_seconds(self, timeout: Duration | None) -> float:
        """How long a stop lets handlers finish."""
        return self.settings.shutdown_timeout if timeout is None else as_seconds(timeout, "timeout")

    def _received(self, claimed: Claimed) -> ReceivedCommand:
        limit, store = self._execution.limit(claimed), self._engine.store
        context = self.context_type(claimed, limit, self.name, store, self._bus.session)
        command = self._execution.received(claimed)
        return ReceivedCommand(command, claimed.attempt, limit, context, claimed)

    def _start_helpers(self) -> None:
        """Everything that runs in threads of its own, whatever the runtime."""
        self._waiter = self._engine.hub.register(self.domains, self._on_wake)
        self._keeper = LeaseKeeper(
            self._engine.store,
            self._engine.session,
            self.settings.visibility_timeout,
            self._on_leases_gone,
        )
        self._keeper.start()
        services = standard_services(
            self._presence(self.runtime),
            self._bus.gates,
            self._closer,
            self.settings.visibility_timeout,
            self._bus.settings.retention,
        )
        self._services = ServiceRunner(self._engine, self._bus.scope, services)
        self._services.start()

    def _stop_helpers(self) -> None:
        """Let go of them, the lease keeper last; blocks for a moment."""
        self._services.stop()
        with suppress(CommandBusError):  # the store may be the reason for stopping
            self._engine.session.run(forget_worker(self._bus.scope, self.name))
        self._keeper.stop()

    def _on_wake(self, source: str, due_in: float | None) -> None:
        self._post_from_anywhere(Woken(source, due_in))

    def _on_leases_gone(self, lease_ids: list[int]) -> None:
        self._post_from_anywhere(LeasesGone(lease_ids))

    def _perform_here(self, effect: Forget | PassOn) -> None:
        """The effects that need no waiting."""
        if isinstance(effect, Forget):
            self._keeper.forget(effect.lease_ids)
            return
        for domain in self.domains if effect.domains is None else effect.domains:
            self._engine.hub.wake(domain, None, "chain", besides=self._waiter)

    def _keep(self, reply: ClaimReply) -> None:
        """Renew what was claimed from now on, also what has to wait for its turn."""
        if reply.claimed:
            self._keeper.keep({claimed.lease_id for claimed in reply.claimed})

    def _note(self, report: SettleReport) -> None:
        """After a settle: batches whose counts changed may be complete."""
        if report.batches:
            self._closer.touch(report.batches, self._engine.hub)
