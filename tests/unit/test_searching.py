"""What the engines share about searching, reading and pruning."""

from __future__ import annotations

from uuid import uuid4

from commandbus.domain.lifecycle import CommandStatus
from commandbus.store.reading import Known, as_record
from commandbus.store.records import NewCommand, Pruned
from commandbus.store.searching import Prunable, matches_error, pruned


def outcome(seq: int, created_at: int, finished_at: int) -> Prunable:
    return Prunable(seq, "COMPLETED", finished_at, created_at, None)


def test_a_pass_goes_on_behind_the_last_outcome_of_a_full_page() -> None:
    seen = [outcome(1, 10, 20), outcome(2, 49, 60)]
    assert pruned(seen, {"COMPLETED": 50}, limit=2) == Pruned(1, 2, [])
    assert pruned(seen, {"COMPLETED": 50}, limit=3) == Pruned(1, None, [])


def test_a_pass_ends_where_nothing_can_have_ended_before_the_last_cutoff() -> None:
    seen = [outcome(1, 10, 20), outcome(2, 50, 60)]
    assert pruned(seen, {"COMPLETED": 50, "FAILED": 40}, limit=2) == Pruned(1, None, [])


def test_a_running_command_whose_lease_is_not_seen_any_more_has_no_attempt() -> None:
    command = NewCommand("shop", "order", uuid4(), "null", uuid4(), 5)
    known = Known(
        command, 1, created_at=10, due_at=10, status=None, attempts=3, crashes=2, lease_id=7,
        worker=None, started_at=None, finished_at=None, result=None, error=None, reason=None,
        waiting_attempts=None, waiting_crashes=0, waiting_until=None, percent=None, message="",
        reported_at=0, last_note=None,
    )  # fmt: skip
    record = as_record(known, running={})
    assert (record.status, record.attempts, record.crashes) == (CommandStatus.IN_PROGRESS, 0, 0)
    assert (record.worker, record.started_at) == (None, None)


def test_an_error_is_found_by_its_code_and_by_the_name_of_its_exception() -> None:
    for wanted in ("TIMEOUT", "shop.errors.OutOfStock", "OutOfStock"):
        assert matches_error(wanted, "TIMEOUT", "shop.errors.OutOfStock")
    for wanted in ("Stock", "shop", "shop.errors"):
        assert not matches_error(wanted, "TIMEOUT", "shop.errors.OutOfStock")
    assert not matches_error("OutOfStock", "TIMEOUT", None)
