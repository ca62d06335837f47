"""The worker state machine: events in, effects out.

It never waits, never reads a clock and never touches a thread; a runtime tells it what happened and
when, and does what it says. One claim and one settle are in flight at a time: what finishes meanwhile
rides in the next settle, so batches grow exactly when the store is slow, without a timer.

The tight loop: as long as claims find something, the next one follows at once, as far as slots are
free; only an empty claim makes the worker wait, for a wake-up, for the next due time, or for the poll
interval as the fallback.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from math import inf
from typing import assert_never

from commandbus.domain.outcome import LEASE_GONE
from commandbus.errors import NotOpen
from commandbus.settings import WorkerSettings
from commandbus.store.records import Claimed, Settlement, followers
from commandbus.store.suspects import APART_SECONDS
from commandbus.store.wakeup import RECONNECT
from commandbus.worker import pace
from commandbus.worker.backoff import backoff
from commandbus.worker.chains import Chains
from commandbus.worker.effects import Claim, Effect, Forget, Interrupt, PassOn, Settle, Start, Withdraw
from commandbus.worker.ending import Ending
from commandbus.worker.events import (
    ClaimAnswered,
    ClaimFailed,
    Event,
    Finished,
    LeasesGone,
    PollChanged,
    Quieted,
    Resized,
    Settled,
    SettleFailed,
    StopRequested,
    Tick,
    Withdrawn,
    Woken,
)
from commandbus.worker.held_leases import HeldLeases
from commandbus.worker.last_chances import LastChances
from commandbus.worker.metrics import WorkerMetrics
from commandbus.worker.prefetch import Prefetch
from commandbus.worker.releases import OVERTAKEN, STALLED, STOPPING, release
from commandbus.worker.suspects import Suspects
from commandbus.worker.until_idle import UntilIdle


class WorkerCore:
    def __init__(
        self,
        settings: WorkerSettings,
        *,
        metrics: WorkerMetrics | None = None,
        uniform: Callable[[], float] = random.random,
        take_timer_turn: Callable[[float, float], bool] = lambda due_at, now: True,
        until_idle: float | None = None,
    ) -> None:
        self.metrics = metrics or WorkerMetrics()
        low, high = settings.min_concurrency or 1, settings.max_concurrency or inf
        self.concurrency = int(min(high, max(low, settings.concurrency)))
        self.poll_interval, self.quiet = settings.poll_interval, False
        self._settings, self._uniform = settings, uniform
        self._take_timer_turn = take_timer_turn
        """Whether this worker of the process claims for a timer that expired at `due_at`."""
        self.held = 0
        """Commands handed to slots and not finished."""
        self.unsettled: list[Settlement] = []
        self.settling: list[Settlement] = []
        self._leases = HeldLeases()
        self._withdrawing = 0
        """Withdrawals that were asked for and not heard of yet."""
        self.suspects = Suspects()
        self.last_chances = LastChances()
        self.chains = Chains()
        """A shell whose slots share the core's thread may go on along a chain without asking."""
        self._taken, self._claiming, self._one_by_one = 0, False, False
        self._claim_wanted = True
        """There may be commands to claim: the last claim found some, or a wake-up came since."""
        self.backlog = False
        """The last claim took all that was asked for, so more may be waiting."""
        self._hears = False
        """As the last claim said, news is announced to this process as long as it lives."""
        self._woken_meanwhile, self._due_meanwhile = False, inf
        self._look_at, self._look_source = -inf, "start"
        self._claim_at = self._settle_at = self._sweep_at = self._held_up_until = -inf
        self._progress_at = self._settled_at = -inf  # when a run ended last, and a settle began last
        self._swept = self._skip_sweep = False
        """The last claim put things in order, too; ready work was announced, and not claimed yet."""
        self._claim_failures = self._settle_failures = 0
        self.unrecorded = False
        """Outcomes wait that the store did not take: nothing more is claimed meanwhile."""
        self._left_until = -inf  # there may be leases of this worker that it does not renew
        self.prefetch = Prefetch(settings)
        self._held_up = False
        """Commands that were claimed ahead went back: nothing is claimed ahead for a while."""
        self.ending, self.until_idle = Ending(), UntilIdle(until_idle)

    @property
    def stopping(self) -> bool:
        return self.ending.at is not None

    @property
    def idle(self) -> bool:
        """Nothing is held, nothing is in flight, and the last claim was empty or none follows."""
        return not (self.held or self._in_flight() or (self._claim_wanted and not self.quiet))

    @property
    def leases(self) -> frozenset[int]:
        return self._leases.ids()

    def done(self, now: float) -> bool:
        """Whether the worker may end: everything is recorded, or patience is at its end."""
        return self.ending.done(now, self.held, self._in_flight())

    def _in_flight(self) -> bool:
        """Whether something is on its way to or from the store or the slots, or has to go there."""
        return bool(self._claiming or self.settling or self.unsettled or self._withdrawing)

    def deadline(self) -> float | None:
        """When a Tick is wanted, if nothing happens before."""
        moments: list[float] = []
        ending = self.ending.deadline(self.held, self._in_flight())
        if ending is not None:
            moments.append(ending)
        elif not self._claiming and not self.quiet and self._room() > 0:
            moments.append(self._claim_at if self._claim_wanted else self._look_at)
        if self.unsettled and not self.settling:
            moments.append(self._next_settle())
        if self._ahead() and not self.stopping:
            moments.append(self._progress_at + self._hoard_seconds)
        if self.last_chances.apart:
            moments.append(self.last_chances.deadline())
        return min(moments, default=None)

    def handle(self, event: Event, now: float) -> list[Effect]:
        effects: list[Effect] = []
        match event:
            case Finished():
                self._progress_at = now
                self._held_up = self._held_up and now < self._held_up_until
                self._finished(event, effects)
            case Settled():
                self._settled(event, now, effects)
            case ClaimAnswered():
                self._claimed(event, now, effects)
            case Woken():
                self._woken(event, now)
            case Tick():
                pass
            case ClaimFailed():
                self._claiming = False
                self._claim_failures += 1
                self.metrics.claim_failures += 1
                self._claim_at = now + backoff(self._claim_failures, event.error, self._uniform)
                self._left_under_lease(now)
                self._claim_wanted = self._woken_meanwhile = True
                self._end_if_closed(event.error, now, effects)
                if self._claim_failures == 1:
                    # Other workers may have left an event or a timer to this one.
                    effects.append(PassOn())
            case SettleFailed():
                self._settle_failed(event, now, effects)
                self._end_if_closed(event.error, now, effects)
            case Withdrawn():
                self._withdrawn(event)
            case LeasesGone():
                self._leases_gone(event, now, effects)
            case Resized():
                self.concurrency = event.concurrency
            case Quieted():
                self._quieted(event.quiet, now, effects)
            case PollChanged():
                self.poll_interval = event.poll_interval
                self._look(now + self._fallback, "fallback")
            case StopRequested():
                self._stop(now + event.patience, effects)
            case _:
                assert_never(event)
        self._decide(now, effects)
        self._withdrawing += sum(isinstance(effect, Withdraw) for effect in effects)
        return effects

    def _stop(self, at: float, effects: list[Effect]) -> None:
        if self.ending.request(at):
            effects.append(Withdraw())
            self._give_back(self._give_up(), STOPPING)

    def _give_up(self, gone: frozenset[int] | None = None) -> list[Claimed]:
        """What waits here for others, under these leases or any, is not going to begin."""
        return self.chains.give_up(gone) + self.last_chances.give_up(gone)

    def _quieted(self, quiet: bool, now: float, effects: list[Effect]) -> None:
        """Other workers of the process take over what this one was woken for, and its timers."""
        self.quiet, self._claim_wanted, self._sweep_at = quiet, True, now
        if quiet:
            effects.append(PassOn())

    def _end_if_closed(self, error: Exception, now: float, effects: list[Effect]) -> None:
        """A bus that was closed under its worker ends it at once."""
        if isinstance(error, NotOpen):
            self.ending.closed(error)
            self._stop(now, effects)

    def _decide(self, now: float, effects: list[Effect]) -> None:
        """What follows from the state, whatever led to it."""
        idle = False
        if self.ending.interrupts(now, self.held):
            effects.append(Interrupt())
            if not self.ending.requested:  # it ends by itself, and could have done all that it took
                effects.append(Withdraw())
                self._give_back(self._give_up(), STOPPING)
        if self.last_chances.apart and (begun := self.last_chances.begin(now, self._startable)):
            effects.append(Start(begun))
        if self._ahead() and now >= self._progress_at + self._hoard_seconds and not self.stopping:
            self._progress_at = now
            self.prefetch.handler_time.seconds = pace.HOARD_SECONDS
            self._held_up = True
            self._held_up_until = now if self.suspects else now + pace.HELD_UP_SECONDS
            effects.append(Withdraw())
            self._give_back(self.chains.give_up(), STALLED)
        if self.unsettled and not self.settling and now >= self._next_settle():
            self._settled_at = now
            count = 1 if self._one_by_one else len(self.unsettled)
            self.settling, self.unsettled = self.unsettled[:count], self.unsettled[count:]
            effects.append(Settle(self.settling))
        if not (self._claim_wanted or self.quiet) and now >= self._look_at and self._is_my_turn(now):
            self._claim_wanted = True
            rarely = self.poll_interval >= pace.QUICK_CHECK_FROM
            idle = rarely and self._swept and self._look_source == "fallback"
            self._sweep_at = now
            self.metrics.woken(self._look_source)
        if self.until_idle.wants_look and not (self.held or self._claim_wanted or self._in_flight()):
            self._claim_wanted, self._sweep_at = True, now
        room = self._room()
        if room > 0 and self._may_claim(now):
            self._claiming = True
            self._woken_meanwhile, self._due_meanwhile = False, inf
            sweep, skip_sweep, self._skip_sweep = now >= self._sweep_at, self._skip_sweep, False
            if sweep and not skip_sweep:
                self._sweep_at = now + pace.SWEEP_INTERVAL
            suspects = self.suspects.limit(self.concurrency, now)
            effects.append(Claim(room, sweep, idle, skip_sweep, *self._followers(room), suspects))
            self._swept = sweep
            busy = self.held or self.unsettled or self.settling
            self.until_idle.asked(sweep and not (idle or skip_sweep or busy))
        elif self._woken_meanwhile and not self._claiming and (not room or self.stopping or self.quiet):
            # New work wakes only one waiter; one that cannot take it wakes the next.
            self._woken_meanwhile = False
            effects.append(PassOn())

    def _is_my_turn(self, now: float) -> bool:
        """One worker of a process claims when a timer expires; the others go back to waiting."""
        if self._look_source != "timer" or self._take_timer_turn(self._look_at, now):
            return True
        self._look_at, self._look_source = now + self._fallback, "fallback"
        return False

    @property
    def _fallback(self) -> float:
        """Seconds until the fallback claim."""
        return pace.fallback(self.poll_interval, hears=self._hears)

    def _next_settle(self) -> float:
        """When what is unsettled may be recorded."""
        if self._startable <= self.concurrency or self.stopping:
            return self._settle_at
        return max(self._settle_at, self._settled_at + pace.SETTLE_GAP)

    def _may_claim(self, now: float) -> bool:
        may = self._claim_wanted and not self._claiming and not self.quiet
        return may and not self.stopping and now >= self._claim_at

    @property
    def _hoard_seconds(self) -> float:
        return pace.SUSPECTS_HOARD_SECONDS if self.suspects else pace.HOARD_SECONDS

    @property
    def _startable(self) -> int:
        """Commands that are held and wait for no other."""
        return self.held - self.chains.waiting

    def _ahead(self) -> bool:
        """Whether more is held than can run."""
        return self.held > self.concurrency or self.chains.waiting > 0

    def _room(self) -> int:
        """How many commands to claim: free slots, and with fast handlers some more ahead of them."""
        if self.last_chances.apart or self.unrecorded:
            return 0
        most = self._most()
        room = self._at_most(most - self._startable)
        return room if self._startable < self.concurrency or room * 2 >= most else 0

    def _most(self) -> int:
        """How many commands that wait for no other may be held."""
        none_ahead = self._held_up or self.suspects
        return self.concurrency + (0 if none_ahead else self.prefetch.startable(self.concurrency))

    def enough_finished(self) -> int:
        """After how many more finished commands there is something to decide."""
        if self._claiming or not self._claim_wanted:
            return max(1, self.held)
        return max(1, self._startable - self._most() // 2)

    def _followers(self, room: int) -> tuple[int, int]:
        """How many members of groups may come along with so many commands, in all and of one group:
        what is claimed ahead for a slot may as well be of one group."""
        ahead = 0 if self._held_up or self.suspects else self.prefetch.amount(self.concurrency)
        spare = self._at_most(self.concurrency + ahead - self.held) - room
        return (spare, ahead // self.concurrency) if spare > 0 else (0, 0)

    def _at_most(self, wanted: int) -> int:
        """So many, or what is left of those that this worker may take at all."""
        recycle_after = self._settings.recycle_after
        left = wanted if recycle_after is None else min(wanted, recycle_after - self._taken)
        return max(0, left)

    def _claimed(self, event: ClaimAnswered, now: float, effects: list[Effect]) -> None:
        reply = event.reply
        self._claiming, self._claim_failures = False, 0
        self.metrics.claimed(event.took, len(reply.claimed), reply.rescued)
        self.backlog = len(reply.claimed) - followers(reply.claimed) >= event.limit
        self.prefetch.claimed(reply.claimed, now)
        if not reply.claimed:
            self._sweep_at = now
            self._claim_wanted = self._woken_meanwhile
            self._hears = reply.hears
            self._look_at, self._look_source = now + self._fallback, "fallback"
            if reply.next_due_in is not None:
                self._look(now + reply.next_due_in + self._settings.timer_grace, "timer")
            self._look(self._due_meanwhile, "timer")
            if now < self._left_until:
                self._look(self._left_until, "lease")
            if self.suspects.after_death and self.suspects.wary:
                self.suspects.wary, self._claim_wanted = False, True
            if self.suspects:  # others that had to stay in the queue may be claimed then
                self._look(now + APART_SECONDS, "lease")
            self._end_if_idle(now)
            return
        self.until_idle.found()
        if reply.next_due_in is not None:
            self._sweep_at = min(self._sweep_at, now + max(pace.SWEEP_INTERVAL_MIN, reply.next_due_in))
        self._leases.add(reply.claimed)
        if self.stopping:
            self.unsettled += [release(claimed, STOPPING) for claimed in reply.claimed]
            return
        if not self.held:
            self._progress_at = now
        self.held += len(reply.claimed)
        self._taken += len(reply.claimed)
        ready = self.chains.lead(reply.claimed)
        if self.suspects.arrived(reply.claimed):
            ready = self.last_chances.hold(ready, now)
        effects.append(Start(ready))
        if not self._at_most(1):  # it has taken all that it may
            self.ending.at = now + self._settings.shutdown_timeout
        if self.backlog or self.suspects:
            effects.append(PassOn(frozenset({claimed.domain for claimed in reply.claimed})))

    def _end_if_idle(self, now: float) -> None:
        if (idle_at := self.until_idle.end_at(now)) is None or self._claim_wanted:
            return
        if now < (end_at := max(idle_at, self._left_until)):
            self._look(end_at, "lease")
        elif not self.stopping:
            self.until_idle.is_over = True
            self.ending.at = now + self._settings.shutdown_timeout

    def _woken(self, event: Woken, now: float) -> None:
        if event.due_in is not None:
            due_at = now + event.due_in + self._settings.timer_grace
            self._look(due_at, "timer")
            self._due_meanwhile = min(self._due_meanwhile, due_at)
            self._sweep_at = min(self._sweep_at, due_at)
            return
        asleep = not self._claim_wanted and not self._claiming
        if asleep:
            self.metrics.woken(event.source)
        if event.source == RECONNECT:
            # Another call has reached the store again: no need to wait for the end of the back-off.
            self._claim_at = self._settle_at = now
        self._woken_meanwhile, self._sweep_at = True, now
        if asleep:
            # Skip the sweep only when waking from idle; a worker that is woken repeatedly must sweep.
            self._skip_sweep = event.source != RECONNECT
            self._claim_wanted = True
            if self._settings.jitter:
                self._claim_at = max(self._claim_at, now + self._settings.jitter * self._uniform())

    def _look(self, moment: float, source: str) -> None:
        """Look again at a moment, unless an earlier one is planned."""
        if moment < self._look_at:
            self._look_at, self._look_source = moment, source

    def _finished(self, event: Finished, effects: list[Effect]) -> None:
        count = len(event.settlements)
        self.held -= count + event.dropped
        self._make_room(event.settlements, durable=False)
        if self.last_chances.apart:
            self.last_chances.ended(event.settlements)
        open_ones = [settlement for settlement in event.settlements if not settlement.recorded]
        self.unsettled += open_ones
        if len(open_ones) < count:
            # Written by the handlers' own transactions: nothing is left to do but to forget them.
            self.metrics.commands_settled += count - len(open_ones)
            self._forget([one for one in event.settlements if one.recorded], effects)
        following = self.chains.ended(event.settlements)
        if following:
            effects.append(Start(following))
        self._give_back(self.chains.held_up(), OVERTAKEN)
        if count:
            seconds = sum([settlement.ran for settlement in event.settlements]) / 1_000_000
            self.metrics.ran(count, seconds)
            self.prefetch.handler_time.add(seconds, count)

    def _make_room(self, settlements: list[Settlement], *, durable: bool) -> None:
        """Claim again when a suspect has left: others may have had to stay in the queue."""
        if self.suspects.ended(settlements, durable=durable):
            self._woken_meanwhile = self._claim_wanted = True

    def _leases_gone(self, event: LeasesGone, now: float, effects: list[Effect]) -> None:
        """Another worker has, or will have, the commands that were held under them."""
        gone = frozenset(event.lease_ids) & self._leases.ids()
        if not gone:
            return
        self.metrics.leases_lost += self._leases.lose(gone)
        self.suspects.gone(gone)
        self.held -= len(self._give_up(gone))
        effects += [Withdraw(gone), Interrupt(gone)]
        self._take_back(now)

    def _take_back(self, now: float) -> None:
        """A lease of our own is gone: claim again, for an idle worker may be the only one that could
        take back what it held."""
        self._woken_meanwhile = self._claim_wanted = True
        self._sweep_at = now

    def _settled(self, event: Settled, now: float, effects: list[Effect]) -> None:
        lost, refused = len(event.report.lost), set(event.report.lost)
        if lost:
            self._take_back(now)
            # Others of the group may run elsewhere by now.
            stale = frozenset(s.lease_id for s in self.settling if s.seq in refused)
            effects.append(Withdraw(stale))
            self._give_back(self._give_up(stale), LEASE_GONE)
            # Those of leases that are known to be gone were counted then.
            self.metrics.leases_lost += sum(
                s.seq in refused and s.lease_id in self._leases for s in self.settling
            )
        self.metrics.commands_settled += len(self.settling) - lost
        self._settle_failures, self.unrecorded = 0, False
        if not self.unsettled:
            self._one_by_one = False
        self._forget(self.settling, effects)
        self.settling = []

    def _settle_failed(self, event: SettleFailed, now: float, effects: list[Effect]) -> None:
        """What the store cannot take now is kept for later; what it can never take is dropped alone,
        and its lease brings it back as a crash, which is on record."""
        batch, self.settling = self.settling, []
        self._settle_failures += 1
        self.metrics.settle_failures += 1
        if event.passing:
            self.unsettled = batch + self.unsettled
            self._settle_at = now + backoff(self._settle_failures, event.error, self._uniform)
        elif len(batch) > 1:
            self.unsettled = batch + self.unsettled
            self._one_by_one = True
        else:
            self._forget(batch, effects)
            self._left_under_lease(now)
        self.unrecorded = bool(self.unsettled)

    def _left_under_lease(self, now: float) -> None:
        """A claim that failed may have been carried out, and a dropped settlement leaves its lease
        behind: this worker may be the only one to take them back when they have ended."""
        self._left_until = now + self._settings.visibility_timeout
        self._look(self._left_until, "lease")

    def _withdrawn(self, event: Withdrawn) -> None:
        self._withdrawing -= 1
        self._give_back(event.claimed, STOPPING if self.stopping else STALLED)

    def _give_back(self, unbegun: list[Claimed], reason: str) -> None:
        self.held -= len(unbegun)
        self.unsettled += [release(claimed, reason) for claimed in unbegun]

    def _forget(self, settled: list[Settlement], effects: list[Effect]) -> None:
        self._make_room(settled, durable=True)
        if emptied := self._leases.remove(settled):
            effects.append(Forget(emptied))
