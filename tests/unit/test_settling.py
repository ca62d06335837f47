"""What follows from the writes of a batch of settlements."""

from __future__ import annotations

import pytest

from commandbus.domain.failure import Failure, FailureKind
from commandbus.domain.lifecycle import PARKED, CommandStatus
from commandbus.domain.outcome import CRASHES_MAX, Crashed, Outcome, Rejected, Released, Succeeded
from commandbus.store.deaths import DeathReport, report_on
from commandbus.store.records import Settlement
from commandbus.store.settling import (
    Member,
    QueueRow,
    Writes,
    hand_over,
    is_recorded,
    plan_lost,
    soonest,
)

LEASE = 7
REFUSED = Rejected(Failure(FailureKind.BUSINESS_RULE, "NO"))


def settlement(outcome: Outcome, seq: int = 1) -> Settlement:
    return Settlement(seq, LEASE, 1, outcome)


def requeued(seq: int, delay: int) -> QueueRow:
    return QueueRow(seq, attempts=1, crashes=0, releases=0, delay=delay)


def test_a_domain_has_work_again_when_the_first_of_its_commands_is_due() -> None:
    writes = Writes(requeues=[requeued(1, 2_500_000), requeued(2, 500_000), requeued(3, 4_000_000)])
    assert soonest(writes, {1: "mail", 2: "mail", 3: "shop"}) == {"mail": 0.5, "shop": 4.0}


def test_a_domain_with_a_command_that_waits_for_nothing_has_work_now() -> None:
    for delays in ([0, 500_000], [500_000, 0]):
        writes = Writes(requeues=[requeued(seq, delay) for seq, delay in enumerate(delays)])
        assert soonest(writes, {0: "mail", 1: "mail"}) == {"mail": None}


def test_a_group_that_loses_its_holder_passes_to_the_next_of_its_chain() -> None:
    chains = {1: 7, 2: 7, 3: 8, 4: 9, 5: 9}
    assert hand_over(chains, {1, 3, 5}) == {1: 2, 3: None}


@pytest.mark.parametrize(
    ("outcome", "lease_id", "status", "repeats"),
    [
        (Succeeded(), LEASE, CommandStatus.COMPLETED, True),
        (Succeeded(), LEASE, PARKED, False),
        (Succeeded(), LEASE + 1, CommandStatus.COMPLETED, False),
        (REFUSED, LEASE, CommandStatus.FAILED, True),
        (REFUSED, None, CommandStatus.FAILED, False),
    ],
)
def test_a_settlement_repeats_an_outcome_of_its_lease_and_a_success_only_a_success(
    outcome: Outcome, lease_id: int | None, status: CommandStatus, repeats: bool
) -> None:
    assert is_recorded(settlement(outcome), lease_id, status) is repeats


def test_what_its_last_crash_parked_is_no_outcome_of_its_worker() -> None:
    writes = Writes()
    plan_lost(writes, Member(1, 3, CRASHES_MAX - 1, 0, False), LEASE, "w", 0)
    (parked,) = writes.outcomes
    assert parked.status is PARKED
    assert not is_recorded(settlement(REFUSED), parked.lease_id, parked.status)


def test_what_was_refused_was_not_taken_back_from_a_dead_worker() -> None:
    written = [settlement(Crashed("died"), seq) for seq in (1, 2)]
    written += [settlement(Released("not begun"), seq) for seq in (3, 4, 5)]
    assert report_on(written, lost=[2, 5]) == DeathReport(crashed=1, released=2)
