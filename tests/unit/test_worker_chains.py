"""The worker core and members of groups that were claimed together."""

from __future__ import annotations

import math

from commandbus.domain.outcome import Released
from commandbus.store.records import Settlement, SettleReport
from commandbus.worker.effects import Claim, Interrupt, Settle, Start
from commandbus.worker.events import (
    Finished,
    LeasesGone,
    Settled,
    StopRequested,
    Tick,
)
from tests.unit.cores import Bench


def test_one_of_a_chain_begins_when_the_one_before_it_has_ended() -> None:
    bench = Bench(concurrency=4, prefetch=4).begun()
    assert [one.seq for one in bench.kinds(bench.claims(2, keyed=True, chain=1), Start)[0].claimed] == [
        1,
        3,
    ]
    assert bench.core.held == 4
    assert [one.seq for one in bench.kinds(bench.finish(1), Start)[0].claimed] == [2]
    assert not bench.kinds(bench.tell(Tick()), Start)
    assert [one.seq for one in bench.kinds(bench.finish(1), Start)[0].claimed] == [4]
    assert not bench.kinds(bench.finish(2), Start)
    assert bench.core.held == 0


def test_slots_that_a_chain_leaves_free_are_claimed_for() -> None:
    bench = Bench(concurrency=2, prefetch=10).begun(limit=12)
    (claim,) = bench.kinds(bench.claims(1, keyed=True, chain=11), Claim)
    assert claim.limit == 1
    assert (claim.followers, claim.chain) == (0, 0), "there are enough already"


def test_a_command_that_waits_in_a_chain_goes_back_when_the_worker_stops() -> None:
    bench = Bench(concurrency=2, prefetch=10).begun()
    bench.claims(1, keyed=True, chain=3)
    (settle,) = bench.kinds(bench.tell(StopRequested(30)), Settle)
    assert [(s.seq, type(s.outcome)) for s in settle.batch] == [(n, Released) for n in (2, 3, 4)]
    assert bench.core.held == 1


def test_a_command_that_waits_in_a_chain_goes_back_behind_a_slow_command() -> None:
    bench = Bench(concurrency=2, prefetch=10).begun()
    bench.claims(1, keyed=True, chain=3)
    bench.empty()
    bench.now = bench.core.deadline() or math.nan
    effects = bench.tell(Tick())
    (settle,) = bench.kinds(effects, Settle)
    assert [s.seq for s in settle.batch] == [2, 3, 4]
    assert not bench.kinds(effects, Start)


def test_a_chain_whose_lease_is_gone_goes_no_further() -> None:
    bench = Bench(concurrency=2, prefetch=10).begun()
    bench.claims(1, keyed=True, chain=3)
    bench.tell(LeasesGone([1]))
    assert bench.core.held == 1
    assert not bench.kinds(bench.finish(1), Start)


def test_no_follower_begins_behind_one_that_comes_back_at_once() -> None:
    bench = Bench(concurrency=2).begun()
    bench.claims(1, keyed=True, chain=2)
    (first,) = bench.running
    back = Settlement(first.seq, first.lease_id, first.attempt, Released("not now"))
    effects = bench.tell(Finished([back]))
    assert not bench.kinds(effects, Start)
    (settle,) = bench.kinds(effects, Settle)
    assert [s.seq - first.seq for s in settle.batch] == [0, 1, 2], "in their order"


def test_a_worker_that_ends_after_so_many_leaves_no_chain_behind() -> None:
    bench = Bench(concurrency=2, recycle_after=3, shutdown_timeout=5).begun()
    bench.claims(1, keyed=True, chain=2)
    bench.now += 5
    effects = bench.tell(Tick())
    assert bench.kinds(effects, Interrupt)
    (settle,) = bench.kinds(effects, Settle)
    assert len(settle.batch) == 2
    assert not bench.kinds(bench.finish(1), Start)


def test_a_chain_is_given_back_when_an_outcome_came_too_late() -> None:
    bench = Bench(concurrency=2, prefetch=10).begun()
    bench.claims(1, keyed=True, chain=3)
    bench.finish(1)
    (settle,) = bench.kinds(bench.tell(Settled(SettleReport((1,)))), Settle)
    assert [s.seq for s in settle.batch] == [3, 4], "the second one had begun"
