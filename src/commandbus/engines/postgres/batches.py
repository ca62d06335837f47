"""The PostgreSQL engine's batches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from uuid import UUID

from commandbus.domain.batch import BatchCounts
from commandbus.engines.postgres.arrays import integers, numbers
from commandbus.engines.postgres.context import Part
from commandbus.engines.postgres.statements import Autocommit
from commandbus.store.op import Op, Read


class Batches(Part):
    def add_batch_counts(self, counts: dict[UUID, BatchCounts], shard: str) -> Op[None]:
        if counts:
            columns = count_columns(counts.values())
            yield Autocommit(self._sql.add_batch_counts, (numbers(counts), shard, *columns))

    def batch_counts(self, batch_ids: Sequence[UUID]) -> Op[dict[UUID, BatchCounts]]:
        rows = yield Read(self._sql.batch_counts, (numbers(batch_ids),))
        return {batch_id: BatchCounts(*counts) for batch_id, *counts in rows}


def count_columns(counts: Iterable[BatchCounts]) -> tuple[str, str, str, str]:
    """The four counts as arrays."""
    rows = list(counts)
    return (
        integers([row.completed for row in rows]),
        integers([row.failed for row in rows]),
        integers([row.canceled for row in rows]),
        integers([row.parked for row in rows]),
    )
