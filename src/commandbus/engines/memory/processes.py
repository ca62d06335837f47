"""The memory engine's processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from uuid import UUID

import msgspec

from commandbus.domain.lifecycle import PARKED
from commandbus.domain.moment import SECOND, Clock
from commandbus.domain.process.values import ProcessStatus
from commandbus.engines.memory.state import State
from commandbus.store.op import Op, autocommit
from commandbus.store.processes import (
    ProcessEventRow,
    ProcessFilter,
    ProcessRow,
    shown_status,
)


class MemoryProcesses:
    _state: State
    _clock: Clock

    def add_processes(
        self, rows: Sequence[ProcessRow], events: Sequence[ProcessEventRow]
    ) -> Op[list[UUID]]:
        yield from ()
        known = self._state.processes
        taken = [row.process_id for row in rows if row.process_id in known]
        if taken:
            return taken
        now = self._clock()
        for row in rows:
            self._state.last_process += 1
            self._state.journal.entry(known, row.process_id)
            known[row.process_id] = self._written(row, now, now, self._state.last_process)
        self._note(events, now)
        return []

    def put_processes(
        self, rows: Sequence[ProcessRow], events: Sequence[ProcessEventRow]
    ) -> Op[list[UUID]]:
        yield from ()
        now, lost = self._clock(), []
        for row in rows:
            present = self._state.processes.get(row.process_id)
            if present is None or present.version != row.version:
                lost.append(row.process_id)
                continue
            written = self._written(row, present.created_at, now, present.seq)
            self._state.journal.entry(self._state.processes, row.process_id)
            self._state.processes[row.process_id] = written
        self._note(events, now)
        return lost

    def _written(self, row: ProcessRow, created_at: int, now: int, seq: int) -> ProcessRow:
        return msgspec.structs.replace(
            row,
            version=row.version + 1,
            created_at=created_at,
            updated_at=now,
            finished_at=now if row.ended else None,
            seq=seq,
        )

    def _note(self, events: Iterable[ProcessEventRow], now: int) -> None:
        for event in events:
            kept = self._state.process_events.setdefault(event.process_id, [])
            self._state.journal.note(kept.pop)
            kept.append(msgspec.structs.replace(event, at=now))

    def lock_processes(self, process_ids: Iterable[UUID]) -> Op[list[ProcessRow]]:
        yield from ()
        known = self._state.processes
        return [self._seen(known[key], set()) for key in process_ids if key in known]

    def due_processes(self, types: Sequence[str], limit: int) -> Op[list[ProcessRow]]:
        yield from ()
        now = self._clock()
        due = [row for row in self._timed(types) if _due_at(row) <= now]
        return [self._seen(row, set()) for row in sorted(due, key=_due_at)[:limit]]

    def next_process_due(self, types: Sequence[str]) -> Op[float | None]:
        yield from ()
        first = min((_due_at(row) for row in self._timed(types)), default=None)
        return None if first is None else (first - self._clock()) / SECOND

    def _timed(self, types: Sequence[str]) -> list[ProcessRow]:
        rows = self._state.processes.values()
        return [row for row in rows if row.due_in is not None and row.process_type in types]

    def get_process(self, process_id: UUID) -> Op[ProcessRow | None]:
        yield from ()
        row = self._state.processes.get(process_id)
        return None if row is None else self._seen(row, self._with_parked())

    def query_processes(self, wanted: ProcessFilter) -> Op[list[ProcessRow]]:
        yield from ()
        parked = self._with_parked()
        found: list[ProcessRow] = []
        for row in sorted(self._state.processes.values(), key=lambda row: -row.seq):
            seen = self._seen(row, parked)
            if len(found) < wanted.limit and _matches(seen, wanted):
                found.append(seen)
        return found

    def count_processes(self, limit: int) -> Op[dict[tuple[str, ProcessStatus], int]]:
        rows = yield from self.query_processes(ProcessFilter(limit=len(self._state.processes)))
        going = [row for row in rows if not row.ended][:limit]
        return Counter((row.process_type, shown_status(row)) for row in going)

    def _seen(self, row: ProcessRow, parked: set[tuple[UUID, str]]) -> ProcessRow:
        waits = (row.process_id, row.reply_to) in parked
        return msgspec.structs.replace(row, age=self._clock() - row.created_at, parked=waits)

    def _with_parked(self) -> set[tuple[UUID, str]]:
        """Processes and reply queues for which a command, or the reply to one, is parked."""
        found: set[tuple[UUID, str]] = set()
        for stored in self._state.commands.values():
            if stored.outcome is not None and stored.outcome.status is PARKED:
                command = stored.command
                found.add((command.correlation_id, command.domain))
                found.add((command.correlation_id, command.reply_to or ""))
        return found

    def process_events(self, process_id: UUID) -> Op[list[ProcessEventRow]]:
        yield from ()
        return list(self._state.process_events.get(process_id, ()))

    def recorded_steps(self, seq: int) -> Op[dict[str, str]]:
        yield from ()
        return dict(self._state.recorded.get(seq, {}))

    @autocommit
    def record_step(self, seq: int, lease_id: int, name: str, result: str) -> Op[bool]:
        yield from ()
        lease = self._state.leases.get(lease_id)
        if lease is None or lease.until <= self._clock() or seq not in lease.members:
            return False
        recorded = self._state.recorded.setdefault(seq, {})
        self._state.journal.entry(recorded, name)
        recorded.setdefault(name, result)
        return True


def _due_at(row: ProcessRow) -> int:
    return row.created_at + (row.due_in or 0)


def _matches(row: ProcessRow, wanted: ProcessFilter) -> bool:
    status = shown_status(row)
    return (
        (wanted.process_type is None or row.process_type == wanted.process_type)
        and (wanted.status is None or status is wanted.status)
        and (wanted.batch_id is None or row.batch_id == wanted.batch_id)
        and (wanted.parent_id is None or row.parent_id == wanted.parent_id)
        and (wanted.created_after is None or row.created_at >= wanted.created_after)
        and (wanted.created_before is None or row.created_at < wanted.created_before)
        and (wanted.before is None or row.seq < wanted.before)
    )
