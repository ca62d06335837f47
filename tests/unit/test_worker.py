"""The worker state machine without time: events in, effects out."""

from __future__ import annotations

from math import inf
from uuid import UUID

import pytest

from commandbus.domain.outcome import Released, Succeeded
from commandbus.settings import WorkerSettings
from commandbus.store.records import Claimed, ClaimReply, Settlement, SettleReport
from commandbus.worker.core import WorkerCore
from commandbus.worker.effects import Claim, Effect, PassOn, Settle, Start, Withdraw
from commandbus.worker.events import (
    ClaimAnswered,
    ClaimFailed,
    Finished,
    PollChanged,
    Resized,
    Settled,
    SettleFailed,
    StopRequested,
    Tick,
    Withdrawn,
    Woken,
)
from commandbus.worker.pace import MEASURED_MIN
from tests.support.core_invariants import check_core

POLL_SECONDS = 60.0


def core_of(**settings: object) -> WorkerCore:
    options = {"concurrency": 2, "prefetch": 0, "poll_interval": POLL_SECONDS} | settings
    return WorkerCore(WorkerSettings(**options))  # type: ignore[arg-type]


def claimed(*sequences: int) -> list[Claimed]:
    return [one_claimed(seq) for seq in sequences]


def one_claimed(seq: int) -> Claimed:
    values = dict.fromkeys(Claimed.__struct_fields__)
    values |= {
        "seq": seq,
        "lease_id": 100 + seq,
        "domain": "orders",
        "command_type": "ship",
        "command_id": UUID(int=seq),
        "correlation_id": UUID(int=seq),
        "data": "null",
        "priority": 5,
        "created_at": 0,
        "attempt": 1,
        "crashes": 0,
        "releases": 0,
        "chain": 0,
    }
    return Claimed(**values)


def done(claim: Claimed, ran: int = 100_000) -> Settlement:
    return Settlement(claim.seq, claim.lease_id, claim.attempt, Succeeded(), ran)


def kinds(effects: list[Effect]) -> list[str]:
    return [type(effect).__name__ for effect in effects]


def limits(effects: list[Effect]) -> list[int]:
    return [effect.limit for effect in effects if isinstance(effect, Claim)]


def empty(core: WorkerCore, now: float, next_due_in: float | None = None) -> list[Effect]:
    return core.handle(ClaimAnswered(ClaimReply([], next_due_in), 2), now)


def idle_core(now: float = 0.0, **settings: object) -> WorkerCore:
    """A core whose first claim was empty."""
    core = core_of(**settings)
    assert limits(core.handle(Tick(), now)) == [core.concurrency]
    assert empty(core, now) == []
    assert core.idle
    return core


def test_no_busy_wait_on_empty() -> None:
    """After an empty claim nothing is claimed before the poll interval, whatever ticks meanwhile."""
    core = idle_core(now=0.0)
    assert core.deadline() == POLL_SECONDS
    for moment in (0.0, 0.001, 1.0, 30.0, POLL_SECONDS - 0.001):
        assert core.handle(Tick(), moment) == []
    assert core.deadline() == POLL_SECONDS
    assert limits(core.handle(Tick(), POLL_SECONDS)) == [2]
    assert core.metrics.wakeups == {"fallback": 1}
    assert core.handle(Tick(), POLL_SECONDS + 1) == [], "one claim is in flight at a time"
    assert core.deadline() is None or core.deadline() > POLL_SECONDS + 1  # type: ignore[operator]
    empty(core, POLL_SECONDS + 2)
    assert core.deadline() == 2 * POLL_SECONDS + 2
    assert core.metrics.empty_receives == 2


def test_waits_for_slot() -> None:
    """With every slot taken nothing is claimed; the first free slot claims at once, for itself."""
    core = core_of(concurrency=2)
    assert limits(core.handle(Tick(), 0.0)) == [2]
    first, second, third = claimed(1, 2, 3)
    effects = core.handle(ClaimAnswered(ClaimReply([first, second]), 2), 0.0)
    assert kinds(effects) == ["Start", "PassOn"]
    assert core.held == 2
    for event in (Tick(), Woken("notify"), Tick()):
        assert limits(core.handle(event, 1.0)) == []
    assert core.deadline() is None, "only a free slot can make it claim"
    effects = core.handle(Finished([done(first)]), 2.0)
    assert limits(effects) == [1]
    assert [effect.batch for effect in effects if isinstance(effect, Settle)] == [[done(first)]]
    effects = core.handle(ClaimAnswered(ClaimReply([third]), 1), 2.0)
    assert [effect.claimed for effect in effects if isinstance(effect, Start)] == [[third]]
    assert limits(effects) == []
    check_core(core)


def test_a_claim_that_found_something_is_followed_by_the_next_at_once() -> None:
    core = core_of(concurrency=4)
    core.handle(Tick(), 0.0)
    effects = core.handle(ClaimAnswered(ClaimReply(claimed(1)), 4), 0.0)
    assert limits(effects) == [3]
    assert core.metrics.wakeups == {}


def test_a_wakeup_while_claiming_is_not_lost() -> None:
    core = core_of()
    core.handle(Tick(), 0.0)
    assert limits(core.handle(Woken("notify"), 0.0)) == []
    assert limits(empty(core, 0.0)) == [2], "it may be about what the claim did not see"
    assert core.deadline() is None
    assert empty(core, 0.0) == []
    assert core.idle


def test_a_wakeup_ends_the_wait() -> None:
    core = idle_core()
    assert limits(core.handle(Woken("notify"), 5.0)) == [2]
    assert core.metrics.wakeups == {"notify": 1}


def test_a_wakeup_for_later_sets_a_timer_unless_an_earlier_one_is_set() -> None:
    core = idle_core()
    assert core.handle(Woken("notify", 20.0), 0.0) == []
    assert core.deadline() == 20.0
    core.handle(Woken("notify", 5.0), 1.0)
    core.handle(Woken("notify", 50.0), 1.0)
    assert core.deadline() == 6.0
    assert core.handle(Tick(), 5.9) == []
    assert limits(core.handle(Tick(), 6.0)) == [2]
    assert core.metrics.wakeups == {"timer": 1}


def test_an_empty_claim_says_when_to_look_again() -> None:
    core = core_of()
    core.handle(Tick(), 0.0)
    empty(core, 0.0, next_due_in=3.0)
    assert core.deadline() == 3.0


def test_jitter_delays_the_claim_after_a_wakeup() -> None:
    settings = WorkerSettings(concurrency=2, prefetch=0, jitter=0.01)
    core = WorkerCore(settings, uniform=lambda: 0.5)
    core.handle(Tick(), 0.0)
    empty(core, 0.0)
    assert core.handle(Woken("notify"), 1.0) == []
    assert core.deadline() == pytest.approx(1.005)
    assert limits(core.handle(Tick(), 1.006)) == [2]


def test_one_settle_is_in_flight_and_the_rest_rides_in_the_next() -> None:
    core = core_of(concurrency=4)
    core.handle(Tick(), 0.0)
    batch = claimed(1, 2, 3, 4)
    core.handle(ClaimAnswered(ClaimReply(batch), 4), 0.0)
    first = core.handle(Finished([done(batch[0])]), 0.0)
    assert "Settle" in kinds(first)
    for claim in batch[1:3]:
        assert "Settle" not in kinds(core.handle(Finished([done(claim)]), 0.0))
    effects = core.handle(Settled(SettleReport()), 0.0)
    (settle,) = [effect for effect in effects if isinstance(effect, Settle)]
    assert [settlement.seq for settlement in settle.batch] == [2, 3]
    check_core(core)


def test_a_failed_claim_backs_off_and_longer_each_time() -> None:
    core = WorkerCore(WorkerSettings(concurrency=2, prefetch=0), uniform=lambda: 1.0)
    now, waits = 0.0, []
    core.handle(Tick(), now)
    for number in range(8):
        assert core.handle(ClaimFailed(OSError()), now) == [PassOn()] * (number == 0)
        deadline = core.deadline()
        assert deadline is not None
        waits.append(deadline - now)
        now = deadline
        assert limits(core.handle(Tick(), now)) == [2]
    assert waits == sorted(waits)
    assert waits[0] > 0
    assert waits[-1] <= 5.0
    assert core.metrics.claim_failures == 8


def test_a_failed_settle_backs_off_longer_each_time_and_anew_after_a_success() -> None:
    core = WorkerCore(WorkerSettings(concurrency=1, prefetch=0), uniform=lambda: 1.0)
    core.handle(Tick(), 0.0)
    batch = claimed(1)
    core.handle(ClaimAnswered(ClaimReply(batch), 1), 0.0)
    assert "Settle" in kinds(core.handle(Finished([done(batch[0])]), 0.0))
    now, waits = 0.0, []
    for _ in range(3):
        core.handle(SettleFailed(OSError(), passing=True), now)
        waits.append(core._settle_at - now)
        now = core._settle_at
        assert "Settle" in kinds(core.handle(Tick(), now))
    assert waits == pytest.approx([0.2, 0.4, 0.8])
    core.handle(Settled(SettleReport()), now)
    assert core.metrics.settle_failures == 3
    core.handle(ClaimAnswered(ClaimReply(batch), 1), now)
    core.handle(Finished([done(batch[0])]), now)
    core.handle(SettleFailed(OSError(), passing=True), now)
    assert core._settle_at - now == pytest.approx(0.2)


def test_a_full_claim_wakes_one_more_worker_and_a_smaller_one_nobody() -> None:
    for found, expected in ((2, True), (1, False)):
        core = core_of(concurrency=2)
        core.handle(Tick(), 0.0)
        effects = core.handle(ClaimAnswered(ClaimReply(claimed(*range(1, found + 1))), 2), 0.0)
        assert any(isinstance(effect, PassOn) for effect in effects) is expected


def test_a_full_worker_that_is_woken_passes_the_news_on_once() -> None:
    core = core_of(concurrency=1)
    core.handle(Tick(), 0.0)
    core.handle(ClaimAnswered(ClaimReply(claimed(1)), 1), 0.0)
    assert kinds(core.handle(Woken("notify"), 1.0)) == ["PassOn"]
    assert core.handle(Tick(), 1.0) == []


def test_more_slots_claim_at_once_and_fewer_wait() -> None:
    core = core_of(concurrency=1)
    core.handle(Tick(), 0.0)
    core.handle(ClaimAnswered(ClaimReply(claimed(1)), 1), 0.0)
    assert limits(core.handle(Resized(3), 1.0)) == [2]
    core.handle(ClaimAnswered(ClaimReply(claimed(2, 3)), 2), 1.0)
    core.handle(Resized(1), 2.0)
    assert limits(core.handle(Finished([done(one_claimed(1))]), 2.0)) == []
    assert limits(core.handle(Finished([done(one_claimed(2)), done(one_claimed(3))]), 2.0)) == [1]


def test_a_shorter_poll_interval_counts_at_once() -> None:
    core = idle_core()
    core.handle(PollChanged(0.5), 10.0)
    assert core.deadline() == 10.5


def test_a_stop_withdraws_what_was_not_begun_and_claims_no_more() -> None:
    core = core_of(concurrency=1, prefetch=2)
    core.handle(Tick(), 0.0)
    batch = claimed(1, 2, 3)
    core.handle(ClaimAnswered(ClaimReply(batch), 3), 0.0)
    effects = core.handle(StopRequested(30.0), 1.0)
    assert any(isinstance(effect, Withdraw) for effect in effects)
    effects = core.handle(Withdrawn(batch[1:]), 1.0)
    (settle,) = [effect for effect in effects if isinstance(effect, Settle)]
    assert all(isinstance(settlement.outcome, Released) for settlement in settle.batch)
    assert not core.done(2.0), "one still runs"
    assert limits(core.handle(Settled(SettleReport()), 2.0)) == []
    effects = core.handle(Finished([done(batch[0])]), 3.0)
    assert limits(effects) == []
    core.handle(Settled(SettleReport()), 3.0)
    assert core.done(3.0)


def test_what_a_claim_brings_after_the_stop_goes_back() -> None:
    core = core_of()
    core.handle(Tick(), 0.0)
    core.handle(StopRequested(30.0), 0.0)
    core.handle(Withdrawn([]), 0.0)
    assert not core.done(0.0), "a claim is in flight"
    effects = core.handle(ClaimAnswered(ClaimReply(claimed(1, 2)), 2), 0.0)
    (settle,) = [effect for effect in effects if isinstance(effect, Settle)]
    assert [type(settlement.outcome) for settlement in settle.batch] == [Released, Released]
    assert [settlement.ran for settlement in settle.batch] == [0, 0]
    assert not any(isinstance(effect, Start) for effect in effects)


def test_quick_handlers_make_it_claim_ahead_and_slow_ones_do_not() -> None:
    for ran, ahead in ((10, True), (200_000, False)):
        core = core_of(concurrency=2, prefetch=None)
        core.prefetch.handler_time.runs = MEASURED_MIN
        core.handle(Tick(), 0.0)
        batch = claimed(1, 2)
        core.handle(ClaimAnswered(ClaimReply(batch), 2), 0.0)
        (limit,) = limits(core.handle(Finished([done(claim, ran) for claim in batch]), 0.0))
        assert (limit > 2) is ahead


def test_nothing_is_planned_for_never() -> None:
    core = idle_core()
    assert core.deadline() != inf
