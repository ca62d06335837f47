"""How the worker core stops: what goes back, what is recorded, and when patience ends."""

from __future__ import annotations

from commandbus.domain.outcome import Released
from commandbus.errors import StoreUnavailable
from commandbus.store.records import SettleReport
from commandbus.worker.effects import Claim, Interrupt, Settle, Withdraw
from commandbus.worker.ending import GRACE, SETTLE_PATIENCE
from commandbus.worker.events import (
    ClaimFailed,
    PollChanged,
    Resized,
    Settled,
    StopRequested,
    Tick,
    Withdrawn,
    Woken,
)
from tests.unit.cores import Bench

DOWN = StoreUnavailable("down")


def test_a_worker_with_nothing_to_do_stops_at_once() -> None:
    bench = Bench().begun()
    bench.empty()
    bench.tell(StopRequested(30))
    bench.tell(Withdrawn([]))
    assert bench.core.done(bench.now)


def test_stopping_returns_what_was_not_begun_and_records_what_finishes() -> None:
    bench = Bench(concurrency=1, prefetch=2).begun(limit=3)
    bench.claims(3)
    assert Withdraw() in bench.tell(StopRequested(30))
    (settle,) = bench.kinds(bench.tell(Withdrawn(bench.take_running(2))), Settle)
    assert [type(s.outcome) for s in settle.batch] == [Released, Released]
    assert not bench.core.done(bench.now)
    bench.finish(1)
    bench.tell(Settled(SettleReport()))
    bench.tell(Settled(SettleReport()))
    assert bench.core.done(bench.now)


def test_a_claim_that_comes_in_while_stopping_is_given_back() -> None:
    bench = Bench(concurrency=2).begun()
    bench.tell(StopRequested(30))
    bench.tell(Withdrawn([]))
    assert not bench.core.done(bench.now)
    (settle,) = bench.claims(2)
    assert isinstance(settle, Settle)
    assert {type(s.outcome) for s in settle.batch} == {Released}
    bench.tell(Settled(SettleReport()))
    assert bench.core.done(bench.now)


def test_patience_ends_in_an_interrupt_and_then_in_leaving() -> None:
    bench = Bench(concurrency=1).begun()
    bench.claims(1)
    bench.tell(StopRequested(30))
    bench.tell(Withdrawn([]))
    assert bench.core.deadline() == bench.now + 30
    bench.now += 30
    assert bench.tell(Tick()) == [Interrupt()]
    assert bench.core.deadline() == bench.now + GRACE
    assert not bench.core.done(bench.now)
    bench.now += GRACE
    bench.tell(Tick())
    assert bench.core.done(bench.now)


def test_a_settle_in_flight_is_awaited_but_not_for_ever() -> None:
    bench = Bench(concurrency=1).begun()
    bench.claims(1)
    bench.finish(1)
    bench.tell(ClaimFailed(DOWN))
    bench.tell(StopRequested(0))
    bench.now += GRACE + SETTLE_PATIENCE - 0.1
    bench.tell(Tick())
    assert not bench.core.done(bench.now)
    bench.now += 0.1
    assert bench.core.done(bench.now)


def test_the_shorter_of_two_patiences_counts() -> None:
    bench = Bench(concurrency=1).begun()
    bench.claims(1)
    bench.tell(StopRequested(30))
    bench.tell(StopRequested(1))
    bench.tell(StopRequested(20))
    assert bench.core.deadline() == bench.now + 1


def test_a_stopping_worker_never_claims() -> None:
    bench = Bench().begun()
    bench.empty()
    bench.tell(StopRequested(30))
    for event in (Woken("notify"), Tick(), Resized(10), PollChanged(0.1), Withdrawn([])):
        assert not bench.kinds(bench.tell(event), Claim)


def test_a_moment_in_the_past_is_never_asked_for_while_a_settle_is_in_flight() -> None:
    bench = Bench(concurrency=2).begun()
    bench.claims(2)
    bench.finish(1)
    bench.tell(StopRequested(0))
    bench.now += GRACE + 0.5
    bench.tell(Tick())
    assert (bench.core.deadline() or 0) > bench.now
