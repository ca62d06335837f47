"""The worker core: what it claims ahead, and when that goes back."""

from __future__ import annotations

import math

import pytest

from commandbus.domain.outcome import Released
from commandbus.settings import WorkerSettings
from commandbus.store.records import SettleReport
from commandbus.worker.effects import Claim, Settle, Withdraw
from commandbus.worker.events import Settled, Tick, Withdrawn, Woken
from commandbus.worker.pace import HELD_UP_SECONDS, MEASURED_MIN
from commandbus.worker.prefetch import URGENT_SECONDS, Prefetch
from tests.unit.cores import Bench, claimed_of


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
    assert (prefetch.is_urgent, prefetch.amount(2)) == (True, 2)
    bench.now += URGENT_SECONDS
    bench.claims(1, priority=0)
    assert (prefetch.is_urgent, prefetch.amount(2)) == (False, 20)


def test_a_command_is_urgent_that_overtakes_the_least_urgent_of_the_last_claim() -> None:
    prefetch = Prefetch(WorkerSettings())
    prefetch.claimed([claimed_of(1, priority=0), claimed_of(2, priority=10)], 0.0)
    prefetch.claimed([claimed_of(3, priority=5)], 0.1)
    assert prefetch.is_urgent


def test_less_is_claimed_ahead_where_it_holds_up_a_group() -> None:
    bench = Bench(concurrency=2).begun()
    bench.claims(2, keyed=True)
    claim = Claim(101, False, followers=900, chain=500)
    assert bench.kinds(bench.finish(1, 100), Claim) == [claim], "the rest may be of the same groups"


def test_no_members_come_along_to_slow_handlers() -> None:
    bench = Bench(concurrency=2).begun()
    bench.claims(2, keyed=True)
    assert bench.kinds(bench.finish(1, 11_000), Claim) == [Claim(1, False)]


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
