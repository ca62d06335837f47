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
from collections.abc import Callable
from contextlib import AbstractContextManager
from math import inf
from typing import Any
from uuid import UUID

import msgspec

from commandbus.domain.moment import Duration, as_seconds
from commandbus.domain.process.declaration import Process, require_declaration
from commandbus.errors import ConfigurationError, NotOpen, StoreUnavailable
from commandbus.operations.evidence import Declarations
from commandbus.operations.routing import RouteReport, fire_timers, park_reply, route, unsettled
from commandbus.operations.scope import Await, Flow, Scope, Send
from commandbus.store.records import Claimed, ClaimRequest
from commandbus.store.session import bus_closed
from commandbus.store.sessions import quiet
from commandbus.worker.backoff import backoff
from commandbus.worker.health import HealthStatus
from commandbus.worker.pace import fallback

logger = logging.getLogger("commandbus.processes")

SWEEP_SECONDS = 1.0
"""How often due work is promoted and expired leases are taken back while there is work."""
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
    """One loop of a router; a router may have several, of which the first keeps time."""

    def __init__(
        self,
        scope: Scope,
        declarations: Declarations,
        settings: RouterSettings,
        name: str,
        arm: Callable[[], None],
        metrics: RouterMetrics,
        touch: Callable[[tuple[UUID, ...]], object] = lambda batches: None,
        number: int = 0,
        uniform: Callable[[], float] = random.random,
        health: HealthStatus | None = None,
    ) -> None:
        self._scope = scope
        self._declarations = declarations
        self._settings = settings
        self._name = name
        self._shard = f"{name}-{number}" if number else name
        self._arm = arm
        self._metrics = metrics
        self._touch = touch
        """Processes of these batches have ended."""
        self._uniform = uniform
        self._health = health or HealthStatus()
        self._prefix = f"loop {number} " if number else ""
        self._queues = queues_of(declarations)
        self._claim_at = self._swept = self._looked = -inf
        self._keeps_time = number == 0
        self._timer_at = -inf if self._keeps_time else inf
        self._woken = self._timers_changed = False
        self._held: list[Claimed] = []
        """Replies under lease whose transaction has not succeeded yet."""
        self._in_doubt = False
        """Whether a transaction with them may have been committed."""
        self.stopping = False

    @property
    def queues(self) -> tuple[str, ...]:
        return self._queues

    @property
    def held(self) -> int:
        return len(self._held)

    def woken(self) -> None:
        """There may be replies; from any thread."""
        self._woken = True

    def timers_changed(self) -> None:
        """There may be an earlier deadline; from any thread."""
        self._timers_changed = self._keeps_time

    def run(self) -> Flow[None]:
        """Until `stopping`: take what is there, let time pass, wait when there is nothing."""
        failures = 0
        while not self.stopping:
            now = yield Await(0)
            try:
                idle = yield from self._round(now)
                if failures:
                    logger.warning("router %s goes on after %d failures", self._name, failures)
                failures = 0
            except NotOpen as error:
                if not self.stopping:
                    raise bus_closed(f"router {self._name}") from error
                return
            except Exception as error:  # a router outlives its failures; what it holds is tried again
                failures += 1
                self._metrics.failures += 1
                level = logging.WARNING if failures == 1 else logging.DEBUG
                logger.log(level, "router %s failed, trying again: %s", self._name, error)
                idle = backoff(failures, error, self._uniform)
            if idle > 0 and not self.stopping:
                yield Await(idle)

    def _round(self, now: float) -> Flow[float]:
        """One turn; returns how long to wait before the next."""
        if self._held or self._woken or now >= self._claim_at:
            yield from self._take(now)
        if self._timers_changed:
            self._timers_changed = False
            self._timer_at = min(self._timer_at, self._looked + TIMER_GAP)
        if now >= self._timer_at:
            yield from self._look_at_timers(now)
        left = min(self._claim_at, self._timer_at) - now
        return 0.0 if self._woken or left <= 0 else max(WAIT_MIN, left)

    def _take(self, now: float) -> Flow[None]:
        """Route what is held, or what a claim finds."""
        self._claim_at = -inf
        if not self._held and not (yield from self._find(now)):
            return
        with self._watched("routing"):
            if self._in_doubt:
                self._held = yield unsettled(self._scope, self._held)
            if self._held:
                self._in_doubt = True
                yield from self._route()
        self._in_doubt = False

    def _find(self, now: float) -> Flow[bool]:
        """Claim; whether there was anything. If not, the next claim has time."""
        sweep = now - self._swept >= SWEEP_SECONDS
        self._woken = False
        self._arm()
        with self._watched("claim"):
            reply = yield Send(self._claim(sweep))
        self._held = list(reply.claimed)
        self._swept = now if sweep else self._swept
        if self._held:
            return True
        self._metrics.empty += 1
        if not sweep:
            # Only a claim that swept proves that there is nothing.
            self._swept = -inf
        else:
            seconds = fallback(self._settings.poll_interval, hears=reply.hears)
            if reply.next_due_in is not None:
                seconds = min(seconds, max(WAIT_MIN, reply.next_due_in))
            self._claim_at = now + seconds
        return False

    def _route(self) -> Flow[None]:
        """Everything that is held, in one transaction; when that is refused, one by one, so that what
        cannot be routed does not hold up the others."""
        try:
            yield from self._route_some(self._held)
        except (StoreUnavailable, NotOpen):
            raise
        except Exception as error:  # a mistake that one of them brings along
            logger.exception("router %s could not route a batch", self._name)
            if len(self._held) == 1:
                yield Send(park_reply(self._scope, self._held[0], error))
                self._held = []
            while self._held:
                first, *rest = self._held
                try:
                    yield from self._route_some([first])
                except (StoreUnavailable, NotOpen):
                    raise
                except Exception as own:  # this one
                    yield Send(park_reply(self._scope, first, own))
                self._held = rest
        self._held = []

    def _route_some(self, claimed: list[Claimed]) -> Flow[None]:
        report = yield Send(route(self._scope, self._declarations, claimed, self._shard))
        self._metrics.batches += 1
        self._metrics.routed += report.routed
        self._ended(report)

    def _claim(self, sweep: bool) -> Any:
        request = ClaimRequest(
            self._queues,
            self._settings.batch_size,
            self._name,
            self._settings.visibility_timeout,
            sweep,
        )
        return self._scope.store.claim(request)

    def _look_at_timers(self, now: float) -> Flow[None]:
        """Fire what is due, and learn when the next is."""
        types = list(self._declarations)
        self._looked = now
        while True:
            with self._watched("deadline check"):
                due_in = yield Send(self._scope.store.next_process_due(types))
                if due_in is None or due_in > 0 or self.stopping:
                    break
                limit = self._settings.batch_size
                report = yield Send(fire_timers(self._scope, self._declarations, self._shard, limit))
            self._metrics.timers += report.routed
            self._ended(report)
            if not report.routed:  # another router has them
                due_in = TIMER_GAP
                break
        seconds = quiet(self._scope.store, self._settings.timer_interval)
        self._timer_at = now + (seconds if due_in is None else min(seconds, due_in))

    def _watched(self, what: str) -> AbstractContextManager[None]:
        """Tell the router's health how it goes; each loop has a row of its own."""
        return self._health.watched(self._prefix + what)

    def _ended(self, report: RouteReport) -> None:
        if report.batches:
            self._touch(report.batches)
