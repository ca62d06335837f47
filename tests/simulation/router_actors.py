"""Virtual routers and workers: each step of theirs is one op or one wait, and may go wrong.

A router is the real loop under the real `drive`. What the loop asks for comes out of the coroutine, and
the scheduler decides when and how it is answered.
"""

from __future__ import annotations

import types
from collections.abc import Generator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from commandbus.domain.failure import Failure, FailureKind
from commandbus.domain.outcome import Canceled, Outcome, Parked, Rejected, RetryLater, Succeeded
from commandbus.errors import PermanentCommandError, StoreUnavailable
from commandbus.operations.canceling import open_requests, with_requests
from commandbus.operations.flows import drive
from commandbus.operations.process_writes import TIMERS
from commandbus.services.base import Looking, Nudged, Service
from commandbus.services.batch_closer import BatchCloser
from commandbus.services.process_router import RouterLoop, RouterMetrics, RouterSettings, queues_of
from commandbus.services.reclaimer import Reclaimer
from commandbus.store.op import Op, Wake
from commandbus.store.records import CancelRequest, Claimed, ClaimRequest
from commandbus.store.wakeup import WakeHub
from commandbus.worker.events import StopRequested
from commandbus.worker.settlements import settlement_of
from tests.simulation.oracle import Violation
from tests.simulation.router_oracle import REFUSED
from tests.simulation.router_processes import DECLARATIONS, DOMAIN
from tests.support.core_invariants import check_core

if TYPE_CHECKING:
    from tests.simulation.router_world import RouterWorld

SECOND = 1_000_000
LEASE = 3.0
POLL = 10.0
QUIET_POLL = 60.0
"""Long enough to be ten minutes where a session proves that announcements are heard."""
TIMER_INTERVAL = 4.0
WORKER_LEASE = 6.0
WORKER_POLL = 4.0


@dataclass(frozen=True)
class Ask:
    """An op that is to be run."""

    op: Op[Any]
    read: bool


@dataclass(frozen=True)
class Pause:
    seconds: float


@types.coroutine
def _ask(what: Ask | Pause) -> Generator[Ask | Pause, Any, Any]:
    return (yield what)


class Actor:
    """Something that takes steps, freezes and dies."""

    def __init__(self, world: RouterWorld, name: str) -> None:
        self.world, self.name = world, name
        self.alive = True
        self.frozen_until = 0

    @property
    def able(self) -> bool:
        return self.alive and self.frozen_until <= self.world.now

    def crash(self) -> None:
        self.world.log(self.name, "crashes")
        self.alive = False

    def freeze(self, longest: float) -> None:
        seconds = longest * 2 * self.world.rng.random()
        self.frozen_until = self.world.now + int(seconds * SECOND)
        self.world.log(self.name, "freezes for", round(seconds, 3))

    def step(self) -> bool:
        raise NotImplementedError

    def next_moment(self) -> int:
        raise NotImplementedError


class VirtualRouter(Actor):
    def __init__(self, world: RouterWorld, name: str, types_: tuple[str, ...], batch: int) -> None:
        super().__init__(world, name)
        self.hub, self.metrics = WakeHub(), RouterMetrics()
        poll = QUIET_POLL if world.quiet else POLL
        settings = RouterSettings(1, batch, poll, TIMER_INTERVAL, LEASE)
        self.declarations = {kind: DECLARATIONS[kind] for kind in types_}
        self.closer = BatchCloser(queues_of(self.declarations))
        self.loop = RouterLoop(
            world.scope,
            self.hub,
            self.declarations,
            settings,
            name,
            self.metrics,
            self.closer,
            tell=self._tell,
            uniform=world.rng.random,
        )
        reclaimer = Reclaimer(
            name,
            self.loop.queues,
            LEASE,
            load=lambda: (self.metrics.routed, self.loop.held),
            monotonic=lambda: world.now / SECOND,
        )
        self.services: dict[Service, int] = {self.closer: world.now, reclaimer: world.now}
        for service in self.services:
            self.hub.subscribe(service.topic, partial(self._nudge, service))
        self.hub.subscribe(TIMERS, self.loop.timers_changed)
        self.stopping = self.woken = False
        self.wait_until = 0
        self.owed: tuple[bool, Any] | None = None
        """The answer of an op that was run before the router froze."""
        self._driven = drive(self.loop.run(), self._run, self._pause)
        self.asked: Ask | Pause = self._driven.send(None)

    async def _run(self, op: Op[Any], read: bool) -> Any:
        return await _ask(Ask(op, read))

    async def _pause(self, seconds: float) -> Any:
        return await _ask(Pause(seconds))

    def _tell(self) -> None:
        self.woken = True

    def _nudge(self, service: Service) -> None:
        if isinstance(service, Nudged):
            service.nudged()
        self.services[service] = self.world.now

    def hear(self, wake: Wake) -> None:
        if self.alive:
            self.hub.wake(wake.domain, wake.due_in, "notify")

    def step(self) -> bool:
        """Take the next step; whether there was one."""
        if self.owed is not None:
            good, answer = self.owed
            self.owed = None
            self._answer(answer, good=good)
            return True
        due = [service for service, at in self.services.items() if at <= self.world.now]
        if due and (not self.world.faults or self.world.rng.random() < 0.3):
            self._serve(due[0])
            return True
        if isinstance(self.asked, Pause):
            if self.asked.seconds and not self.woken and self.world.now < self.wait_until:
                return False
            self.woken = False
            self._answer(self.world.now / SECOND)
            return True
        self._perform(self.asked)
        return True

    def _serve(self, service: Service) -> None:
        """Services have a thread of their own, and fail by themselves."""
        world, seconds = self.world, 1.0
        self.services[service] = world.now + SECOND
        if isinstance(service, Looking) and not service.look():
            seconds = service.look_seconds
        elif world.faults and world.rng.random() < 0.1:
            world.log(self.name, "cannot serve", service.name)
        else:
            seconds = world.run(service.work(world.scope))
            world.log(self.name, "serves", service.name)
        self.services[service] = world.now + int(seconds * SECOND)

    def _perform(self, asked: Ask) -> None:
        world = self.world
        draw = world.rng.random() if world.faults else 1.0
        if draw < 0.02:
            self.crash()
        elif draw < 0.04:
            self.freeze(LEASE)
        elif draw < 0.09:
            asked.op.close()
            world.log(self.name, "cannot reach the store for", _named(asked))
            self._answer(StoreUnavailable("cut before the commit"), good=False)
        elif draw < 0.11 and _named(asked) == "route":
            asked.op.close()
            world.log(self.name, "is refused a routing")
            world.oracle.refusals += 1
            self._answer(PermanentCommandError(REFUSED, "a mistake in a declaration"), good=False)
        else:
            self._carry_out(asked, draw)

    def _carry_out(self, asked: Ask, draw: float) -> None:
        world = self.world
        good, answer = True, None
        try:
            answer = world.run(asked.op, read=asked.read)
            world.log(self.name, _named(asked), answer)
        except Exception as error:  # the loop decides
            world.log(self.name, _named(asked), "raised", repr(error))
            good, answer = False, error
        if draw < 0.18 and good:
            world.log(self.name, "never learns of its", _named(asked))
            good, answer = False, StoreUnavailable("cut after the commit")
        if draw < 0.13:
            self.crash()
            return
        if 0.18 <= draw < 0.21:
            self.freeze(LEASE)
            self.owed = (good, answer)
            return
        self._answer(answer, good=good)

    def _answer(self, answer: Any, *, good: bool = True) -> None:
        try:
            self.asked = self._driven.send(answer) if good else self._driven.throw(answer)
        except StopIteration:
            if not self.stopping:
                raise Violation(f"{self.name} ended without being asked to") from None
            self.alive = False
            return
        check_core(self.loop.core)
        if (
            (self.stopping or self.loop.core.stopping)
            and isinstance(self.asked, Ask)
            and _named(self.asked) == "claim"
        ):
            raise Violation(f"P18: {self.name} claims while it stops")
        if isinstance(self.asked, Pause):
            self.wait_until = self.world.now + max(0, round(self.asked.seconds * SECOND))

    def stop(self) -> None:
        """End in order, as in a deployment."""
        self.world.log(self.name, "is asked to stop")
        self.stopping = True
        self.loop.post(StopRequested(0.0))

    def crash(self) -> None:
        super().crash()
        self._driven.close()

    def next_moment(self) -> int:
        return max(min(self.wait_until, *self.services.values()), self.frozen_until)


class VirtualWorker(Actor):
    """Takes commands of the steps, lets them succeed or refuses them, and replies."""

    def __init__(self, world: RouterWorld, name: str) -> None:
        super().__init__(world, name)
        self.held: list[tuple[int, Claimed, Outcome]] = []
        self.requests: dict[int, CancelRequest] = {}
        """To cancel what runs, as far as its services have looked."""
        self.idle_until = 0

    def hear(self, wake: Wake) -> None:
        if wake.domain == DOMAIN:
            self.idle_until = 0

    def step(self) -> bool:
        world = self.world
        due = [item for item in self.held if item[0] <= world.now]
        if due:
            self._settle(due[0])
            return True
        if len(self.held) < 3 and self.idle_until <= world.now:
            self._claim()
            return True
        return False

    def _claim(self) -> None:
        world = self.world
        if world.rng.random() < 0.3:  # its services look for requests to cancel, now and then
            self.requests = world.run(open_requests(world.scope, (DOMAIN,)))
            world.log(self.name, "looks for requests:", list(self.requests))
        request = ClaimRequest((DOMAIN,), 3 - len(self.held), self.name, WORKER_LEASE)
        reply = world.run(world.store.claim(request))
        reply = world.run(with_requests(world.store, reply), read=True)
        world.log(self.name, "claims", [c.command_type for c in reply.claimed])
        for claimed in reply.claimed:
            world.oracle.taken(claimed)
            if claimed.cancel is None:
                world.oracle.begun(claimed)
        if world.faults and world.rng.random() < 0.02:
            self.crash()
            return
        for claimed in reply.claimed:
            self.held.append((world.now + world.run_time(), claimed, self._outcome(claimed)))
        if not reply.claimed:
            wait = min(WORKER_POLL, reply.next_due_in or WORKER_POLL)
            self.idle_until = world.now + max(1_000, int(wait * SECOND))

    def _outcome(self, claimed: Claimed) -> Outcome:
        if claimed.cancel is not None:
            return Canceled(claimed.cancel.reason)
        draw = self.world.rng.random()
        if draw < 0.08 and not claimed.command_type.startswith(("un", "batch")):
            return Rejected(Failure(FailureKind.BUSINESS_RULE, "NO", "refused"))
        if draw < 0.14 and claimed.attempt < 3 and self.world.faults:
            return RetryLater(Failure(FailureKind.TRANSIENT, "DOWN", "later"), 0.5)
        if draw < 0.18 and self.world.faults:
            return Parked(Failure(FailureKind.PERMANENT, "BROKEN", "broken"), "PERMANENT")
        return Succeeded('"done"')

    def _asked(self, claimed: Claimed, outcome: Outcome) -> Outcome:
        """The outcome of a run, after what its worker was asked meanwhile."""
        request = self.requests.get(claimed.seq)
        if request is None or claimed.cancel is not None:
            return outcome
        gives_way = self.world.rng.random() < 0.5
        if gives_way or isinstance(outcome, RetryLater | Parked if request.given_up else RetryLater):
            return Canceled(request.reason, request.actor)
        return outcome

    def _settle(self, item: tuple[int, Claimed, Outcome]) -> None:
        world, (_, claimed, outcome) = self.world, item
        draw = world.rng.random() if world.faults else 1.0
        if draw < 0.03:
            self.crash()
            return
        outcome = self._asked(claimed, outcome)
        ran = 0 if claimed.cancel is not None else 1
        report = world.run(world.store.settle([settlement_of(claimed, outcome, ran)]))
        world.log(self.name, "settles", claimed.command_type, type(outcome).__name__, report.lost)
        if not report.lost:
            if not (ran and isinstance(outcome, Canceled)):
                world.oracle.answered(claimed)
            if isinstance(outcome, Succeeded):
                world.oracle.succeeded(claimed)
        if draw < 0.08:
            world.log(self.name, "never learns of its settle")
            return
        self.held.remove(item)

    def next_moment(self) -> int:
        moments = [item[0] for item in self.held]
        if len(self.held) < 3:
            moments.append(self.idle_until)
        return max(min(moments), self.frozen_until)


def _named(asked: Ask) -> str:
    return str(getattr(asked.op, "__name__", "op"))
