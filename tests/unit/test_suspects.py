"""Commands whose workers died are claimed as far as they can start at once, and stay apart."""

from __future__ import annotations

from typing import Any

import pytest

from commandbus.domain.outcome import CRASHES_MAX, Released, Succeeded
from commandbus.settings import WorkerSettings
from commandbus.store.records import Claimed, ClaimReply, ClaimRequest, Settlement, SettleReport
from commandbus.store.suspects import (
    APART,
    APART_SECONDS,
    LAST_APART,
    LAST_APART_SECONDS,
    NONE,
    Admission,
    SuspectLimit,
)
from commandbus.worker.core import WorkerCore
from commandbus.worker.effects import Claim, Effect, PassOn, Settle, Start, Withdraw
from commandbus.worker.events import (
    ClaimAnswered,
    Event,
    Finished,
    LeasesGone,
    Settled,
    StopRequested,
    Tick,
    Withdrawn,
)
from commandbus.worker.last_chances import ALONE_SECONDS, HOLD_SECONDS
from commandbus.worker.pace import SUSPECTS_HOARD_SECONDS
from commandbus.worker.suspects import WARY_SECONDS
from tests.support.core_invariants import check_core
from tests.unit.cores import claimed_of

ONCE, LAST = 1, CRASHES_MAX - 1


def claimed(seq: int, crashes: int) -> Claimed:
    return claimed_of(seq, 1, crashes, 5, keyed=False)


def admitted(limit: SuspectLimit | None, *found: tuple[int, int]) -> list[int]:
    """The positions that may be taken, of crashes and waiting times in the order of the queue."""
    admission = Admission(limit)
    return [n for n, (crashes, waited) in enumerate(found) if admission.admits(crashes, waited)]


def test_fresh_commands_are_admitted_whatever_the_limit() -> None:
    assert admitted(NONE, (0, 0), (ONCE, APART), (0, 0)) == [0, 2]


def test_without_a_limit_every_suspect_is_admitted() -> None:
    assert admitted(None, (ONCE, 0), (LAST, 0), (LAST, 0)) == [0, 1, 2]


def test_no_more_suspects_are_admitted_than_there_is_room_for() -> None:
    assert admitted(SuspectLimit(2), (ONCE, 0), (ONCE, 0), (ONCE, APART), (0, 0)) == [0, 1, 3]


def test_a_suspect_on_its_last_chance_is_the_only_one() -> None:
    assert admitted(SuspectLimit(8), (LAST, 0), (ONCE, 0), (LAST, 0), (0, 0)) == [0, 3]


@pytest.mark.parametrize("limit", [SuspectLimit(8, alone=False), SuspectLimit(8)])
def test_a_suspect_on_its_last_chance_is_not_taken_beside_others(limit: SuspectLimit) -> None:
    assert admitted(limit, (ONCE, 0), (LAST, 0), (ONCE, 0)) == [0], "nor is it overtaken by one"


BESIDE_LAST = SuspectLimit(8, alone=False, last_chance=True)


def test_no_suspect_is_taken_beside_one_on_its_last_chance() -> None:
    assert admitted(BESIDE_LAST, (ONCE, 0), (LAST, 0)) == []


def test_after_a_while_a_suspect_is_taken_beside_one_on_its_last_chance() -> None:
    assert admitted(BESIDE_LAST, (ONCE, APART), (ONCE, APART - 1), (LAST, APART)) == [0]


def test_after_a_while_one_on_its_last_chance_is_taken_beside_other_suspects() -> None:
    assert admitted(SuspectLimit(8, alone=False), (LAST, APART), (LAST, APART)) == [0]


def test_after_a_longer_while_two_on_their_last_chance_are_taken_together() -> None:
    assert admitted(BESIDE_LAST, (LAST, LAST_APART), (LAST, LAST_APART - 1)) == [0]


def test_the_limit_of_a_claim_shrinks_with_what_it_took_before() -> None:
    request = ClaimRequest(("d",), 10, "w", 30.0, suspects=SuspectLimit(4))
    assert request.suspects_beside([claimed(1, 0)]) == SuspectLimit(4)
    one = request.suspects_beside([claimed(1, 0), claimed(2, ONCE)])
    assert one == SuspectLimit(3, alone=False)
    assert request.suspects_beside([claimed(1, LAST)]) == SuspectLimit(3, alone=False, last_chance=True)


class Watched:
    """A core, the commands it starts and gives back, and the limits of its claims."""

    def __init__(self, concurrency: int = 2, prefetch: int = 0) -> None:
        self.core = WorkerCore(WorkerSettings(concurrency=concurrency, prefetch=prefetch))
        self.started: list[int] = []
        self.back: list[int] = []
        self.claims: list[Claim] = []
        self.tell(Tick(), 0.0)

    def tell(self, event: Event, now: float) -> list[Effect]:
        effects = self.core.handle(event, now)
        check_core(self.core)
        for effect in effects:
            if isinstance(effect, Start):
                self.started += [one.seq for one in effect.claimed]
            elif isinstance(effect, Settle):
                self.back += [s.seq for s in effect.batch if isinstance(s.outcome, Released)]
            elif isinstance(effect, Claim):
                self.claims.append(effect)
        return effects

    @property
    def limit(self) -> Any:
        return self.claims[-1].suspects

    def find(self, *found: Claimed, now: float) -> list[Effect]:
        return self.tell(ClaimAnswered(ClaimReply(list(found)), self.claims[-1].limit), now)

    def finish(self, seq: int, now: float) -> None:
        self.tell(Finished([Settlement(seq, 1, 1, Succeeded(None))]), now)

    def settled(self, now: float) -> None:
        self.tell(Settled(SettleReport()), now)


def test_a_worker_takes_no_more_suspects_than_it_has_slots() -> None:
    it = Watched(concurrency=4)
    assert it.limit == SuspectLimit(4)
    it.find(claimed(1, ONCE), now=0.1)
    assert it.limit == SuspectLimit(3, alone=False)


def test_a_worker_that_claims_ahead_takes_no_more_suspects_than_it_has_slots() -> None:
    it = Watched(concurrency=4, prefetch=100)
    assert (it.claims[-1].limit, it.limit) == (104, SuspectLimit(4))


def test_all_that_has_another_chance_starts_at_once_and_none_goes_back() -> None:
    it = Watched(concurrency=2)
    it.find(claimed(1, 0), claimed(2, ONCE), now=0.1)
    assert it.started == [1, 2]
    assert it.back == []


def test_one_on_its_last_chance_begins_when_all_others_have_ended_and_runs_alone() -> None:
    it = Watched(concurrency=4)
    it.find(claimed(1, 0), claimed(2, LAST), claimed(3, 0), now=0.1)
    claims = len(it.claims)
    it.finish(1, 0.11)
    assert it.started == [1, 3]
    it.finish(3, 0.12)
    assert it.started == [1, 3, 2]
    it.settled(0.13)
    assert len(it.claims) == claims, "nothing is claimed beside it"
    it.finish(2, 0.14)
    assert len(it.claims) == claims + 1


def test_one_on_its_last_chance_does_not_wait_for_slow_ones_for_long() -> None:
    it = Watched(concurrency=4)
    it.find(claimed(1, 0), claimed(2, LAST), now=0.1)
    assert it.core.deadline() == pytest.approx(0.1 + HOLD_SECONDS)
    claims = len(it.claims)
    it.tell(Tick(), 0.1 + HOLD_SECONDS)
    assert it.started == [1, 2]
    assert len(it.claims) == claims + 1


def test_others_begin_beside_a_slow_one_on_its_last_chance() -> None:
    it = Watched(concurrency=4)
    it.find(claimed(1, LAST), now=0.1)
    claims = len(it.claims)
    assert it.core.deadline() == pytest.approx(0.1 + ALONE_SECONDS)
    it.tell(Tick(), 0.1 + ALONE_SECONDS)
    assert len(it.claims) == claims + 1


def test_those_on_their_last_chance_run_one_after_the_other() -> None:
    it = Watched(concurrency=4)
    it.find(claimed(1, LAST), claimed(2, LAST), now=0.1)
    assert it.started == [1]
    it.finish(1, 0.11)
    assert it.started == [1, 2]


def test_one_on_its_last_chance_that_waits_loses_its_lease() -> None:
    it = Watched(concurrency=4)
    it.find(claimed(1, 0), claimed(2, LAST), now=0.1)
    it.tell(LeasesGone([1]), 0.2)
    it.tell(Finished([], dropped=1), 0.3)
    assert it.started == [1]
    assert it.core.held == 0


def test_a_stopping_worker_gives_back_the_one_on_its_last_chance_that_waits() -> None:
    it = Watched(concurrency=4)
    it.find(claimed(1, 0), claimed(2, LAST), now=0.1)
    it.tell(StopRequested(5.0), 0.2)
    assert it.back == [2]
    assert it.core.held == 1


def test_nothing_is_claimed_ahead_while_suspects_are_held() -> None:
    it = Watched(concurrency=2, prefetch=100)
    assert it.claims[-1].limit == 102
    it.find(claimed(1, ONCE), now=0.1)
    assert it.claims[-1].limit == 1
    it.finish(1, 0.2)
    it.settled(0.3)
    it.find(claimed(2, 0), now=0.4)
    assert it.claims[-1].limit == 101


def test_a_worker_that_holds_one_on_its_last_chance_says_so() -> None:
    it = Watched(concurrency=4)
    it.find(claimed(1, LAST), now=0.1)
    it.tell(Tick(), 0.1 + ALONE_SECONDS)
    assert it.limit == SuspectLimit(3, alone=False, last_chance=True)
    it.find(claimed(2, 0), now=0.5)
    assert it.limit.last_chance


def test_a_suspect_with_another_chance_counts_until_it_has_ended() -> None:
    it = Watched(concurrency=4)
    it.find(claimed(1, ONCE), now=0.1)
    it.finish(1, 0.2)
    it.find(claimed(2, 0), now=0.3)
    assert it.limit == SuspectLimit(4)


def test_a_suspect_on_its_last_chance_counts_until_its_outcome_is_durable() -> None:
    it = Watched(concurrency=4)
    it.find(claimed(1, LAST), now=0.1)
    it.finish(1, 0.2)
    it.find(claimed(2, 0), now=0.3)
    assert it.limit.last_chance
    it.settled(0.4)
    it.find(claimed(3, 0), now=0.5)
    assert it.limit == SuspectLimit(4)


def test_a_suspect_whose_lease_is_lost_counts_no_more() -> None:
    it = Watched(concurrency=4)
    it.find(claimed(1, LAST), now=0.1)
    it.tell(LeasesGone([1]), 0.2)
    assert it.limit == SuspectLimit(4)


def test_an_idle_worker_claims_again_when_the_outcome_of_its_suspect_is_durable() -> None:
    """Others may have had to stay in the queue, and no further wake-up comes for them."""
    it = Watched(concurrency=4)
    it.find(claimed(1, LAST), now=0.1)
    it.tell(Tick(), 0.1 + ALONE_SECONDS)
    it.find(now=0.36)
    before = len(it.claims)
    it.finish(1, 0.37)
    assert len(it.claims) == before
    it.settled(0.4)
    assert len(it.claims) == before + 1


def test_a_worker_claims_again_when_its_suspect_has_ended_during_a_claim() -> None:
    it = Watched(concurrency=4)
    it.find(claimed(1, ONCE), now=0.1)
    before = len(it.claims)
    it.finish(1, 0.2)
    it.find(now=0.3)
    assert len(it.claims) == before + 1
    assert it.limit.alone


def test_beside_a_slow_suspect_an_idle_worker_looks_again_when_others_have_waited_enough() -> None:
    it = Watched(concurrency=4)
    it.find(claimed(1, LAST), now=0.1)
    it.tell(Tick(), 0.1 + ALONE_SECONDS)
    it.find(now=0.4)
    assert it.core.deadline() == pytest.approx(0.4 + APART_SECONDS)


def test_other_workers_hear_of_suspects_that_may_have_been_left() -> None:
    effects = Watched(concurrency=4).find(claimed(1, ONCE), now=0.1)
    assert PassOn(frozenset({"d"})) in effects


def test_suspects_that_were_claimed_ahead_go_back_soon_behind_a_slow_one() -> None:
    it = Watched(concurrency=1, prefetch=10)
    it.find(claimed(1, ONCE), claimed(2, ONCE), now=0.0)
    effects = it.tell(Tick(), SUSPECTS_HOARD_SECONDS)
    assert Withdraw() in effects
    it.tell(Withdrawn([claimed(2, ONCE)]), SUSPECTS_HOARD_SECONDS)
    assert it.back == [2]


def test_a_stopping_worker_gives_back_the_suspects_that_have_not_begun() -> None:
    it = Watched()
    it.find(claimed(1, LAST), now=0.1)
    it.tell(StopRequested(5.0), 0.2)
    it.tell(Withdrawn([claimed(1, LAST)]), 0.25)
    it.find(now=0.25)
    it.settled(0.3)
    assert it.back == [1]
    assert it.core.done(0.4)


def test_after_a_death_a_new_worker_leaves_last_chances_for_a_moment() -> None:
    it = Watched(concurrency=4)
    it.core.suspects.after_death = True
    it.find(claimed(1, 0), now=0.1)
    assert it.limit.room == 4
    assert admitted(it.limit, (ONCE, 0), (LAST, 10 * LAST_APART), (0, 0)) == [0, 2]
    it.finish(1, WARY_SECONDS)
    it.find(claimed(2, 0), now=WARY_SECONDS)
    waited = 10 * LAST_APART
    assert admitted(it.limit, (LAST, waited), (LAST, waited), (ONCE, waited), (0, 0)) == [0, 2, 3]


def test_what_waited_while_no_worker_was_there_still_stays_apart() -> None:
    it = Watched(concurrency=4)
    it.core.suspects.after_death = True
    it.find(claimed(1, 0), now=0.1)
    before = len(it.claims)
    it.find(now=0.2)
    assert len(it.claims) == before + 1, "nothing else is there, so it takes last chances at once"
    waited = 10 * LAST_APART
    assert admitted(it.limit, (LAST, waited), (LAST, waited), (ONCE, waited)) == [0]
    it.find(claimed(2, LAST), now=LAST_APART_SECONDS)
    it.finish(1, LAST_APART_SECONDS)
    it.tell(Tick(), LAST_APART_SECONDS + ALONE_SECONDS)
    assert it.limit == SuspectLimit(3, alone=False, last_chance=True)
