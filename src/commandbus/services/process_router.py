"""The process router: takes replies from their queues and drives processes on.

Its loop is a flow, so both runtimes share it: a runtime only runs the ops and performs the waits.
Presence, batches and the leases of others are services, as those of a worker are.

An idle router uses the store when replies are announced, when a deadline is due, and as often as an
idle worker does: rarely while a session proves that this process hears announcements. Deadlines that
become earlier are announced, too, so routers in other processes know them in time.
"""

from __future__ import annotations

import logging
import random
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from math import inf
from typing import Any, assert_never

import msgspec

from commandbus.domain.moment import Duration, as_seconds
from commandbus.domain.process.declaration import Process, require_declaration
from commandbus.errors import ConfigurationError, NotOpen, StoreUnavailable
from commandbus.operations.evidence import Declarations
from commandbus.operations.routing import RouteReport, fire_timers, park_reply, route, unsettled
from commandbus.operations.scope import Await, Flow, Scope, Send
from commandbus.services.batch_closer import BatchCloser
from commandbus.settings import WorkerSettings
from commandbus.store.outage import Outage
from commandbus.store.records import Claimed, ClaimReply, ClaimRequest, Settlement, SettleReport
from commandbus.store.session import bus_closed
from commandbus.store.sessions import quiet
from commandbus.store.wakeup import WakeHub
from commandbus.worker import effects, events
from commandbus.worker.backoff import backoff
from commandbus.worker.core import WorkerCore
from commandbus.worker.health import HealthStatus
from commandbus.worker.settlements import completed

logger = logging.getLogger("commandbus.processes")

WAIT_MIN = 0.001
TIMER_GAP = 0.1
"""Deadlines that are announced in quick succession are looked at together, so many seconds apart."""


class RouterSettings(msgspec.Struct, frozen=True):
    concurrency: int
    batch_size: int
    poll_interval: float
    timer_interval: float
    visibility_timeout: float


class RouterMetrics(msgspec.Struct):
    """What a router has done since it was made."""

    routed: int = 0
    batches: int = 0
    empty: int = 0
    timers: int = 0
    failures: int = 0


def router_settings(
    concurrency: int,
    batch_size: int,
    poll_interval: Duration,
    timer_interval: Duration,
    visibility_timeout: Duration,
) -> RouterSettings:
    for name, number in (("concurrency", concurrency), ("batch_size", batch_size)):
        if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= 10_000:
            raise ConfigurationError(f"{name} must be between 1 and 10,000, not {number!r}.")
    return RouterSettings(
        concurrency,
        batch_size,
        as_seconds(poll_interval, "poll_interval", minimum=0.1),
        as_seconds(timer_interval, "timer_interval", minimum=0.1),
        as_seconds(visibility_timeout, "visibility_timeout", minimum=1.0),
    )


def declarations_of(processes: Any) -> Declarations:
    """The declarations that a router serves, by type."""
    given = [processes] if isinstance(processes, type) else list(processes)
    found: dict[str, type[Process[Any]]] = {}
    for one in given:
        declaration = require_declaration(one)
        if found.setdefault(declaration.process_type, declaration) is not declaration:
            raise ConfigurationError(
                f"Two declarations are called {declaration.process_type!r}; give one of them another "
                "process_type."
            )
    if not found:
        raise ConfigurationError("A router needs at least one process to serve.")
    return found


def queues_of(declarations: Declarations) -> tuple[str, ...]:
    """Where the replies to their commands go."""
    return tuple(sorted({declaration.reply_to for declaration in declarations.values()}))


class RouterLoop:
    """One loop of a router; a router may have several, of which the first keeps time.

    It is a shell of the worker core that does one thing after another. The core decides when to claim,
    to wait, to try again and to end, as for a worker with one slot, in which a batch of replies is one
    run. What it starts has ended at once, and what it settles is routed, because the transaction that
    routes replies also settles them.
    """

    def __init__(
        self,
        scope: Scope,
        hub: WakeHub,
        declarations: Declarations,
        settings: RouterSettings,
        name: str,
        metrics: RouterMetrics,
        closer: BatchCloser,
        *,
        outage: Outage | None = None,
        health: HealthStatus | None = None,
        number: int = 0,
        tell: Callable[[], object] = lambda: None,
        uniform: Callable[[], float] = random.random,
    ) -> None:
        self._scope, self._hub, self._declarations = scope, hub, declarations
        self._settings, self._name, self._metrics = settings, name, metrics
        self._shard = f"{name}-{number}" if number else name
        self._closer, self._outage = closer, outage or Outage()
        self._health = health or HealthStatus()
        self._tell, self._uniform = tell, uniform
        self.queues = queues_of(declarations)
        slots = WorkerSettings(
            concurrency=1,
            prefetch=0,
            poll_interval=settings.poll_interval,
            visibility_timeout=settings.visibility_timeout,
        )
        self.core = WorkerCore(slots, uniform=uniform)
        self._events = deque[events.Event]()
        self._stopping = False
        self.given_up = False
        """A stop has taken too long, so no further statement is begun; set from any thread."""
        self._in_doubt = False
        """Whether a transaction with some of what is unsettled may have been committed."""
        self._looked, self._timer_failures = -inf, 0
        self._keeps_time = number == 0
        self._timer_at = -inf if self._keeps_time else inf
        self._timers_changed = False
        self.waiter = hub.register(self.queues, self._woken)

    @property
    def held(self) -> int:
        """Replies under lease."""
        return self.core.held + len(self.core.unsettled) + len(self.core.settling)

    def post(self, event: events.Event) -> None:
        """Let the core know; from any thread. A stop comes before all else."""
        if isinstance(event, events.StopRequested):
            self._stopping = True
            self._events.appendleft(event)
        else:
            self._events.append(event)
        self._tell()

    def _woken(self, source: str, due_in: float | None) -> None:
        if source not in ("notify", "chain"):
            self.timers_changed()
        self.post(events.Woken(source, due_in))

    def timers_changed(self) -> None:
        """There may be an earlier deadline; from any thread."""
        self._timers_changed = self._keeps_time
        self._tell()

    def run(self) -> Flow[None]:
        """Until a stop is asked for and nothing is under way."""
        now = yield Await(0)
        while True:
            event = self._events.popleft() if self._events else events.Tick()
            for effect in self.core.handle(event, now):
                if not self.given_up:
                    yield from self._perform(effect)
            if self.given_up or self.core.done(now):
                break
            if self._stopping or self.core.stopping:
                self._timer_at = inf
            elif self._timers_changed:
                self._timers_changed = False
                self._timer_at = min(self._timer_at, self._looked + TIMER_GAP)
            if now >= self._timer_at:
                yield from self._keep_time(now)
            deadline = self.core.deadline()
            left = min(self._timer_at, inf if deadline is None else deadline) - now
            now = yield Await(0.0 if self._events else max(WAIT_MIN, left))
        if self.core.ending.failure is not None:
            raise bus_closed(f"router {self._name}") from self.core.ending.failure

    def _perform(self, effect: effects.Effect) -> Flow[None]:
        match effect:
            case effects.Claim() if self._stopping:  # decided on before: it would only go back
                self._events.append(events.ClaimAnswered(ClaimReply([]), self._settings.batch_size))
            case effects.Claim():
                self._events.append((yield from self._claim(effect)))
            case effects.Start(claimed):
                self._events.append(events.Finished([completed(one, 0) for one in claimed]))
            case effects.Settle(batch):
                self._events.append((yield from self._settle(batch)))
            case effects.Withdraw():
                self._events.append(events.Withdrawn([]))
            case effects.PassOn(domains):
                for queue in self.queues if domains is None else domains:
                    self._hub.wake(queue, None, "chain", besides=self.waiter)
            case effects.Forget() | effects.Interrupt():
                pass  # leases are not renewed, and nothing runs between two effects
            case _:
                assert_never(effect)

    def _claim(self, claim: effects.Claim) -> Flow[events.ClaimAnswered | events.ClaimFailed]:
        self._hub.arm(self.waiter)
        limit, suspects = self._settings.batch_size, claim.suspects
        request = ClaimRequest(
            self.queues,
            limit,
            self._name,
            self._settings.visibility_timeout,
            claim.sweep,
            idle=claim.idle,
            skip_sweep=claim.skip_sweep,
            suspects=suspects and msgspec.structs.replace(suspects, room=limit),
        )
        try:
            with self._watched("claim"):
                reply = yield Send(self._scope.store.claim(request))
        except Exception as error:  # whatever it is, the core decides
            self._failed("claim", error)
            return events.ClaimFailed(error)
        self._outage.answered()
        if reply.claimed:
            self._hub.disarm(self.waiter)
        else:
            self._metrics.empty += 1
        return events.ClaimAnswered(reply, limit)

    def _settle(self, batch: list[Settlement]) -> Flow[events.Settled | events.SettleFailed]:
        """Route all of it in one transaction. When that is refused, the core tries them one by one, so
        that what cannot be routed does not hold up the others."""
        # What was claimed again when its lease had ended is there under both: the last one counts.
        newest = {one.seq: one.claimed for one in batch if one.claimed is not None}
        claimed = list(newest.values())
        try:
            with self._watched("routing"):
                if given_back := [one for one in batch if one.claimed is None]:
                    yield Send(self._scope.store.settle(given_back))
                if self._in_doubt:
                    claimed = yield unsettled(self._scope, claimed)
                if claimed:
                    yield from self._route(claimed)
        except Exception as error:  # as above
            self._failed("routing", error)
            self._in_doubt |= isinstance(error, StoreUnavailable)
            # A login that is refused is no reply's fault, and may be allowed again.
            return events.SettleFailed(error, isinstance(error, StoreUnavailable | ConfigurationError))
        self._outage.answered()
        self._in_doubt &= bool(self.core.unsettled)
        return events.Settled(SettleReport())

    def _route(self, claimed: list[Claimed]) -> Flow[None]:
        try:
            report = yield Send(route(self._scope, self._declarations, claimed, self._shard))
        except (StoreUnavailable, ConfigurationError, NotOpen):
            raise
        except Exception as error:  # a mistake that one of them brings along
            logger.exception("router %s could not route a batch", self._name)
            if len(claimed) > 1:
                raise
            yield Send(park_reply(self._scope, claimed[0], error))
            return
        self._metrics.batches += 1
        self._metrics.routed += report.routed
        self._ended(report)

    def _keep_time(self, now: float) -> Flow[None]:
        """Fire what is due, and learn when to look again."""
        self._looked = now
        try:
            with self._watched("deadline check"):
                due_in = yield from self._fire()
        except Exception as error:  # a router outlives its failures
            self._failed("looking at deadlines", error)
            self._timer_failures += 1
            seconds = due_in = backoff(self._timer_failures, error, self._uniform)
        else:
            self._timer_failures = 0
            seconds = quiet(self._scope.store, self._settings.timer_interval)
        self._timer_at = now + (seconds if due_in is None else min(seconds, due_in))

    def _fire(self) -> Flow[float | None]:
        """Let happen what is due; in how many seconds the next deadline is, if there is one."""
        due_in: float | None
        due_in = yield Send(self._scope.store.next_process_due(list(self._declarations)))
        if due_in is None or due_in > 0:
            return due_in
        limit = self._settings.batch_size
        report = yield Send(fire_timers(self._scope, self._declarations, self._shard, limit))
        self._metrics.timers += report.routed
        self._ended(report)
        return 0.0 if report.routed else TIMER_GAP  # another router has them

    def _watched(self, what: str) -> AbstractContextManager[None]:
        """Tell the router's health how it goes; each loop for itself."""
        return self._health.watched(what if self._keeps_time else f"{self._shard} {what}")

    def _ended(self, report: RouteReport) -> None:
        if report.batches:
            self._closer.touch(report.batches, self._hub)

    def _failed(self, what: str, error: Exception) -> None:
        if not isinstance(error, NotOpen):
            self._metrics.failures += 1
            self._outage.failed(f"{what} of router {self._name}", error, logger)
