"""The figures of a batch that are computed from its counts."""

from datetime import UTC, datetime
from uuid import uuid4

import pytest

from commandbus import BatchStatus, SendRequest
from commandbus.domain.batch import BatchCounts
from commandbus.operations import batches
from commandbus.records import BatchRecord
from commandbus.sync import SyncCommandBus

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def batch(total: int, completed: int, failed: int, canceled: int, parked: int = 0) -> BatchRecord:
    return BatchRecord(
        "d", uuid4(), None, None, BatchStatus.IN_PROGRESS, total, completed, failed, canceled, parked,
        NOW, None,
    )  # fmt: skip


def test_every_kind_of_end_leaves_fewer_commands() -> None:
    made = batch(20, completed=5, failed=3, canceled=2, parked=1)
    assert made.remaining == 10
    assert made.progress == 0.5


def test_an_empty_batch_is_done() -> None:
    assert batch(0, 0, 0, 0).progress == 1.0


def test_counts_of_two_shards_are_added_each() -> None:
    assert BatchCounts(1, 2, 3, 4).plus(BatchCounts(10, 20, 30, 40)) == BatchCounts(11, 22, 33, 44)
    assert BatchCounts(1, 2, 3, 4).ended == 6


def test_all_commands_of_a_domain_that_is_purged_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "LIMIT_MAX", 2)
    with SyncCommandBus("memory://") as bus:
        requests = [*[SendRequest("orders", "ship")] * 5, SendRequest("mail", "post")]
        batch_id = bus.create_batch(requests).batch_id
        bus.purge("orders")
        found = bus.get_batch(batch_id)
    assert found is not None
    assert (found.canceled, found.remaining) == (5, 1)
