"""The worker core, without time: when it claims, waits and wakes up."""

from __future__ import annotations

from commandbus.errors import StoreUnavailable
from commandbus.settings import WorkerSettings
from commandbus.store.records import ClaimReply, SettleReport
from commandbus.store.wakeup import RECONNECT
from commandbus.worker.core import WorkerCore
from commandbus.worker.effects import Claim, PassOn, Settle, Start
from commandbus.worker.events import (
    ClaimAnswered,
    ClaimFailed,
    PollChanged,
    Resized,
    Settled,
    StopRequested,
    Tick,
    Woken,
)
from commandbus.worker.pace import SETTLE_GAP
from tests.unit.cores import Bench

DOWN = StoreUnavailable("down")


def test_a_new_worker_claims_at_once_as_many_as_it_has_slots() -> None:
    assert Bench(concurrency=3).tell(Tick()) == [Claim(3, True)]


def test_while_claims_find_something_the_next_one_follows_at_once() -> None:
    bench = Bench(concurrency=4).begun()
    first, *rest = bench.claims(2)
    assert isinstance(first, Start)
    assert [effect for effect in rest if isinstance(effect, Claim)] == [Claim(2, False)]


def test_waits_for_slot() -> None:
    bench = Bench(concurrency=2).begun()
    assert not bench.kinds(bench.claims(2), Claim)
    assert bench.core.held == 2
    for event in (Tick(), Woken("notify"), Tick()):
        assert not bench.kinds(bench.tell(event), Claim)
    assert bench.core.deadline() is None, "only a free slot can make it claim"
    effects = bench.finish(1)
    assert bench.kinds(effects, Claim) == [Claim(1, True)], "it sweeps, because it was woken"
    (settle,) = bench.kinds(effects, Settle)
    assert [settlement.seq for settlement in settle.batch] == [1]
    effects = bench.claims(1)
    assert [claimed.seq for claimed in effects[0].claimed] == [3]  # type: ignore[union-attr]
    assert not bench.kinds(effects, Claim)


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
    assert [settlement.seq for settlement in settle.batch] == [2, 3]


def test_no_busy_wait_on_empty() -> None:
    bench = Bench(poll_interval=60).begun()
    assert bench.empty() == []
    assert bench.core.idle
    poll_at = bench.now + 60
    for bench.now in (poll_at - 60, poll_at - 59, poll_at - 0.001):
        assert bench.tell(Tick()) == []
        assert bench.core.deadline() == poll_at
    bench.now = poll_at
    assert bench.tell(Tick()) == [Claim(4, True, idle=True)]
    assert bench.core.metrics.wakeups == {"fallback": 1}
    assert bench.tell(Tick()) == [], "one claim is in flight at a time"
    bench.empty()
    assert bench.core.deadline() == poll_at + 60
    assert bench.core.metrics.empty_receives == 2


def test_a_short_poll_interval_uses_full_claims() -> None:
    bench = Bench(poll_interval=5).begun()
    bench.empty()
    bench.now += 5
    assert bench.tell(Tick()) == [Claim(4, True, idle=False)]


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
    assert bench.core.idle


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
    bench.now += 10
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


def test_an_empty_reply_is_counted() -> None:
    bench = Bench().begun()
    bench.tell(ClaimAnswered(ClaimReply([], rescued=2), 4, took=0.5))
    metrics = bench.core.metrics
    assert (metrics.empty_receives, metrics.rescued, metrics.fetch_seconds) == (1, 2, 0.5)
