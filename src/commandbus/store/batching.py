"""How batches are counted: in shards that one writer each adds to, so that no row is hot.

The counts are written in the transaction that ends a command, one addition per batch and call, into the
shard of the worker that settles; their sum is always what the batch's commands say. That a batch is
complete is found out afterwards, by any worker, and decided once by the version of its document.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol
from uuid import UUID

from commandbus.domain.batch import BatchCounts
from commandbus.domain.lifecycle import PARKED, CommandStatus
from commandbus.store.op import Op

TOPIC = "commandbus.batches"
"""Woken when a command of a batch ended without a running worker: the batch may be complete."""

_FIELDS = {
    CommandStatus.COMPLETED: "completed",
    CommandStatus.FAILED: "failed",
    CommandStatus.CANCELED: "canceled",
    PARKED: "parked",
}


class BatchStore(Protocol):
    def add_batch_counts(self, counts: dict[UUID, BatchCounts], shard: str) -> Op[None]:
        """Add to the counts of batches; negative numbers take back. Waits for no other shard."""
        ...

    def batch_counts(self, batch_ids: Sequence[UUID]) -> Op[dict[UUID, BatchCounts]]:
        """The sums of all shards; a batch without any has no entry."""
        ...


def tally(
    entered: Iterable[tuple[UUID | None, CommandStatus]], sign: int = 1
) -> dict[UUID, BatchCounts]:
    """What it adds to batches that these commands reached these statuses."""
    counts: dict[UUID, BatchCounts] = {}
    for batch_id, status in entered:
        field = _FIELDS.get(status)
        if batch_id is not None and field is not None:
            one = BatchCounts(**{field: sign})
            counts[batch_id] = counts[batch_id].plus(one) if batch_id in counts else one
    return counts
