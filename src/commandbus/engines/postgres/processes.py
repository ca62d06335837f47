"""The PostgreSQL engine's processes: many of them in one statement."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any
from uuid import UUID

import msgspec

from commandbus.domain.moment import SECOND
from commandbus.domain.process.values import ENDED, ProcessEventType, ProcessStatus
from commandbus.engines.postgres.arrays import numbers, texts
from commandbus.engines.postgres.context import Part
from commandbus.engines.postgres.failures import UniqueViolation
from commandbus.engines.postgres.statements import Autocommit, parts
from commandbus.engines.postgres.templates import (
    BIGINT,
    BOOLEAN,
    TEXT,
    UUID_,
    Columns,
    Query,
    Values,
    compile_query,
    optional,
)
from commandbus.store.op import Op, Read, Statement, autocommit, scalar
from commandbus.store.processes import ProcessEventRow, ProcessFilter, ProcessRow

ADDED = Columns(
    "added",
    process_id=UUID_,
    process_type=TEXT,
    reply_to=TEXT,
    status=TEXT,
    state=TEXT,
    progress=TEXT,
    error=TEXT.unless(None),
    due_in=optional(BIGINT).unless(None),
    batch_id=UUID_.unless(None),
    parent_id=UUID_.unless(None),
    ended=BOOLEAN.unless(False),
)
CHANGED = Columns(
    "changed",
    process_id=UUID_,
    version=BIGINT,
    status=TEXT,
    state=TEXT,
    progress=TEXT,
    error=TEXT.unless(None),
    due_in=optional(BIGINT).unless(None),
    ended=BOOLEAN.unless(False),
)
EVENTS = Columns("events", process_id=UUID_, kind=TEXT, step=TEXT, command_id=UUID_, details=TEXT)


class Processes(Part):
    def add_processes(
        self, rows: Sequence[ProcessRow], events: Sequence[ProcessEventRow]
    ) -> Op[list[UUID]]:
        values = ADDED(**{name: [getattr(row, name) for row in rows] for name in ADDED.names})
        query = add_query(self._context.schema)
        try:
            taken = yield Autocommit(query.sql, query.params(values | _event_columns(events)))
        except UniqueViolation as error:
            return [row.process_id for row in rows if str(row.process_id) in error.detail] or [
                rows[0].process_id
            ]
        return [process_id for (process_id,) in taken]

    def put_processes(
        self, rows: Sequence[ProcessRow], events: Sequence[ProcessEventRow]
    ) -> Op[list[UUID]]:
        values = CHANGED(**{name: [getattr(row, name) for row in rows] for name in CHANGED.names})
        query = change_query(self._context.schema)
        written = yield Autocommit(query.sql, query.params(values | _event_columns(events)))
        known = {process_id for (process_id,) in written}
        return [row.process_id for row in rows if row.process_id not in known]

    def lock_processes(self, process_ids: Iterable[UUID]) -> Op[list[ProcessRow]]:
        rows = yield Statement(self._sql.lock_processes, (numbers(process_ids),))
        return [_row(row) for row in rows]

    def due_processes(self, types: Sequence[str], limit: int) -> Op[list[ProcessRow]]:
        rows = yield Statement(self._sql.due_processes, (texts(types), limit))
        return [_row(row) for row in rows]

    def next_process_due(self, types: Sequence[str]) -> Op[float | None]:
        due_in = scalar((yield Read(self._sql.next_process_due, (texts(types),))))
        return None if due_in is None else due_in / SECOND

    def get_process(self, process_id: UUID) -> Op[ProcessRow | None]:
        rows = yield Read(self._sql.get_process, (process_id,))
        return next(map(_row, rows), None)

    def query_processes(self, wanted: ProcessFilter) -> Op[list[ProcessRow]]:
        ended = None if wanted.status is None else wanted.status in ENDED
        query = list_query(self._context.schema, ended)
        rows = yield Read(query.sql, query.params(msgspec.structs.asdict(wanted)))
        return [_row(row) for row in rows]

    def count_processes(self, limit: int) -> Op[dict[tuple[str, ProcessStatus], int]]:
        rows = yield Read(self._sql.count_processes, (limit,))
        return {(kind, ProcessStatus(status)): count for kind, status, count in rows}

    def process_events(self, process_id: UUID) -> Op[list[ProcessEventRow]]:
        rows = yield Read(self._sql.process_events, (process_id,))
        return [
            ProcessEventRow(process, ProcessEventType(kind), *rest) for process, kind, *rest in rows
        ]

    def recorded_steps(self, seq: int) -> Op[dict[str, str]]:
        rows = yield Read(self._sql.recorded_steps, (seq,))
        return dict(rows)

    @autocommit
    def record_step(self, seq: int, lease_id: int, name: str, result: str) -> Op[bool]:
        return bool((yield Autocommit(self._sql.record_step, (seq, lease_id, name, result))))


@cache
def add_query(schema: str) -> Query:
    return compile_query(parts(schema, "process_write.sql").add_processes, [ADDED, EVENTS])


@cache
def change_query(schema: str) -> Query:
    return compile_query(parts(schema, "process_write.sql").put_processes, [CHANGED, EVENTS])


@cache
def list_query(schema: str, ended: bool | None) -> Query:
    """The list of processes; of those that have ended, of the others, or of all."""
    found = parts(schema, "process_list.sql")
    narrow = "" if ended is None else found.ended if ended else found.unended
    return compile_query(found.query_processes, narrow=narrow)


def _event_columns(events: Sequence[ProcessEventRow]) -> Values:
    return EVENTS(**{name: [getattr(event, name) for event in events] for name in EVENTS.names})


def _row(row: Any) -> ProcessRow:
    process_id, process_type, reply_to, status, *rest = row
    return ProcessRow(process_id, process_type, reply_to, ProcessStatus(status), *rest)
