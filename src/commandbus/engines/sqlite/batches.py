"""The SQLite engine's batches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from uuid import UUID

from commandbus.domain.batch import BatchCounts
from commandbus.domain.lifecycle import CommandStatus
from commandbus.engines.sqlite.queries import load_queries
from commandbus.store.batching import tally
from commandbus.store.op import Op, Statement

SQL = load_queries("batches.sql")


class SqliteBatches:
    def add_batch_counts(self, counts: dict[UUID, BatchCounts], shard: str) -> Op[None]:
        rows = [
            (batch_id.bytes, shard, c.completed, c.failed, c.canceled, c.parked)
            for batch_id, c in counts.items()
        ]
        if rows:
            yield Statement(SQL.add, rows, many=True)

    def batch_counts(self, batch_ids: Sequence[UUID]) -> Op[dict[UUID, BatchCounts]]:
        found: dict[UUID, BatchCounts] = {}
        for batch_id in batch_ids:
            (counts,) = yield Statement(SQL.counts, (batch_id.bytes,))
            if None not in counts:
                found[batch_id] = BatchCounts(*counts)
        return found

    def _count_ends(self, ends: Iterable[tuple[int, CommandStatus]], sign: int = 1) -> Op[None]:
        """Count commands, by sequence, that reached or left a status without a worker."""
        entered: list[tuple[UUID | None, CommandStatus]] = []
        for seq, status in ends:
            rows = yield Statement(SQL.batch_of, (seq,))
            entered += [(UUID(bytes=batch_id), status) for (batch_id,) in rows]
        yield from self.add_batch_counts(tally(entered, sign), "")
