"""A virtual worker: the real core, and a shell that does nothing until the world says so.

It keeps what a runtime keeps (an inbox, slots, the claim and the settle in flight, leases to renew) and
performs effects only when the world's scheduler picks them. So every order in which a real runtime
could do things can happen here, and each is repeatable.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from commandbus.services.reclaimer import Reclaimer
from commandbus.settings import WorkerSettings
from commandbus.store.records import Claimed, ClaimRequest, Settlement
from commandbus.store.wakeup import WakeHub
from commandbus.worker.backoff import BACKOFF_MAX
from commandbus.worker.core import WorkerCore
from commandbus.worker.effects import (
    Claim,
    Effect,
    Forget,
    Interrupt,
    PassOn,
    Settle,
    Start,
    Withdraw,
)
from commandbus.worker.ending import GRACE, SETTLE_PATIENCE
from commandbus.worker.events import (
    ClaimAnswered,
    Event,
    Finished,
    LeasesGone,
    Tick,
    Withdrawn,
    Woken,
)
from commandbus.worker.pace import MEASURED_MIN
from commandbus.worker.ready import ReadyQueue
from tests.simulation.oracle import Violation
from tests.support.core_invariants import check_core

if TYPE_CHECKING:
    from tests.simulation.world import World


@dataclass(slots=True)
class Run:
    """A virtual handler at work."""

    claimed: Claimed
    ends_at: int


class VirtualWorker:
    def __init__(
        self,
        world: World,
        name: str,
        settings: WorkerSettings,
        domains: tuple[str, ...],
        hub: WakeHub,
    ) -> None:
        self.world = world
        self.name = name
        self.settings = settings
        self.domains = domains
        self.hub = hub
        self.core = WorkerCore(settings, uniform=world.rng.random)
        self.core.prefetch.handler_time.runs = (
            MEASURED_MIN  # a life of a few commands would claim nothing ahead
        )
        self.inbox: deque[Event] = deque()
        self.claim: Claim | None = None
        self.claim_answer: Event | None = None
        self.settle: Settle | None = None
        self.settle_answer: Event | None = None
        self.owed: set[tuple[int, int]] = set()
        """Outcomes that are not recorded yet, as sequence and lease."""
        self.ready = ReadyQueue()
        self.running: list[Run] = []
        self.renewals: dict[int, int] = {}
        self.frozen_until = 0
        self.heard_late = False
        """Since it was frozen, and until it claims, what it knows of due times may be stale."""
        self.alive = True
        self.reclaimer = Reclaimer(name, domains, settings.visibility_timeout)
        self.reclaim_at = world.now
        self.waiter = hub.register(domains, self._on_wake)
        self.handle(Tick())

    # Events in.

    def _on_wake(self, source: str, due_in: float | None) -> None:
        if not self.world.loses_wakeup():
            self.inbox.append(Woken(source, due_in))

    def handle(self, event: Event) -> None:
        """As in both runtimes, runs that ended are heard of before anything else."""
        if not isinstance(event, Finished):
            while self.inbox and isinstance(self.inbox[0], Finished):
                self._handle(self.inbox.popleft())
        if self.alive:
            self._handle(event)

    def _handle(self, event: Event) -> None:
        world, core = self.world, self.core
        was_stopping = core.stopping
        if isinstance(event, ClaimAnswered):
            due = world.now + int(self.settings.visibility_timeout * 1_000_000 / 3)
            self.renewals |= dict.fromkeys((c.lease_id for c in event.reply.claimed), due)
        effects = core.handle(event, world.seconds)
        check_core(core)
        for effect in effects:
            if isinstance(effect, Claim) and (was_stopping or core.stopping):
                raise Violation(f"P18: {self.name} claims while it stops")
            self._perform(effect)
        self._fill_slots()
        in_shell = len(self.ready.waiting) + len(self.running) + self._ended_in_inbox()
        if core.held != in_shell + core.chains.waiting + core.last_chances.waiting:
            raise Violation(f"{self.name} counts {core.held} held commands, its slots {in_shell}")
        self.owed.update((s.seq, s.lease_id) for s in core.unsettled)
        if core.done(world.seconds):
            self._end_gracefully()

    def _end_gracefully(self) -> None:
        stop_at = self.core.ending.at
        assert stop_at is not None
        if self.owed and self.world.seconds < stop_at + GRACE + SETTLE_PATIENCE:
            raise Violation(f"P18: {self.name} ends and forgets {sorted(self.owed)}")
        self.end()

    def _ended_in_inbox(self) -> int:
        return sum(
            len(event.settlements) + event.dropped
            if isinstance(event, Finished)
            else len(event.claimed)
            for event in self.inbox
            if isinstance(event, Finished | Withdrawn)
        )

    def tick(self) -> None:
        """The moment that the core asked for has come; it must not ask for the same one again."""
        seconds, before = self.world.seconds, self.core.deadline()
        in_flight = (self.claim, self.settle, len(self.running), len(self.inbox))
        self.handle(Tick())
        after = self.core.deadline()
        idle = in_flight == (self.claim, self.settle, len(self.running), len(self.inbox))
        if self.alive and idle and after is not None and after <= seconds:
            raise Violation(f"{self.name} is busy waiting: asked for {before}, then for {after}")

    # Effects out.

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Start(claimed):
                self.ready.add(claimed)
            case Settle():
                if self.settle is not None:
                    raise Violation(f"{self.name} has two settles in flight")
                self.settle = effect
            case Claim(limit):
                if self.claim is not None:
                    raise Violation(f"{self.name} has two claims in flight")
                if limit < 1:
                    raise Violation(f"{self.name} claims {limit} commands")
                self.claim = effect
                self.hub.arm(self.waiter)
            case Forget(lease_ids):
                for lease_id in lease_ids:
                    self.renewals.pop(lease_id, None)
            case PassOn(domains):
                for domain in sorted(self.domains if domains is None else domains):
                    self.world.wake(domain, None, "chain", self.hub)
            case Withdraw(lease_ids):
                taken = self.ready.withdraw(lease_ids)
                self.owed.update((c.seq, c.lease_id) for c in taken)
                self.inbox.append(Withdrawn(taken))
            case Interrupt(lease_ids):
                self._interrupt(lease_ids)

    def _interrupt(self, lease_ids: frozenset[int] | None) -> None:
        """As with threads: what cannot be stopped is given up, and its command stays under lease."""
        chosen = [run for run in self.running if lease_ids is None or run.claimed.lease_id in lease_ids]
        if chosen:
            self.running = [run for run in self.running if run not in chosen]
            self.inbox.appendleft(Finished([], len(chosen)))

    def _fill_slots(self) -> None:
        while self.ready.waiting and len(self.running) < self.core.concurrency:
            claimed = self.ready.waiting.popleft()
            self.world.begun(claimed)
            self.running.append(Run(claimed, self.world.now + self.world.handler_time()))

    def request(self) -> ClaimRequest:
        assert self.claim is not None
        claim, lease = self.claim, self.settings.visibility_timeout
        return ClaimRequest(
            self.domains,
            claim.limit,
            self.name,
            lease,
            claim.sweep,
            followers=claim.followers,
            chain=claim.chain,
            suspects=claim.suspects,
        )

    def finish(self, run: Run, settlement: Settlement) -> None:
        self.running.remove(run)
        self.owed.add((settlement.seq, settlement.lease_id))
        self.inbox.appendleft(Finished([settlement]))
        self._fill_slots()

    def answer(self) -> bool:
        """What the store has answered reaches the inbox; in between, other things may."""
        if self.claim_answer is not None:
            self.inbox.append(self.claim_answer)
            self.claim = self.claim_answer = None
        elif self.settle_answer is not None:
            self.inbox.append(self.settle_answer)
            self.settle = self.settle_answer = None
        else:
            return False
        return True

    def renew(self) -> None:
        """What the lease keeper does, when a third of a lease has passed."""
        now, seconds = self.world.now, self.settings.visibility_timeout
        due = [lease_id for lease_id, moment in self.renewals.items() if moment <= now]
        gone = self.world.renew(due, seconds)
        for lease_id in due:
            if lease_id in gone:
                del self.renewals[lease_id]
            else:
                self.renewals[lease_id] = now + int(seconds * 1_000_000 / 3)
        if gone:
            self.inbox.append(LeasesGone(gone))

    def reclaim(self) -> None:
        """What the service does that watches the ends of others' leases."""
        world = self.world
        self.reclaim_at = world.now + int(world.run(self.reclaimer.work(world.scope)) * 1_000_000)

    def end(self) -> None:
        """The worker is done, or its process died: whatever it still knew is forgotten."""
        self.alive = False
        self.inbox.clear()
        self.hub.unregister(self.waiter)

    # For the scheduler.

    def next_moment(self) -> int | None:
        """When something will happen here by itself."""
        moments = [run.ends_at for run in self.running]
        moments += [self.reclaim_at, *self.renewals.values()]
        deadline = self.core.deadline()
        if deadline is not None and deadline < inf:
            moments.append(self.world.moment(deadline))
        return min(moments, default=None)

    def overdue(self) -> bool:
        deadline = self.core.deadline()
        return deadline is not None and deadline <= self.world.seconds

    def asleep(self) -> bool:
        """Whether it has a free slot, and waits for something else than its next try to claim. A worker
        keeps its slots free for one on its last chance, for a moment, and while it tries to record what
        the store did not take."""
        if self.core.last_chances.apart or self.core.unrecorded:
            return False
        startable = self.core.held - self.core.chains.waiting
        if startable >= self.core.concurrency or self.core.stopping or self.heard_late:
            return False
        return not self.about_to_claim()

    def about_to_claim(self) -> bool:
        if self.claim is not None or self.inbox:
            return True
        if self.core.stopping or self.core._room() == 0:
            return False
        # A backoff or a jitter may lie before the next try; a millisecond is rounding.
        patience = BACKOFF_MAX if self.core._claim_wanted else 0.001
        deadline = self.core.deadline()
        return deadline is not None and deadline <= self.world.seconds + patience
