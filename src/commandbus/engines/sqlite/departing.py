"""Moving away from an SQLite file: what waits or is parked leaves its queues and becomes documents."""

from __future__ import annotations

from typing import Any

import msgspec

from commandbus.domain.audit import AuditEventType
from commandbus.domain.lifecycle import PARKED, CommandStatus
from commandbus.domain.limits import partition_of
from commandbus.engines.sqlite.operators import SQL as COMMANDS
from commandbus.engines.sqlite.operators import SqliteOperators
from commandbus.engines.sqlite.queries import load_queries
from commandbus.engines.sqlite.rows import as_command, as_json, with_ids
from commandbus.store.moving import KIND, Departure, Moving, Parking, Survey
from commandbus.store.op import Op, Statement
from commandbus.store.reading import read_failure
from commandbus.store.settling import AuditRow, OutcomeRow

SQL = load_queries("departing.sql")


class SqliteDeparting(SqliteOperators):
    def survey(self) -> Op[Survey]:
        (row,) = yield Statement(SQL.survey)
        return Survey(*row)

    def depart(self, to: str, after: int, limit: int) -> Op[Departure]:
        rows = yield Statement(SQL.departing, (after, limit))
        last = None
        for seq, *columns in rows:
            kept = yield Statement(SQL.audit_of, (seq,))
            steps = yield Statement(SQL.steps_of, (seq,))
            moving = _moving(columns, [*map(tuple, kept)], [*map(tuple, steps)])
            document = (KIND, f"{seq:016d}", "", None, as_json(moving))
            yield Statement(SQL.keep, document)
            yield from self._leave(seq, moving, f"moved to {to}")
            last = seq
        return Departure(len(rows), last if len(rows) == limit else None)

    def _leave(self, seq: int, moving: Moving, reason: str) -> Op[None]:
        """End it here, whatever it was waiting for; no reply is sent, because it goes on in another
        store."""
        now, command = self._clock(), moving.command
        domain, error = command.domain, None
        if moving.parking is None:
            partition = partition_of(domain, command.requires)
            yield Statement(COMMANDS.delete_queue, (partition, command.priority, seq))
            yield Statement(COMMANDS.delete_scheduled, (seq,))
            yield Statement(COMMANDS.delete_held, (seq,))
        else:
            yield Statement(COMMANDS.delete_outcome, (seq,))
            yield Statement(COMMANDS.add_tally, (domain, PARKED, -1))
            error = read_failure(moving.parking.error)
        yield from self._audit([AuditRow(seq, AuditEventType.MOVED, {"reason": reason})], now)
        counts = (moving.attempts, moving.crashes)
        canceled = CommandStatus.CANCELED
        outcome = OutcomeRow(seq, canceled, *counts, None, None, 0, error=error, reason=reason)
        yield from self._end_one(domain, outcome, now)


def _moving(columns: list[Any], audit: list[Any], steps: list[Any]) -> Moving:
    """A row of the query `departing`, after its sequence."""
    (
        created_at, due_at, attempts, crashes, releases, waits_until, status, worker, started_at,
        finished_at, error, reason, *stored,
    ) = columns  # fmt: skip
    parking = None
    if status is not None:
        parking = Parking(worker, started_at, finished_at, error, reason)
    command = msgspec.structs.replace(with_ids(as_command(stored)), due_at=waits_until)
    return Moving(command, created_at, due_at, attempts, crashes, releases, parking, audit, steps)
