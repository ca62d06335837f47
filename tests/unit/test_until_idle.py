"""When a worker that runs until idle ends: pure decisions of the core."""

from __future__ import annotations

from commandbus.store.records import SettleReport
from commandbus.worker.effects import Claim
from commandbus.worker.events import ClaimFailed, Settled, Tick, Woken
from commandbus.worker.until_idle import FOLLOWING_SECONDS
from tests.unit.cores import Bench


def test_an_empty_queue_ends_it_at_once() -> None:
    bench = Bench(until_idle=0.0).begun()
    bench.empty(next_due_in=5.0)
    assert bench.core.done(bench.now)
    assert bench.core.until_idle.is_over


def test_without_it_a_worker_stays() -> None:
    bench = Bench().begun()
    bench.empty()
    assert not bench.core.stopping


def test_it_looks_again_after_what_ran_and_waits_for_what_follows() -> None:
    bench = Bench(until_idle=0.0, concurrency=2, prefetch=0).begun()
    bench.claims(1)
    bench.empty()
    assert not bench.core.stopping, "a command runs"
    bench.finish(1)
    effects = bench.tell(Settled(SettleReport()))
    (look,) = bench.kinds(effects, Claim)
    assert look.sweep, "a retry may be due"
    bench.empty()
    assert not bench.core.stopping
    bench.now += FOLLOWING_SECONDS
    assert bench.kinds(bench.tell(Tick()), Claim)
    bench.empty()
    assert bench.core.done(bench.now)


def test_work_that_comes_meanwhile_begins_the_time_again() -> None:
    bench = Bench(until_idle=10.0, concurrency=1, prefetch=0).begun()
    bench.empty()
    bench.now += 9.0
    bench.tell(Woken("notify"))
    bench.claims(1)
    bench.finish(1)
    bench.tell(Settled(SettleReport()))
    bench.now += 9.0
    assert bench.kinds(bench.empty(), Claim), "this one went out before the outcome was recorded"
    bench.empty()
    assert not bench.core.stopping
    bench.now += 10.0
    bench.tell(Tick())
    bench.empty()
    assert bench.core.done(bench.now)


def test_a_store_that_does_not_answer_does_not_end_it() -> None:
    bench = Bench(until_idle=0.0).begun()
    bench.tell(ClaimFailed(RuntimeError("down")))
    assert not bench.core.stopping


def test_a_claim_that_may_have_been_carried_out_is_waited_for() -> None:
    bench = Bench(until_idle=0.0, visibility_timeout=30).begun()
    bench.tell(ClaimFailed(RuntimeError("cut off")))
    bench.now += 1.0
    bench.tell(Tick())
    bench.empty()
    assert not bench.core.stopping, "its lease ends in 29 seconds"
    bench.now += 30.0
    bench.tell(Tick())
    bench.empty()
    assert bench.core.done(bench.now)
