"""The process router: takes replies from their queues and drives processes on.

Its loop is a flow, so both runtimes share it: a runtime only runs the ops and performs the waits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import msgspec

from commandbus.domain.moment import Duration, as_seconds
from commandbus.domain.process.declaration import Process, require_declaration
from commandbus.errors import ConfigurationError, NotOpen, StoreUnavailable
from commandbus.operations.batches import close_batches, close_open_batches
from commandbus.operations.evidence import Declarations
from commandbus.operations.routing import RouteReport, fire_timers, park_reply, route, unsettled
from commandbus.operations.scope import Await, Flow, Scope, Send
from commandbus.services.batch_closer import AGAIN, SWEEP
from commandbus.services.presence import Presence
from commandbus.store.records import Claimed, ClaimReply, ClaimRequest
from commandbus.store.session import bus_closed

logger = logging.getLogger("commandbus.processes")

SWEEP_SECONDS = 1.0
"""How often due work is promoted and expired leases are taken back while there is work."""
BACKOFF_MAX_SECONDS = 5.0


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
    """One loop of a router; a router may have several."""

    def __init__(
        self,
        scope: Scope,
        declarations: Declarations,
        settings: RouterSettings,
        name: str,
        arm: Callable[[], None],
        metrics: RouterMetrics,
        presence: Presence | None = None,
    ) -> None:
        self._scope = scope
        self._declarations = declarations
        self._settings = settings
        self._name = name
        self._arm = arm
        self._metrics = metrics
        self._presence = presence
        self._queues = queues_of(declarations)
        self._swept = self._looked = self._close_at = self._report_at = float("-inf")
        self._next_timer: float | None = None
        self._held: list[Claimed] = []
        """Replies under lease whose transaction has not succeeded yet."""
        self._in_doubt = False
        """Whether a transaction with them may have been committed."""
        self.stopping = False

    @property
    def queues(self) -> tuple[str, ...]:
        return self._queues

    def timers_changed(self) -> None:
        self._looked = float("-inf")

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
                idle = min(BACKOFF_MAX_SECONDS, 0.1 * 2**failures)
            if idle > 0 and not self.stopping:
                yield Await(idle)

    def _round(self, now: float) -> Flow[float]:
        """One turn; returns how long to wait before the next."""
        sweep = now - self._swept >= SWEEP_SECONDS
        reply = ClaimReply([])
        if not self._held:
            self._arm()
            reply = yield Send(self._claim(sweep))
            self._held = list(reply.claimed)
            self._swept = now if sweep else self._swept
        routed = bool(self._held)
        if self._in_doubt:
            self._held = yield unsettled(self._scope, self._held)
        if self._held:
            self._in_doubt = True
            yield from self._route(now)
        self._in_doubt = False
        yield from self._look_at_timers(now)
        yield from self._report(now)
        if routed:
            return 0.0
        self._metrics.empty += 1
        if not sweep:
            # Only a claim that swept proves that there is nothing.
            self._swept = float("-inf")
            return 0.0
        yield from self._close(now, RouteReport())
        waits = [self._settings.poll_interval, self._looked + self._settings.timer_interval - now]
        if self._presence is not None:
            waits.append(self._report_at - now)
        waits += [wait for wait in (reply.next_due_in, self._next_timer) if wait is not None]
        return max(0.001, min(waits))

    def _route(self, now: float) -> Flow[None]:
        """Everything that is held, in one transaction; when that is refused, one by one, so that what
        cannot be routed does not hold up the others."""
        try:
            yield from self._route_some(now, self._held)
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
                    yield from self._route_some(now, [first])
                except (StoreUnavailable, NotOpen):
                    raise
                except Exception as own:  # this one
                    yield Send(park_reply(self._scope, first, own))
                self._held = rest
        self._held = []

    def _route_some(self, now: float, claimed: list[Claimed]) -> Flow[None]:
        report = yield Send(route(self._scope, self._declarations, claimed, self._name))
        self._metrics.batches += 1
        self._metrics.routed += report.routed
        yield from self._close(now, report)

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
        """Time matters to processes that others start, too: so look every now and then."""
        due_now = self._next_timer is not None and self._next_timer <= now - self._looked
        if not due_now and now - self._looked < self._settings.timer_interval:
            return
        types = list(self._declarations)
        self._looked = now
        while True:
            self._next_timer = yield Send(self._scope.store.next_process_due(types))
            if self._next_timer is None or self._next_timer > 0 or self.stopping:
                return
            limit = self._settings.batch_size
            report = yield Send(fire_timers(self._scope, self._declarations, self._name, limit))
            self._metrics.timers += report.routed
            yield from self._close(now, report)
            if not report.routed:
                # Another router has them.
                return

    def _report(self, now: float) -> Flow[None]:
        """One of the loops tells the fleet that the router is there."""
        if self._presence is not None and now >= self._report_at:
            self._report_at = now + (yield Send(self._presence.work(self._scope)))

    def _close(self, now: float, report: RouteReport) -> Flow[None]:
        """Batches may be complete; now and then, look at all of them."""
        if report.batches:
            yield Send(close_batches(self._scope, report.batches))
            self._close_at = min(self._close_at, now + AGAIN)
        elif now >= self._close_at:
            left = yield Send(close_open_batches(self._scope, self._queues))
            self._close_at = now + (AGAIN if left else SWEEP)
