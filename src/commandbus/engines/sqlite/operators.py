"""The SQLite engine's other writes: cancel, operators' decisions, dead workers, pause, purge."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

from commandbus.domain.audit import AuditEventType
from commandbus.domain.lifecycle import (
    PARKED,
    refuse_edit,
)
from commandbus.domain.limits import partition_of
from commandbus.domain.moment import SECOND
from commandbus.engines.sqlite.batches import SqliteBatches
from commandbus.engines.sqlite.limits import SqliteGates
from commandbus.engines.sqlite.queries import load_queries
from commandbus.engines.sqlite.reads import SqliteReads
from commandbus.engines.sqlite.rows import (
    StandingRow,
    as_json,
    as_members,
    as_optional_id,
    outcome_params,
)
from commandbus.errors import CommandNotFoundError
from commandbus.store.deaths import KEPT_SECONDS, HeldCommand, Witness, unknown_death
from commandbus.store.op import Op, Statement, Wake, scalar
from commandbus.store.records import OperatorAction, WaitingEdit
from commandbus.store.resolving import plan_cancel, plan_resolution, plan_revoked
from commandbus.store.settling import AuditRow, OutcomeRow, Writes

SQL = load_queries("commands.sql")

_CHOSEN = "select seq from commandbus_command where :domain is null or domain = :domain"
_PROCESSES = "select process_id from commandbus_process where :domain is null or reply_to = :domain"
_TABLES_BY_SEQ = (
    "queue", "scheduled", "held", "permit", "outcome", "audit", "unique_key", "progress",
    "recorded_step", "command",
)  # fmt: skip


class SqliteOperators(SqliteReads, SqliteBatches, SqliteGates):
    _witness: Witness = staticmethod(unknown_death)

    def consult(self, witness: Witness) -> None:
        self._witness = witness

    def held_by(self, worker: str) -> Op[list[HeldCommand]]:
        until = self._clock() + int(KEPT_SECONDS * SECOND)
        leases = yield Statement(SQL.keep_leases_of, (until, worker))
        held = [
            (lease_id, member) for lease_id, packed in leases for member in as_members(packed).values()
        ]
        seqs = as_json([member.seq for _, member in held])
        batches = dict((yield Statement(SQL.batches_of, (seqs,))) if held else ())
        return [(lease, m, as_optional_id(batches[m.seq])) for lease, m in held if m.seq in batches]

    def cancel(self, domain: str, command_id: UUID, reason: str, actor: str | None) -> Op[None]:
        found = yield from self._standing(domain, command_id)
        writes = plan_cancel(found.standing, reason, actor)
        partition = partition_of(domain, found.requires)
        yield Statement(SQL.delete_queue, (partition, found.priority, found.seq))
        yield Statement(SQL.delete_scheduled, (found.seq,))
        yield Statement(SQL.delete_held, (found.seq,))
        yield from self._end(domain, writes, self._clock())

    def edit_waiting(self, domain: str, command_id: UUID, edit: WaitingEdit) -> Op[None]:
        now = self._clock()
        found = yield from self._standing(domain, command_id)
        seq, priority, partition = found.seq, found.priority, partition_of(domain, found.requires)
        if not found.waits:
            refuse_edit(found.standing.status)
        key = {"partition": partition, "priority": priority, "seq": seq}
        ((attempts, crashes, releases, present),) = yield Statement(SQL.waiting_row, key)
        due_at = edit.moment(present, now)
        yield Statement(SQL.delete_queue, (partition, priority, seq))
        yield Statement(SQL.delete_scheduled, (seq,))
        yield Statement(SQL.delete_held, (seq,))
        yield Statement(SQL.edit_command, (edit.priority, due_at if edit.moves else None, seq))
        if due_at > now:
            yield Statement(SQL.reschedule, (due_at, attempts, crashes, releases, seq))
        else:
            yield from self._route_back([(seq, attempts, crashes, releases)], now)
        # After it came back: it may be the next one of its group itself.
        yield from self._leave_gates([seq], now)
        yield Wake(domain, (due_at - now) / SECOND or None)

    def revoke(self, domain: str, command_id: UUID, reason: str) -> Op[None]:
        found = yield from self._standing(domain, command_id)
        if found.standing.status is not PARKED:
            yield from self.cancel(domain, command_id, reason, None)
            return
        seq = found.seq
        yield Statement(SQL.delete_outcome, (seq,))
        yield Statement(SQL.add_tally, (domain, PARKED, -1))
        yield from self._count_ends([(seq, PARKED)], -1)
        yield from self._end(domain, plan_revoked(found.standing, reason), self._clock())

    def announce(self, topic: str) -> Op[None]:
        yield Wake(topic)

    def resolve(self, domain: str, command_id: UUID, action: OperatorAction) -> Op[None]:
        now = self._clock()
        found = yield from self._standing(domain, command_id)
        resolution = plan_resolution(found.standing, found.data, action)
        yield Statement(SQL.delete_outcome, (found.seq,))
        yield Statement(SQL.add_tally, (domain, PARKED, -1))
        yield Statement(SQL.add_tally, (domain, resolution.act, 1))
        yield from self._count_ends([(found.seq, PARKED)], -1)
        yield from self._end(domain, resolution.writes, now)
        if resolution.back:
            yield Statement(SQL.send_back, (now, action.data, found.seq))
            back = [(r.seq, r.attempts, r.crashes, r.releases) for r in resolution.writes.requeues]
            yield from self._route_back(back, now)
            yield Wake(domain)

    def note(
        self,
        domain: str,
        command_id: UUID,
        kind: AuditEventType,
        details: Mapping[str, Any],
        *,
        parked: bool = False,
    ) -> Op[bool]:
        found = yield from self._find(domain, command_id)
        if found is None or (parked and found.standing.status is not PARKED):
            return False
        yield from self._audit([AuditRow(found.seq, kind, dict(details))], self._clock())
        return True

    def _find(self, domain: str, command_id: UUID) -> Op[StandingRow | None]:
        rows = yield Statement(SQL.standing, (command_id.bytes, domain))
        return next((StandingRow(*row) for row in rows), None)

    def _standing(self, domain: str, command_id: UUID) -> Op[StandingRow]:
        found = yield from self._find(domain, command_id)
        if found is None:
            raise CommandNotFoundError(domain, command_id)
        return found

    def _end(self, domain: str, writes: Writes, now: int) -> Op[None]:
        """Commands that no worker runs end; their waiting rows are gone already."""
        yield from self._audit(writes.audits, now)
        for outcome in writes.outcomes:
            yield from self._end_one(domain, outcome, now)

    def _end_one(self, domain: str, outcome: OutcomeRow, now: int) -> Op[None]:
        yield Statement(SQL.insert_outcome, outcome_params(outcome, now))
        yield Statement(SQL.add_tally, (domain, outcome.status, 1))
        yield Statement(SQL.free_keys, (as_json([outcome.seq]),))
        yield from self._leave_gates([outcome.seq], now)
        yield from self._count_ends([(outcome.seq, outcome.status)])

    def _audit(self, rows: Iterable[AuditRow], now: int) -> Op[None]:
        params = [(row.seq, row.kind, now, as_json(row.details)) for row in rows]
        if params:
            yield Statement(SQL.insert_audit, params, many=True)

    def check(self) -> Op[None]:
        # Under the write lock by being a write; the read tells whether the tables are there.
        yield Statement(SQL.last_seq)
        yield Statement(SQL.domain_state, ("",))

    def set_paused(self, domain: str, paused: bool, reason: str | None, actor: str | None) -> Op[bool]:
        since = self._clock() if paused else None
        changed = bool((yield Statement(SQL.set_paused, (domain, since, reason, actor))))
        if changed and not paused:
            yield Wake(domain)
        return changed

    def purge(self, domain: str | None) -> Op[int]:
        count = scalar((yield Statement(f"select count(*) from ({_CHOSEN})", {"domain": domain})))
        for table in _TABLES_BY_SEQ:
            yield Statement(
                f"delete from commandbus_{table} where seq in ({_CHOSEN})", {"domain": domain}
            )
        for table in ("lease", "tally", "domain", "limit", "touch", "bucket", "partition"):
            chosen = f"delete from commandbus_{table} where :domain is null or domain = :domain"
            yield Statement(chosen, {"domain": domain})
        for table in ("process_step", "process"):
            yield Statement(
                f"delete from commandbus_{table} where process_id in ({_PROCESSES})", {"domain": domain}
            )
        return int(count)
