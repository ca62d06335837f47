"""The SQLite engine's reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import msgspec

from commandbus.domain.audit import LINKED, AuditEvent
from commandbus.domain.command import CommandRecord
from commandbus.domain.ids import IdPart
from commandbus.domain.lifecycle import FINAL, PARKED, CommandStatus
from commandbus.domain.moment import SECOND, Clock, as_datetime, as_optional_datetime
from commandbus.engines.sqlite.queries import load_queries
from commandbus.engines.sqlite.rows import (
    as_id,
    as_json,
    as_known,
    as_members,
    as_shown,
    readable,
)
from commandbus.store.op import Op, Statement, scalar
from commandbus.store.reading import Running, as_facts, read_entry, read_failure, read_status
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
from commandbus.store.searching import LookedUp, Noun, Prunable, escaped_like, pruned
from commandbus.store.sessions import ForeignLeases, Sessionless
from commandbus.store.trail import compose, shown

SQL = load_queries("reads.sql")
ALL_LEASES = load_queries("commands.sql").all_leases

_BY_ID = "where c.command_id = :id and (:domain is null or c.domain = :domain) order by c.seq"

ENDED = frozenset({*FINAL, PARKED})
FEW = 2_000


class SqliteReads(Sessionless):
    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def find(self, command_id: UUID, domain: str | None) -> Op[list[CommandRecord]]:
        return (
            yield from self._records(
                _BY_ID,
                {"id": command_id.bytes, "domain": domain},
            )
        )

    def look_up(self, noun: Noun, wanted: IdPart, below: UUID, scan: int) -> Op[LookedUp]:
        sql = SQL.look_up_command if noun == "command" else SQL.look_up_process
        params = {
            "lowest": wanted.lowest.bytes,
            "below": min(below, wanted.highest).bytes,
            "tail": wanted.tail.upper(),
            "scan": scan,
        }
        *found, (last, count) = yield Statement(sql, params)
        ids = [as_id(found_id) for found_id, _ in found]
        return LookedUp(list(dict.fromkeys(ids)), as_id(last) if count == scan else None)

    def endings(self, commands: Sequence[Place]) -> Op[dict[Place, Ended]]:
        found: dict[Place, Ended] = {}
        for command_id, domain in commands:
            for row in (yield Statement(SQL.ending, (command_id.bytes, domain))):
                status, result, error, reason = row
                ended = Ended(read_status(status), result, read_failure(error), reason)
                found[command_id, domain] = ended
        return found

    def query(self, wanted: CommandFilter) -> Op[list[CommandRecord]]:
        conditions, params = _conditions(wanted)
        if wanted.status is CommandStatus.IN_PROGRESS:
            running = yield from self._running()
            conditions.append("c.seq in (select value from json_each(?))")
            params.append(as_json(sorted(running)))
        elif wanted.status is CommandStatus.PENDING:
            waiting = yield Statement(SQL.few_waiting, {"limit": FEW + 1})
            if len(waiting) <= FEW:
                conditions.append("c.seq in (select value from json_each(?))")
                params.append(as_json([seq for (seq,) in waiting]))
        where = f"where {' and '.join(conditions)} " if conditions else ""
        params.append(wanted.limit)
        # What ended is looked for among the outcomes, however many commands wait behind them.
        key = "o.seq" if wanted.status in ENDED else "c.seq"
        return (yield from self._records(f"{where}order by {key} desc limit ?", params, wanted.status))

    def _records(
        self, clauses: str, params: Any, status: CommandStatus | None = None
    ) -> Op[list[CommandRecord]]:
        source = SQL.of_outcomes if status in ENDED else SQL.of_commands
        sql = f"{SQL.records} {source} {SQL.with_places} {clauses}"
        known = [as_known(row) for row in (yield Statement(sql, params))]
        running: Running = {}
        if any(one.is_running for one in known):
            running = yield from self._running()
        return [as_shown(one, running) for one in known]

    def _running(self) -> Op[Running]:
        """What is under lease: few rows, each with many commands."""
        rows = yield Statement(ALL_LEASES)
        return {
            seq: (worker, claimed_at, member)
            for _, _, worker, claimed_at, packed in rows
            for seq, member in as_members(packed).items()
        }

    def count_parked(self, domain: str | None, command_type: str | None) -> Op[int]:
        wanted = {"domain": domain, "command_type": command_type}
        return int(scalar((yield Statement(SQL.parked, wanted))))

    def group_parked(self, domain: str | None, command_type: str | None) -> Op[list[ParkedGroup]]:
        wanted = {"domain": domain, "command_type": command_type}
        rows = yield Statement(SQL.group_parked, wanted)
        return [
            ParkedGroup(name, kind, count, oldest, newest, as_id(command_id), read_failure(error))
            for name, kind, count, oldest, newest, command_id, error in rows
        ]

    def overdue(self, seconds: float, limit: int) -> Op[list[Overdue]]:
        cutoff = self._clock() - int(seconds * SECOND)
        rows = yield Statement(SQL.overdue, (cutoff, limit))
        return [Overdue(domain, as_id(command_id), *rest) for domain, command_id, *rest in rows]

    def audit_trail(self, command_id: UUID, domain: str | None) -> Op[list[AuditEvent]]:
        wanted = {"id": command_id.bytes, "domain": domain}
        sql = f"{SQL.records} {SQL.of_commands} {SQL.with_places} {_BY_ID}"
        known = [as_known(row) for row in (yield Statement(sql, wanted))]
        running = yield from self._running()
        events: list[AuditEvent] = []
        for one in known:
            kept = yield Statement(SQL.audit, (one.seq,))
            events += compose(as_facts(readable(one), running), [read_entry(*entry) for entry in kept])
        return events

    def last_sequence(self) -> Op[int]:
        return int(scalar((yield Statement(SQL.last_sequence))))

    def search_audit(self, wanted: AuditFilter) -> Op[list[AuditEntry]]:
        rows = yield Statement(SQL.search_audit, msgspec.structs.asdict(wanted))
        found: list[AuditEntry] = []
        for number, command_type, domain, command_id, *entry in rows:
            kept = read_entry(*entry)
            key = as_id(command_id)
            event = AuditEvent(domain, key, kept.kind, as_datetime(kept.at), shown(kept.details))
            found.append(AuditEntry(number, command_type, event))
        return found

    def recent_runs(self, limit: int) -> Op[list[Run]]:
        rows = yield Statement(SQL.recent_runs, (limit,))
        return [Run(domain, read_status(status), *rest) for domain, status, *rest in rows]

    def prune(
        self, cutoffs: Mapping[str, int], after: int, limit: int, *, preview: bool = False
    ) -> Op[Pruned]:
        rows = yield Statement(SQL.prunable, (as_json(sorted(LINKED)), after, limit))
        named = [
            Prunable(seq, status, finished_at, created_at, domain and f"{domain} {as_id(command_id)}")
            for seq, status, finished_at, created_at, domain, command_id in rows
        ]
        if preview:
            return pruned(named, cutoffs, limit)
        gone = as_json([one.seq for one in named if one.is_due(cutoffs)])
        for statement in (SQL.prune_outcomes, SQL.prune_commands, SQL.prune_audit, SQL.prune_progress):
            yield Statement(statement, (gone,))
        return pruned(named, cutoffs, limit)

    def stats(self, domain: str, cap: int | None = None) -> Op[QueueStats]:
        now = self._clock()
        wanted = {"domain": domain, "now": now, "cap": -1 if cap is None else cap}
        (
            (ready, scheduled, due, running, oldest, next_due, paused_at, paused_reason, held, tagged),
        ) = yield Statement(SQL.stats, wanted)
        tally = dict((yield Statement(SQL.tally, (domain,))))
        waiting_since = [m for m in (oldest, next_due) if m is not None and m <= now]
        return QueueStats(
            domain=domain,
            ready=ready + due + held + tagged,
            scheduled=scheduled,
            running=running,
            parked=tally.get(PARKED, 0),
            completed=tally.get(CommandStatus.COMPLETED, 0),
            failed=tally.get(CommandStatus.FAILED, 0),
            canceled=tally.get(CommandStatus.CANCELED, 0),
            oldest_ready_age=(now - min(waiting_since)) / SECOND if waiting_since else None,
            paused=paused_at is not None,
            paused_reason=paused_reason,
            paused_at=as_optional_datetime(paused_at),
            held=held,
            operator_actions=operator_actions(tally),
        )

    def foreign_leases(self, worker: str) -> Op[ForeignLeases]:
        until = scalar((yield Statement(SQL.next_lease_end, (worker,))))
        return ForeignLeases(None if until is None else (until - self._clock()) / SECOND)

    def count_ahead(self, domain: str, priority: int, seq: int, limit: int) -> Op[int]:
        return int(scalar((yield Statement(SQL.ahead, (domain, priority, seq, limit)))))

    def domains(self) -> Op[list[str]]:
        rows = yield Statement(SQL.domains)
        return [domain for (domain,) in rows]


def _conditions(wanted: CommandFilter) -> tuple[list[str], list[Any]]:
    conditions: list[str] = []
    params: list[Any] = []

    def add(condition: str, value: Any) -> None:
        if value is not None:
            conditions.append(condition)
            params.append(value)

    add(f"{'o' if wanted.status in ENDED else 'c'}.seq < ?", wanted.before)
    add(f"{'o' if wanted.status in ENDED else 'c'}.seq >= ?", wanted.lowest)
    add("c.domain = ?", wanted.domain)
    add("c.command_type = ?", wanted.command_type)
    add("c.correlation_id = ?", wanted.correlation_id and wanted.correlation_id.bytes)
    add("c.batch_id = ?", wanted.batch_id and wanted.batch_id.bytes)
    add("c.created_at >= ?", wanted.created_after)
    add("c.created_at < ?", wanted.created_before)
    add(
        "exists (select 1 from json_each(iif(json_valid(c.tags), c.tags, '[]')) t where t.value = ?)",
        wanted.tag,
    )
    if wanted.status is CommandStatus.PENDING:
        conditions.append("o.seq is null and coalesce(q.seq, s.seq, h.seq) is not null")
    elif wanted.status not in (None, CommandStatus.IN_PROGRESS):
        # In the text, not as a parameter: the index of what did not complete is a partial one.
        conditions.append(f"o.status = '{wanted.status.value}'")
    if wanted.error is not None:
        conditions.append(
            "case when json_valid(o.error) then json_extract(o.error, '$.code') = ?"
            " or json_extract(o.error, '$.exception') = ?"
            " or json_extract(o.error, '$.exception') like ? escape '\\' end"
        )
        params += [wanted.error, wanted.error, "%." + escaped_like(wanted.error)]
    found = [("data", *pair) for pair in wanted.data] + [("headers", *pair) for pair in wanted.headers]
    for column, path, text in found:
        place = "$" + "".join(f'."{key}"' for key in path.split("."))
        conditions.append(
            f"case when json_valid(c.{column}) then case json_type(c.{column}, ?)"
            " when 'true' then 'true' when 'false' then 'false'"
            f" else cast(json_extract(c.{column}, ?) as text) end end = ?"
        )
        params += [place, place, text]
    return conditions, params
