"""The PostgreSQL engine's reads. They lock nothing and run on snapshots of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import msgspec

from commandbus.domain import payload
from commandbus.domain.audit import LINKED, AuditEvent
from commandbus.domain.command import CommandRecord
from commandbus.domain.ids import IdPart
from commandbus.domain.lifecycle import FINAL, PARKED, CommandStatus
from commandbus.domain.moment import SECOND, as_datetime, as_optional_datetime
from commandbus.engines.postgres.arrays import integers, numbers, texts
from commandbus.engines.postgres.context import Part
from commandbus.engines.postgres.leases import members_of
from commandbus.engines.postgres.rows import Depth, as_known
from commandbus.engines.postgres.statements import Autocommit, in_schema
from commandbus.engines.postgres.templates import Values, compile_query
from commandbus.store.op import Op, Read, Rows, scalar
from commandbus.store.reading import (
    Known,
    Running,
    as_facts,
    as_record,
    read_entry,
    read_failure,
    read_status,
)
from commandbus.store.records import (
    AuditEntry,
    AuditFilter,
    CommandFilter,
    Ended,
    Overdue,
    ParkedGroup,
    Place,
    Pruned,
    QueueStats,
    Run,
    operator_actions,
)
from commandbus.store.searching import LookedUp, Noun, Prunable, pruned
from commandbus.store.sessions import ForeignLeases
from commandbus.store.trail import compose, shown

_BY_ID = "where c.command_id = $1::uuid and ($2::text is null or c.domain = $2::text) order by c.seq"

ROWS_ONLY = frozenset({*FINAL, PARKED} - {CommandStatus.COMPLETED})
"""How commands ended that are in no receipt."""
FEW = 2_000
LAST = 2**63 - 1
OUTCOMES_MAX = 50_000
"""Outcomes that a list of completed commands reads at once, if most do not meet its conditions."""
CONDITIONS = {
    "domain": "c.domain = :domain::text",
    "command_type": "c.command_type = :command_type::text",
    "correlation_id": "c.seq in (select seq from commandbus.command"
    " where correlation_id = :correlation_id::uuid and correlation_id <> command_id"
    " union all select seq from commandbus.command"
    " where command_id = :correlation_id::uuid and correlation_id = command_id)",
    "batch_id": "c.batch_id = :batch_id::uuid",
    "created_after": "c.created_at >= :created_after::bigint",
    "created_before": "c.created_at < :created_before::bigint",
    "tag": "commandbus.as_jsonb(c.tags) ? :tag::text",
    "error": "exists (select 1 from commandbus.as_jsonb(o.error) as e"
    " where e ->> 'code' = :error::text or e ->> 'exception' = :error::text"
    " or right(e ->> 'exception', length(:error::text) + 1) = '.' || :error::text)",
}
"""What the fields of a filter ask of a command."""


class Reader(Part):
    """Reads, which lock nothing."""

    _is_waiting = "o.seq is null and coalesce(q.seq, s.seq, h.seq) is not null"
    """Of a row of the query `records`: its command waits."""

    def find(self, command_id: UUID, domain: str | None) -> Op[list[CommandRecord]]:
        return (yield from self._records(_BY_ID, (command_id, domain)))

    def look_up(self, noun: Noun, wanted: IdPart, below: UUID, scan: int) -> Op[LookedUp]:
        sql = self._sql.look_up_command if noun == "command" else self._sql.look_up_process
        params = (wanted.lowest, min(below, wanted.highest), wanted.tail, scan)
        *found, (last, count) = yield Read(sql, params)
        return LookedUp(list(dict.fromkeys(one for one, _ in found)), last if count == scan else None)

    def endings(self, commands: Sequence[Place]) -> Op[dict[Place, Ended]]:
        params = numbers(key for key, _ in commands), texts(domain for _, domain in commands)
        rows = yield Read(self._sql.endings, params)
        return {
            (key, domain): Ended(read_status(status), result, read_failure(error), reason)
            for key, domain, status, result, error, reason in rows
        }

    def query(self, wanted: CommandFilter) -> Op[list[CommandRecord]]:
        # What ended is looked for among the outcomes, however many commands wait behind them.
        is_completed = wanted.status is CommandStatus.COMPLETED
        if is_completed and wanted.batch_id is None and wanted.correlation_id is None:
            return (yield from self._completed(wanted))
        conditions, values = _conditions(wanted, self._is_waiting)
        if wanted.status in ROWS_ONLY:
            return (yield from self._ended("commandbus.outcome", conditions, values, wanted.limit))
        if wanted.status is CommandStatus.IN_PROGRESS:
            running = yield from self._running()
            values["running"] = integers(sorted(running))
            conditions.append("c.seq = any (:running::text::bigint[]) and o.seq is null")
        elif wanted.status is CommandStatus.PENDING:
            waiting = yield from self._few_waiting()
            if waiting is not None:
                values["waiting"] = integers(waiting)
                conditions.append("c.seq = any (:waiting::text::bigint[])")
        where = f"where {' and '.join(conditions)} " if conditions else ""
        values["limit"] = wanted.limit
        return (yield from self._chosen(f"{where}order by c.seq desc limit :limit::bigint", values))

    def _completed(self, wanted: CommandFilter) -> Op[list[CommandRecord]]:
        """What completed, newest first, out of ranges of numbers with a known number of outcomes: no
        index has those in receipts in order."""
        found: list[CommandRecord] = []
        below, most = wanted.before or LAST, 2 * wanted.limit
        lowest = max(0, wanted.lowest or 0)
        while len(found) < wanted.limit and below > lowest:
            floor = int(scalar((yield Read(self._sql.ended_floor, (below, most)))))
            floor = max(floor, lowest)
            piece = msgspec.structs.replace(wanted, before=below, lowest=floor)
            conditions, values = _conditions(piece, self._is_waiting)
            values |= {"first": floor, "last": below - 1}
            source = "commandbus.ended_between(:first::bigint, :last::bigint)"
            limit = wanted.limit - len(found)
            found += yield from self._ended(source, conditions, values, limit)
            below, most = floor, min(4 * most, OUTCOMES_MAX)
        return found

    def _ended(
        self, source: str, conditions: list[str], values: Values, limit: int
    ) -> Op[list[CommandRecord]]:
        """The newest outcomes of a source that meet all conditions."""
        values["limit"] = limit
        newest = (
            f"select o.seq from {source} o join commandbus.command c on c.seq = o.seq"
            f" where {' and '.join(conditions)} order by o.seq desc limit :limit::bigint"
        )
        clauses = f"where c.seq = any (array({newest})) order by c.seq desc"
        return (yield from self._chosen(clauses, values))

    def _few_waiting(self) -> Op[list[int] | None]:
        """Everything that waits, if it is so little that naming it is the quickest way to find it."""
        rows = yield Read(self._sql.few_waiting, (FEW + 1,))
        return None if len(rows) > FEW else sorted(seq for (seq,) in rows)

    def _chosen(self, clauses: str, values: Values) -> Op[list[CommandRecord]]:
        """Records by clauses with named parameters."""
        query = compile_query(in_schema(clauses, self._context.schema))
        return (yield from self._records(query.sql, query.params(values)))

    def _records(self, clauses: str, params: Any) -> Op[list[CommandRecord]]:
        known = _known((yield Read(f"{self._sql.records} {clauses}", params)))
        running: Running = {}
        if any(one.is_running for one in known):
            running = yield from self._running()
            # Neither waiting, nor ended, nor under lease: it moved between the two looks.
            if any(one.is_running and one.seq not in running for one in known):
                known = _known((yield Read(f"{self._sql.records} {clauses}", params)))
            known = yield from self._locate(known, running)
        return [as_record(one, running) for one in known]

    def _locate(self, known: list[Known], running: Running) -> Op[list[Known]]:
        """Rows of the query `records`, with what it does not see of those that wait."""
        yield from ()
        return known

    def _running(self) -> Op[Running]:
        """What is under lease: few rows, each with many commands."""
        rows = yield Read(self._sql.leases)
        return {
            member.seq: (worker, claimed_at, member)
            for worker, claimed_at, seqs, unusual in rows
            for member in members_of(seqs, unusual)
        }

    def count_parked(self, domain: str | None, command_type: str | None) -> Op[int]:
        return int(scalar((yield Read(self._sql.parked, (domain, command_type)))))

    def group_parked(self, domain: str | None, command_type: str | None) -> Op[list[ParkedGroup]]:
        rows = yield Read(self._sql.group_parked, (domain, command_type))
        return [
            ParkedGroup(name, kind, count, oldest, newest, command_id, read_failure(error))
            for name, kind, count, oldest, newest, command_id, error in rows
        ]

    def overdue(self, seconds: float, limit: int) -> Op[list[Overdue]]:
        rows = yield Read(self._sql.overdue, (int(seconds * SECOND), limit))
        return [Overdue(*row) for row in rows]

    def audit_trail(self, command_id: UUID, domain: str | None) -> Op[list[AuditEvent]]:
        running = yield from self._running()
        known = _known((yield Read(f"{self._sql.records} {_BY_ID}", (command_id, domain))))
        events: list[AuditEvent] = []
        for one in known:
            kept = yield Read(self._sql.audit, (one.seq,))
            events += compose(as_facts(one, running), [read_entry(*entry) for entry in kept])
        return events

    def last_sequence(self) -> Op[int]:
        return int(scalar((yield Read(self._sql.last_sequence))))

    def search_audit(self, wanted: AuditFilter) -> Op[list[AuditEntry]]:
        rows = yield Read(
            self._sql.search_audit,
            (wanted.before, wanted.span, wanted.kind, wanted.domain, wanted.actor, wanted.limit),
        )
        found: list[AuditEntry] = []
        for number, command_type, domain, command_id, *entry in rows:
            kept = read_entry(*entry)
            event = AuditEvent(domain, command_id, kept.kind, as_datetime(kept.at), shown(kept.details))
            found.append(AuditEntry(number, command_type, event))
        return found

    def recent_runs(self, limit: int) -> Op[list[Run]]:
        rows = yield Read(self._sql.recent_runs, (limit,))
        return [Run(domain, read_status(status), *rest) for domain, status, *rest in rows]

    def prune(
        self, cutoffs: Mapping[str, int], after: int, limit: int, *, preview: bool = False
    ) -> Op[Pruned]:
        # The statement removes by these moments: without any, it only looks.
        moments = payload.encode({} if preview else dict(cutoffs), what="cutoffs")
        rows = yield Autocommit(self._sql.prune, (after, limit, moments, texts(sorted(LINKED))))
        return pruned([Prunable(*row) for row in rows], cutoffs, limit)

    def stats(self, domain: str, cap: int | None = None) -> Op[QueueStats]:
        depth = yield from self._depth(domain, cap)
        tally = dict((yield Read(self._sql.tally, (domain,))))
        now, moments = depth.now, (depth.oldest, depth.next_due)
        waiting_since = [moment for moment in moments if moment is not None and moment <= now]
        return QueueStats(
            domain=domain,
            ready=depth.ready + depth.due + depth.held + depth.tagged,
            scheduled=depth.scheduled,
            running=depth.running,
            parked=tally.get(PARKED, 0),
            completed=tally.get(CommandStatus.COMPLETED, 0),
            failed=tally.get(CommandStatus.FAILED, 0),
            canceled=tally.get(CommandStatus.CANCELED, 0),
            oldest_ready_age=(now - min(waiting_since)) / SECOND if waiting_since else None,
            paused=depth.paused_at is not None,
            paused_reason=depth.paused_reason,
            paused_at=as_optional_datetime(depth.paused_at),
            held=depth.held,
            operator_actions=operator_actions(tally),
        )

    def _depth(self, domain: str, cap: int | None) -> Op[Depth]:
        (row,) = yield Read(self._sql.stats, (domain, cap))
        return Depth(*row)

    def foreign_leases(self, worker: str) -> Op[ForeignLeases]:
        ((ends_in, lost),) = yield Read(self._sql.foreign_leases, (worker,))
        return ForeignLeases(None if ends_in is None else float(ends_in) / SECOND, tuple(lost))

    def ended_sessions(self, sessions: Sequence[str]) -> Op[set[str]]:
        if not sessions:
            return set()
        rows = yield Read(self._sql.ended_sessions, (texts(sessions),))
        return {process for (process,) in rows}

    def count_ahead(self, domain: str, priority: int, seq: int, limit: int) -> Op[int]:
        return int(scalar((yield Read(self._sql.ahead, (domain, priority, seq, limit)))))

    def domains(self) -> Op[list[str]]:
        rows = yield Read(self._sql.domains)
        return [domain for (domain,) in rows]


def _known(rows: Rows) -> list[Known]:
    return [as_known(row) for row in rows]


def _conditions(wanted: CommandFilter, is_waiting: str) -> tuple[list[str], Values]:
    """The conditions of a filter in SQL, and the values of their parameters by name."""
    key = "o" if wanted.status in ROWS_ONLY else "c"
    possible = {
        "before": f"{key}.seq < :before::bigint",
        "lowest": f"{key}.seq >= :lowest::bigint",
        **CONDITIONS,
    }
    values: Values = {name: getattr(wanted, name) for name in possible}
    conditions = [condition for name, condition in possible.items() if values[name] is not None]
    if wanted.status is CommandStatus.PENDING:
        conditions.append(is_waiting)
    elif wanted.status not in (None, CommandStatus.IN_PROGRESS):
        # In the text, not as a parameter: the index of what did not complete is a partial one.
        conditions.append(f"o.status = '{wanted.status.value}'")
    found = [("data", *pair) for pair in wanted.data] + [("headers", *pair) for pair in wanted.headers]
    for number, (column, path, text) in enumerate(found):
        values |= {f"path_{number}": path, f"text_{number}": text}
        place = f"string_to_array(:path_{number}::text, '.')"
        conditions.append(f"commandbus.as_jsonb(c.{column}) #>> {place} = :text_{number}::text")
    return conditions, values
