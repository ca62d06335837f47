"""The SQLite engine's processes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

from commandbus.domain.moment import SECOND, Clock
from commandbus.domain.process.values import ENDED, ProcessEventType, ProcessStatus
from commandbus.engines.sqlite.queries import load_queries
from commandbus.engines.sqlite.rows import Lease, as_json, as_members
from commandbus.store.op import Op, Statement, scalar
from commandbus.store.processes import ProcessEventRow, ProcessFilter, ProcessRow

SQL = load_queries("processes.sql")
COMMANDS = load_queries("commands.sql")


class SqliteProcesses:
    """Every op that writes holds the write lock, so what was read cannot have changed."""

    _clock: Clock

    def add_processes(
        self, rows: Sequence[ProcessRow], events: Sequence[ProcessEventRow]
    ) -> Op[list[UUID]]:
        now = self._clock()
        for row in rows:
            if (yield Statement(SQL.exists, (row.process_id.bytes,))):
                return [row.process_id]
        params = [
            (
                row.process_id.bytes,
                row.process_type,
                row.reply_to,
                row.status,
                row.state,
                row.progress,
                row.error,
                None if row.due_in is None else now + row.due_in,
                now,
                now,
                now if row.ended else None,
                _bytes(row.batch_id),
                _bytes(row.parent_id),
            )
            for row in rows
        ]
        yield Statement(SQL.add, params, many=True)
        yield from self._note_steps(events, now)
        return []

    def put_processes(
        self, rows: Sequence[ProcessRow], events: Sequence[ProcessEventRow]
    ) -> Op[list[UUID]]:
        now = self._clock()
        lost: list[UUID] = []
        params = []
        for row in rows:
            known = yield Statement(SQL.version, (row.process_id.bytes,))
            if not known or scalar(known) != row.version:
                lost.append(row.process_id)
                continue
            ended_at = now if row.ended else None
            content = (row.status, row.state, row.progress, row.error, row.due_in, now, ended_at)
            params.append((*content, row.process_id.bytes, row.version))
        if params:
            yield Statement(SQL.change, params, many=True)
        yield from self._note_steps(events, now)
        return lost

    def _note_steps(self, events: Sequence[ProcessEventRow], now: int) -> Op[None]:
        params = [
            (e.process_id.bytes, e.kind, e.step, _bytes(e.command_id), now, e.details) for e in events
        ]
        if params:
            yield Statement(SQL.note, params, many=True)

    def lock_processes(self, process_ids: Iterable[UUID]) -> Op[list[ProcessRow]]:
        found: list[ProcessRow] = []
        for process_id in process_ids:
            rows = yield Statement(SQL.get, (process_id.bytes,))
            found += [_row(row, self._clock()) for row in rows]
        return found

    def due_processes(self, types: Sequence[str], limit: int) -> Op[list[ProcessRow]]:
        rows = yield Statement(SQL.due, (as_json(list(types)), self._clock(), limit))
        return [_row(row, self._clock()) for row in rows]

    def next_process_due(self, types: Sequence[str]) -> Op[float | None]:
        due_at = scalar((yield Statement(SQL.next_due, (as_json(list(types)),))))
        return None if due_at is None else (due_at - self._clock()) / SECOND

    def get_process(self, process_id: UUID) -> Op[ProcessRow | None]:
        rows = yield Statement(SQL.one, (process_id.bytes,))
        return next((_row(row, self._clock()) for row in rows), None)

    def query_processes(self, wanted: ProcessFilter) -> Op[list[ProcessRow]]:
        # What the status says beside itself is added, so that an index finds the few that fit.
        params = {
            "process_type": wanted.process_type,
            "status": wanted.status,
            "batch_id": _bytes(wanted.batch_id),
            "parent_id": _bytes(wanted.parent_id),
            "created_after": wanted.created_after,
            "created_before": wanted.created_before,
            "before": wanted.before,
            "limit": wanted.limit,
        }
        narrow = ""
        if wanted.status is not None:
            narrow = "and status = :status" if wanted.status in ENDED else "and finished_at is null"
        rows = yield Statement(f"{SQL.query} {narrow} {SQL.newest_first}", params)
        return [_row(row, self._clock()) for row in rows]

    def count_processes(self, limit: int) -> Op[dict[tuple[str, ProcessStatus], int]]:
        rows = yield Statement(SQL.count, {"limit": limit})
        return {(kind, ProcessStatus(status)): count for kind, status, count in rows}

    def process_events(self, process_id: UUID) -> Op[list[ProcessEventRow]]:
        rows = yield Statement(SQL.events, (process_id.bytes,))
        return [
            ProcessEventRow(process_id, ProcessEventType(kind), step, _uuid(command_id), details, at)
            for _, kind, step, command_id, details, at in rows
        ]

    def recorded_steps(self, seq: int) -> Op[dict[str, str]]:
        rows = yield Statement(SQL.recorded, (seq,))
        return dict(rows)

    def record_step(self, seq: int, lease_id: int, name: str, result: str) -> Op[bool]:
        now = self._clock()
        if not (yield from self._is_held(seq, lease_id, now)):
            return False
        yield Statement(SQL.record, (seq, name, result, now))
        return True

    def _is_held(self, seq: int, lease_id: int, now: int) -> Op[bool]:
        """Whether a command is under a lease that has not ended."""
        rows = yield Statement(COMMANDS.leases, (as_json([lease_id]),))
        leases = [Lease(*row) for row in rows]
        return any(lease.until > now and seq in as_members(lease.packed) for lease in leases)


def _bytes(value: UUID | None) -> bytes | None:
    return None if value is None else value.bytes


def _uuid(value: bytes | None) -> UUID | None:
    return None if value is None else UUID(bytes=value)


def _row(row: Any, now: int) -> ProcessRow:
    (
        process_id, process_type, reply_to, status, version, state, progress, error, due_in, batch_id,
        parent_id, ended, created_at, updated_at, finished_at, seq, *parked,
    ) = row  # fmt: skip
    return ProcessRow(
        UUID(bytes=process_id), process_type, reply_to, ProcessStatus(status), version, state, progress,
        error, due_in, _uuid(batch_id), _uuid(parent_id), bool(ended), created_at, updated_at,
        finished_at, seq, now - created_at, any(parked),
    )  # fmt: skip
