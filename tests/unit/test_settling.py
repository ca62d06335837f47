"""What follows from the writes of a batch of settlements."""

from __future__ import annotations

from commandbus.store.settling import QueueRow, Writes, hand_over, soonest


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
