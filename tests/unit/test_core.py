"""The worker core, without time: events in, effects out."""

from __future__ import annotations

import math

import pytest

from commandbus.domain.outcome import Released
from commandbus.errors import StoreUnavailable
from commandbus.settings import WorkerSettings
from commandbus.store.records import ClaimReply, SettleReport
from commandbus.store.wakeup import RECONNECT
from commandbus.worker.backoff import BACKOFF_MAX
from commandbus.worker.core import WorkerCore
from commandbus.worker.effects import Claim, Forget, Interrupt, PassOn, Settle, Start, Withdraw
from commandbus.worker.events import (
    ClaimAnswered,
    ClaimFailed,
    Finished,
    LeasesGone,
    PollChanged,
    Resized,
    Settled,
    SettleFailed,
    StopRequested,
    Tick,
    Withdrawn,
    Woken,
)
from commandbus.worker.pace import HELD_UP_SECONDS, MEASURED_MIN, SETTLE_GAP
from commandbus.worker.prefetch import URGENT_SECONDS
from tests.unit.cores import Bench

DOWN = StoreUnavailable("down")
POISON = ValueError("can never be stored")


# The tight loop and back-pressure.


def test_a_new_worker_claims_at_once_as_many_as_it_has_slots() -> None:
    assert Bench(concurrency=3).tell(Tick()) == [Claim(3, True)]


def test_while_claims_find_something_the_next_one_follows_at_once() -> None:
    bench = Bench(concurrency=4).begun()
    first, *rest = bench.claims(2)
    assert isinstance(first, Start)
    assert [effect for effect in rest if isinstance(effect, Claim)] == [Claim(2, False)]


def test_a_full_worker_waits_for_a_slot_and_claims_when_one_frees() -> None:
    bench = Bench(concurrency=2).begun()
    assert not bench.kinds(bench.claims(2), Claim)
    assert bench.core.deadline() is None
    effects = bench.finish(1)
    assert bench.kinds(effects, Claim) == [Claim(1, False)]


def test_a_full_claim_wakes_one_more_waiter() -> None:
    bench = Bench(concurrency=2).begun()
    assert PassOn(frozenset({"d"})) in bench.claims(2)
    assert not bench.kinds(Bench(concurrency=2).begun().claims(1), PassOn)


def test_only_one_claim_and_one_settle_are_in_flight() -> None:
    bench = Bench(concurrency=3).begun()
    bench.claims(3)
    assert bench.kinds(bench.finish(1), Settle) != []
    assert not bench.kinds(bench.finish(1), Settle)
    assert not bench.kinds(bench.finish(1), Settle)
    effects = bench.tell(Settled(SettleReport()))
    (settle,) = bench.kinds(effects, Settle)
    assert len(settle.batch) == 2


def test_an_empty_claim_makes_the_worker_wait_for_the_poll_interval() -> None:
    bench = Bench(poll_interval=60).begun()
    assert bench.empty() == []
    assert bench.core.idle
    assert bench.core.deadline() == bench.now + 60
    bench.now += 60
    assert bench.tell(Tick()) == [Claim(4, True, idle=True)]
    assert bench.core.metrics.wakeups == {"fallback": 1}


def test_a_short_poll_interval_uses_full_claims() -> None:
    bench = Bench(poll_interval=5).begun()
    bench.empty()
    bench.now += 5
    assert bench.tell(Tick()) == [Claim(4, True, idle=False)]


# Timers and wake-ups.


def test_the_next_due_time_is_waited_for_when_it_comes_before_the_poll() -> None:
    bench = Bench(poll_interval=60).begun()
    bench.empty(next_due_in=2.5)
    assert bench.core.deadline() == bench.now + 2.5
    bench.now += 2.5
    assert bench.tell(Tick()) == [Claim(4, True)]
    assert bench.core.metrics.wakeups == {"timer": 1}


def test_a_later_due_time_does_not_postpone_the_poll() -> None:
    bench = Bench(poll_interval=10).begun()
    bench.empty(next_due_in=25)
    assert bench.core.deadline() == bench.now + 10


def test_an_earlier_due_time_replaces_the_planned_one_and_a_later_does_not() -> None:
    bench = Bench(poll_interval=60).begun()
    bench.empty(next_due_in=20)
    assert bench.tell(Woken("notify", 5)) == []
    assert bench.core.deadline() == bench.now + 5
    bench.tell(Woken("notify", 30))
    assert bench.core.deadline() == bench.now + 5


def test_a_wakeup_makes_an_idle_worker_claim_at_once() -> None:
    bench = Bench().begun()
    bench.empty()
    assert bench.tell(Woken("notify")) == [Claim(4, True, skip_sweep=True)]


def test_work_that_was_announced_is_claimed_before_things_are_put_in_order() -> None:
    bench = Bench().begun()
    bench.empty()
    bench.tell(Woken("notify"))
    assert bench.kinds(bench.claims(1), Claim) == [Claim(3, True)], "the order is not forgotten"


def test_a_worker_that_is_woken_repeatedly_still_sweeps() -> None:
    bench = Bench().begun()
    bench.tell(Woken("notify"))
    assert bench.kinds(bench.claims(1), Claim) == [Claim(3, True)]


def test_after_a_reconnect_order_comes_first() -> None:
    bench = Bench().begun()
    bench.empty()
    assert bench.tell(Woken(RECONNECT)) == [Claim(4, True)]


def test_settles_keep_apart_while_work_waits_for_slots() -> None:
    bench = Bench(concurrency=1, prefetch=2).begun()
    bench.claims(4)
    assert bench.kinds(bench.finish(1), Settle), "the first one is not delayed"
    bench.tell(Settled(SettleReport([])))
    assert not bench.kinds(bench.finish(1), Settle)
    assert bench.core.deadline() == bench.now + SETTLE_GAP
    bench.now += SETTLE_GAP
    assert bench.kinds(bench.tell(Tick()), Settle)
    bench.tell(Settled(SettleReport([])))
    assert bench.kinds(bench.finish(1), Settle), "nothing waits for the slot any more"


def test_a_wakeup_during_a_claim_is_not_lost() -> None:
    bench = Bench().begun()
    assert bench.tell(Woken("notify")) == []
    assert bench.empty() == [Claim(4, True)]
    assert bench.empty() == []


def test_a_due_time_heard_during_a_claim_is_not_lost() -> None:
    bench = Bench(poll_interval=60).begun()
    bench.tell(Woken("notify", 3))
    bench.empty()
    assert bench.core.deadline() == bench.now + 3


def test_a_full_worker_passes_the_wakeup_on_and_does_so_once() -> None:
    bench = Bench(concurrency=1).begun()
    bench.claims(1)
    assert bench.tell(Woken("notify")) == [PassOn()]
    assert bench.tell(Tick()) == []


def test_a_stopping_worker_passes_the_wakeup_on() -> None:
    bench = Bench(concurrency=2).begun()
    bench.claims(1)
    bench.empty()
    bench.tell(StopRequested(30))
    assert bench.tell(Woken("notify")) == [PassOn()]


def test_a_stopping_worker_passes_on_what_woke_it_during_its_last_claim() -> None:
    bench = Bench(concurrency=2).begun()
    bench.claims(1)
    bench.tell(Woken("notify"))
    bench.tell(StopRequested(30))
    assert PassOn() in bench.empty()


def test_jitter_spreads_the_claims_after_a_wakeup() -> None:
    bench = Bench(jitter=0.01, uniform=0.5).begun()
    bench.empty()
    assert bench.tell(Woken("notify")) == []
    assert bench.core.deadline() == bench.now + 0.005
    bench.now += 0.005
    assert bench.tell(Tick()) == [Claim(4, True, skip_sweep=True)]


def test_a_grace_lets_a_timer_look_a_little_late() -> None:
    bench = Bench(poll_interval=60, timer_grace=0.05).begun()
    bench.tell(Woken("notify", 8))
    bench.empty(next_due_in=5)
    assert bench.core.deadline() == bench.now + 5 + 0.05
    bench.tell(Woken("notify", 3))
    assert bench.core.deadline() == bench.now + 3 + 0.05
    bench.now += 3
    assert bench.tell(Tick()) == []
    bench.now += 0.05
    assert bench.tell(Tick()) == [Claim(4, True)]


def test_a_claim_that_failed_after_a_timer_is_repeated() -> None:
    bench = Bench(poll_interval=60).begun()
    bench.empty(next_due_in=5)
    bench.now += 5
    assert bench.tell(Tick()) == [Claim(4, True)]
    assert bench.tell(ClaimFailed(DOWN)) == [PassOn()], "another worker may reach the store"
    deadline = bench.core.deadline()
    assert deadline is not None
    assert deadline < bench.now + 55
    bench.now = deadline
    assert bench.tell(Tick()) == [Claim(4, True)]


def test_a_shorter_poll_interval_counts_at_once() -> None:
    bench = Bench(poll_interval=60).begun()
    bench.empty()
    bench.tell(PollChanged(2))
    assert bench.core.deadline() == bench.now + 2
    bench.now += 2
    bench.tell(Tick())
    bench.empty()
    assert bench.core.deadline() == bench.now + 2


def test_more_concurrency_claims_at_once_and_less_interrupts_no_handler() -> None:
    bench = Bench(concurrency=1).begun()
    bench.claims(1)
    assert bench.tell(Resized(3)) == [Claim(2, False)]
    bench.claims(2)
    assert bench.tell(Resized(1)) == []
    assert not bench.kinds(bench.finish(2), Claim)
    assert bench.kinds(bench.finish(1), Claim) == [Claim(1, False)]


# Claiming ahead.


def test_prefetch_is_refilled_when_half_of_it_is_used() -> None:
    bench = Bench(concurrency=2, prefetch=6).begun(limit=8)
    bench.claims(8)
    assert not bench.kinds(bench.finish(3), Claim)
    assert bench.kinds(bench.finish(1), Claim) == [Claim(4, False)]


@pytest.mark.parametrize(
    ("ran", "claimed"),
    [(100_000, 1), (11_000, 1), (5_000, 21), (100, 1_001)],
    ids=["slow", "just too slow", "fast", "very fast"],
)
def test_how_much_is_claimed_ahead_follows_the_handler_time(ran: int, claimed: int) -> None:
    bench = Bench(concurrency=2, prefetch_budget=0.05).begun()
    bench.claims(2)
    assert bench.kinds(bench.finish(1, ran), Claim) == [Claim(claimed, False)]


@pytest.mark.parametrize(("priority", "claimed"), [(5, 21), (10, 21), (0, 3)])
def test_less_is_claimed_ahead_among_urgent_commands(priority: int, claimed: int) -> None:
    bench = Bench(concurrency=2, prefetch_budget=0.05).begun()
    bench.claims(1)
    bench.claims(1, priority=priority)
    assert bench.kinds(bench.finish(1, 5_000), Claim) == [Claim(claimed, False)]


def test_some_time_after_the_last_urgent_command_more_is_claimed_ahead_again() -> None:
    bench = Bench(concurrency=2, prefetch_budget=0.05).begun()
    bench.claims(1)
    bench.claims(1, priority=0)
    bench.finish(1, 5_000)
    prefetch = bench.core.prefetch
    assert prefetch.amount(2) == 2
    bench.now += URGENT_SECONDS
    bench.claims(1, priority=0)
    assert prefetch.amount(2) == 20


def test_less_is_claimed_ahead_where_it_holds_up_a_group() -> None:
    bench = Bench(concurrency=2).begun()
    bench.claims(2, keyed=True)
    claim = Claim(101, False, followers=900, chain=500)
    assert bench.kinds(bench.finish(1, 100), Claim) == [claim], "the rest may be of the same groups"


def test_no_members_come_along_to_slow_handlers() -> None:
    bench = Bench(concurrency=2).begun()
    bench.claims(2, keyed=True)
    assert bench.kinds(bench.finish(1, 11_000), Claim) == [Claim(1, False)]


# Chains.


def test_a_worker_that_is_recycled_takes_no_more_members_than_it_may() -> None:
    bench = Bench(concurrency=2, prefetch=200, recycle_after=10).begun(limit=10)
    bench.claims(2, keyed=True)
    (claim,) = bench.kinds(bench.finish(2), Claim)
    assert claim.limit + claim.followers == 8


def test_what_was_claimed_ahead_goes_back_behind_a_slow_command_and_is_not_taken_again() -> None:
    bench = Bench(concurrency=1, prefetch=4).begun(limit=5)
    bench.claims(5)
    bench.now = bench.core.deadline() or math.nan
    assert bench.kinds(bench.tell(Tick()), Withdraw) == [Withdraw()]
    effects = bench.tell(Withdrawn(bench.take_running(4)))
    assert not bench.kinds(effects, Claim)
    (settle,) = bench.kinds(effects, Settle)
    assert {type(s.outcome) for s in settle.batch} == {Released}
    bench.tell(Settled(SettleReport()))
    assert not bench.kinds(bench.tell(Woken("notify")), Claim)
    assert bench.kinds(bench.finish(1), Claim) == [Claim(1, True)]
    bench.claims(1)
    bench.now += HELD_UP_SECONDS
    assert bench.kinds(bench.finish(1), Claim) == [Claim(5, True)], "later it claims ahead again"


def test_nothing_is_claimed_ahead_before_enough_runs_were_measured() -> None:
    bench = Bench(concurrency=2, prefetch_budget=0.05, measured=MEASURED_MIN - 2).begun()
    bench.claims(2)
    assert bench.kinds(bench.finish(1, 5_000), Claim) == [Claim(1, False)]
    bench.claims(1)
    assert bench.kinds(bench.finish(1, 5_000), Claim) == [Claim(21, False)]


# Failures of effects.


def test_a_failed_claim_is_repeated_with_growing_waits() -> None:
    bench = Bench(uniform=1.0).begun()
    waits = []
    for number in range(8):
        assert bench.tell(ClaimFailed(DOWN)) == [PassOn()] * (number == 0)
        waits.append(round((bench.core.deadline() or 0) - bench.now, 9))
        bench.now = bench.core.deadline() or 0
        assert bench.kinds(bench.tell(Tick()), Claim) != []
    assert waits[:4] == [0.2, 0.4, 0.8, 1.6]
    assert max(waits) == BACKOFF_MAX
    bench.claims(1)
    bench.finish(1)
    bench.tell(ClaimFailed(DOWN))
    assert (bench.core.deadline() or 0) - bench.now == pytest.approx(0.2)


def test_a_wakeup_does_not_shorten_the_backoff() -> None:
    bench = Bench(uniform=1.0).begun()
    bench.tell(ClaimFailed(DOWN))
    assert bench.tell(Woken("notify")) == []


def test_a_settle_that_may_pass_later_is_kept_and_repeated_with_what_came_meanwhile() -> None:
    bench = Bench(concurrency=3, uniform=1.0).begun()
    bench.claims(3)
    (settle,) = bench.kinds(bench.finish(1), Settle)
    bench.finish(1)
    assert not bench.kinds(bench.tell(SettleFailed(DOWN, passing=True)), Settle)
    bench.now += 0.2
    (again,) = bench.kinds(bench.tell(Tick()), Settle)
    assert len(again.batch) == 2
    assert again.batch[0] == settle.batch[0]
    assert bench.core.metrics.settle_failures == 1


def test_nothing_more_is_claimed_while_an_outcome_cannot_be_recorded() -> None:
    bench = Bench(concurrency=3, uniform=1.0).begun()
    bench.claims(3)
    bench.finish(2)
    bench.claims(0)
    bench.tell(SettleFailed(DOWN, passing=True))
    assert bench.tell(Woken("notify")) == [PassOn()], "another worker may reach the store"
    bench.now += 0.2
    told = bench.tell(Tick())
    assert bench.kinds(told, Settle)
    assert not bench.kinds(told, Claim)
    assert bench.kinds(bench.tell(Settled(SettleReport())), Claim)


def test_a_poisonous_batch_is_settled_one_by_one_and_only_the_poison_is_dropped() -> None:
    bench = Bench(concurrency=3).begun()
    bench.claims(3)
    bench.finish(3)
    (first,) = bench.kinds(bench.tell(SettleFailed(POISON, passing=False)), Settle)
    assert len(first.batch) == 1
    (second,) = bench.kinds(bench.tell(Settled(SettleReport())), Settle)
    assert len(second.batch) == 1
    (third,) = bench.kinds(bench.tell(SettleFailed(POISON, passing=False)), Settle)
    assert bench.tell(Settled(SettleReport()))[0] == Forget([1])
    assert len({s.seq for s in first.batch + second.batch + third.batch}) == 3
    assert bench.core.metrics.commands_settled == 2
    assert bench.core.leases == frozenset()


def test_refused_outcomes_are_counted_and_make_the_worker_look_again() -> None:
    bench = Bench(concurrency=2).begun()
    bench.claims(1)
    bench.empty()
    bench.finish(1)
    effects = bench.tell(Settled(SettleReport((1,))))
    assert bench.core.metrics.leases_lost == 1
    assert bench.core.metrics.commands_settled == 0
    assert bench.kinds(effects, Claim) == [Claim(2, True)]


def test_a_lost_lease_takes_back_what_waits_and_interrupts_what_runs() -> None:
    bench = Bench(concurrency=1, prefetch=2).begun(limit=3)
    bench.claims(3)
    gone = frozenset({1})
    assert bench.tell(LeasesGone([1]))[:2] == [Withdraw(gone), Interrupt(gone)]
    bench.tell(Withdrawn(bench.take_running(2)))
    bench.tell(Finished([], dropped=1))
    bench.tell(Settled(SettleReport((2, 3))))
    assert bench.core.held == 0
    assert bench.core.leases == frozenset()
    assert bench.tell(LeasesGone([1])) == []


def test_an_empty_reply_is_counted() -> None:
    bench = Bench().begun()
    bench.tell(ClaimAnswered(ClaimReply([], rescued=2), 4, took=0.5))
    metrics = bench.core.metrics
    assert (metrics.empty_receives, metrics.rescued, metrics.fetch_seconds) == (1, 2, 0.5)


def test_after_a_claim_that_failed_an_idle_worker_looks_again_when_its_lease_would_end() -> None:
    """The claim may have been carried out, and no other worker may be there to take it back."""
    bench = Bench(poll_interval=600.0, visibility_timeout=30.0).begun()
    bench.tell(ClaimFailed(DOWN))
    failed_at = bench.now
    bench.now += 5.0
    bench.tell(Tick())
    bench.empty()
    assert bench.core.deadline() == failed_at + 30.0
    bench.now = failed_at + 30.0
    assert bench.tell(Tick()) == [Claim(4, True)]


def test_after_a_settlement_that_was_dropped_an_idle_worker_looks_again_when_its_lease_ends() -> None:
    bench = Bench(poll_interval=600.0, visibility_timeout=30.0).begun()
    bench.claims(1)
    bench.empty()
    bench.finish(1)
    bench.now += 1.0
    bench.tell(SettleFailed(POISON, passing=False))
    assert bench.core.deadline() == bench.now + 30.0


def test_a_timer_that_another_worker_of_the_process_took_leads_to_no_claim() -> None:
    asked: list[tuple[float, float]] = []

    def taken(due_at: float, now: float) -> bool:
        asked.append((due_at, now))
        return False

    core = WorkerCore(WorkerSettings(poll_interval=60, prefetch=0), take_timer_turn=taken)
    core.handle(Tick(), 0.0)
    core.handle(ClaimAnswered(ClaimReply([], next_due_in=5.0), 4, 0.0), 0.0)
    assert core.handle(Tick(), 5.5) == []
    assert asked == [(5.0, 5.5)]
    assert core.deadline() == 65.5
    assert core.metrics.wakeups == {}
    (claim,) = core.handle(Woken("chain", None), 6.0)
    assert isinstance(claim, Claim)
    assert claim.skip_sweep


def test_only_an_event_that_ends_a_wait_counts_as_a_wakeup() -> None:
    bench = Bench(poll_interval=60).begun()
    bench.tell(Woken("notify", None))
    assert bench.core.metrics.wakeups == {}
    bench.empty()
    bench.empty()
    bench.tell(Woken("notify", None))
    assert bench.core.metrics.wakeups == {"notify": 1}
