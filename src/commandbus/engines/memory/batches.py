"""The memory engine's batches."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from commandbus.domain.batch import BatchCounts
from commandbus.engines.memory.state import State
from commandbus.store.op import Op


class MemoryBatches:
    _state: State

    def add_batch_counts(self, counts: dict[UUID, BatchCounts], shard: str) -> Op[None]:
        yield from ()
        for batch_id, added in counts.items():
            before = self._state.batches.get(batch_id, BatchCounts())
            self._state.journal.entry(self._state.batches, batch_id)
            self._state.batches[batch_id] = before.plus(added)

    def batch_counts(self, batch_ids: Sequence[UUID]) -> Op[dict[UUID, BatchCounts]]:
        yield from ()
        known = self._state.batches
        return {batch_id: known[batch_id] for batch_id in batch_ids if batch_id in known}
