"""The worker core: claims and settles that fail, and leases that are lost."""

from __future__ import annotations

import pytest

from commandbus.errors import StoreUnavailable
from commandbus.store.records import SettleReport
from commandbus.worker.backoff import BACKOFF_MAX
from commandbus.worker.effects import Claim, Forget, Interrupt, PassOn, Settle, Withdraw
from commandbus.worker.events import (
    ClaimFailed,
    Finished,
    LeasesGone,
    Settled,
    SettleFailed,
    Tick,
    Withdrawn,
    Woken,
)
from tests.unit.cores import Bench

DOWN = StoreUnavailable("down")
POISON = ValueError("can never be stored")


def test_a_failed_claim_is_repeated_with_growing_waits() -> None:
    bench = Bench(uniform=1.0).begun()
    waits = []
    for number in range(8):
        assert bench.tell(ClaimFailed(DOWN)) == [PassOn()] * (number == 0)
        waits.append(round((bench.core.deadline() or 0) - bench.now, 9))
        bench.now = bench.core.deadline() or 0
        assert bench.kinds(bench.tell(Tick()), Claim) != []
    assert bench.core.metrics.claim_failures == 8
    assert waits[:4] == [0.2, 0.4, 0.8, 1.6]
    assert max(waits) == BACKOFF_MAX
    bench.claims(1)
    bench.finish(1)
    bench.tell(ClaimFailed(DOWN))
    assert (bench.core.deadline() or 0) - bench.now == pytest.approx(0.2)


def test_what_a_failed_claim_may_have_left_is_looked_for_once() -> None:
    bench = Bench(visibility_timeout=5.0, poll_interval=60.0).begun()
    bench.tell(ClaimFailed(DOWN))
    ends = bench.now + 5.0
    bench.now = bench.core.deadline() or 0
    bench.tell(Tick())
    bench.empty()
    assert bench.core.deadline() == ends
    bench.now = ends
    assert bench.kinds(bench.tell(Tick()), Claim)
    bench.empty()
    assert (bench.core.deadline() or 0) > ends


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


def test_a_failed_settle_backs_off_longer_each_time_until_one_succeeds() -> None:
    bench = Bench(concurrency=1, uniform=1.0).begun()
    bench.claims(1)
    bench.finish(1)
    waits = []
    for _ in range(3):
        bench.tell(SettleFailed(DOWN, passing=True))
        waits.append((bench.core.deadline() or 0) - bench.now)
        bench.now += waits[-1]
        assert bench.kinds(bench.tell(Tick()), Settle)
    assert waits == pytest.approx([0.2, 0.4, 0.8])
    bench.tell(Settled(SettleReport()))
    assert bench.core.metrics.settle_failures == 3
    bench.claims(1)
    bench.finish(1)
    bench.tell(SettleFailed(DOWN, passing=True))
    assert bench.core.deadline() == pytest.approx(bench.now + 0.2)


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
