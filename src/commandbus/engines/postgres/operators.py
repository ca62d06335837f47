"""The PostgreSQL engine's other writes: cancel, operators' decisions, pause, purge."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from commandbus.domain.audit import AuditEventType
from commandbus.domain.lifecycle import (
    PARKED,
    CommandStatus,
    Transition,
    after,
    refuse_cancel,
    refuse_edit,
)
from commandbus.engines.postgres.batches import PostgresBatches
from commandbus.engines.postgres.reads import PostgresReads
from commandbus.engines.postgres.settling import Known, PostgresSettling, as_json
from commandbus.engines.postgres.statements import ORIGIN, Urgent, channel_of, in_schema
from commandbus.errors import CommandNotFoundError
from commandbus.store.batching import tally
from commandbus.store.op import Op, Statement, Wake, autocommit
from commandbus.store.reading import read_failure
from commandbus.store.records import OperatorAction, WaitingEdit
from commandbus.store.settling import AuditRow, OutcomeRow, QueueRow, Writes

_TABLES_BY_SEQ = (
    "queue", "scheduled", "held", "slot", "outcome", "audit", "unique_key", "progress", "recorded_step",
    "command",
)  # fmt: skip


CHECK_SECONDS = 2.0
"""After so long a probe is answered; the next one finds another connection."""


class PostgresOperators(PostgresSettling, PostgresReads, PostgresBatches):
    def cancel(self, domain: str, command_id: UUID, reason: str, actor: str | None) -> Op[None]:
        row = yield from self._standing(domain, command_id)
        seq, priority, waiting, scheduled = row[0], row[1], row[10], row[11]
        if not waiting and not scheduled:
            refuse_cancel(status_of(row))
        yield Statement(self._sql.delete_waiting, (domain, priority, seq))
        details = {"reason": reason} | ({"actor": actor} if actor else {})
        canceled = CommandStatus.CANCELED
        outcome = OutcomeRow(seq, canceled, row[8], row[9], None, None, ran=0, reason=reason)
        note = AuditRow(seq, AuditEventType.CANCELED, details)
        writes = Writes(outcomes=[outcome], audits=[note])
        known = Known({}, {seq}, {seq: row[12]})
        yield from self._write(domain, None, writes, known)
        yield Wake(domain)

    def edit_waiting(self, domain: str, command_id: UUID, edit: WaitingEdit) -> Op[None]:
        row = yield from self._standing(domain, command_id)
        seq, waiting, scheduled = row[0], row[10], row[11]
        if not waiting and not scheduled:
            refuse_edit(status_of(row))
        waits = (yield Statement(self._sql.delete_waiting, (domain, row[1], seq)))[0]
        attempts, crashes, releases, present, now = waits
        due_at = edit.moment(present, now)
        params = (seq, edit.priority, due_at if edit.moves else None)
        priority, _ = (yield Statement(self._sql.edit_command, params))[0]
        moved = QueueRow(seq, attempts, crashes, releases, delay=due_at - now)
        known = Known({seq: priority}, {seq}, {seq: row[12]})
        yield from self._write(domain, None, Writes(requeues=[moved]), known)

    def revoke(self, domain: str, command_id: UUID, reason: str) -> Op[None]:
        row = yield from self._standing(domain, command_id)
        if status_of(row) is not PARKED:
            yield from self.cancel(domain, command_id, reason, None)
            return
        seq, batch_id = row[0], row[12]
        yield Statement(self._sql.revoke_parked, (seq, reason))
        for status, sign in ((PARKED, -1), (CommandStatus.CANCELED, 1)):
            yield from self.add_batch_counts(tally([(batch_id, status)], sign), "")
        note = AuditRow(seq, AuditEventType.CANCELED, {"reason": reason})
        yield from self._write(domain, None, Writes(audits=[note]), Known({}, {seq}, {}))

    def announce(self, topic: str) -> Op[None]:
        if self._notify:
            channel = channel_of(self._schema)
            yield Statement("select pg_notify($1::text, $2::text)", (channel, f"{topic} "))
        yield Wake(topic)

    def resolve(self, domain: str, command_id: UUID, action: OperatorAction) -> Op[None]:
        row = yield from self._standing(domain, command_id)
        seq, priority, data = row[:3]
        transition = Transition(f"operator_{action.kind}")
        status = after(status_of(row), transition)
        yield Statement(self._sql.take_up, (seq, domain, transition.upper()))
        yield from self.add_batch_counts(tally([(row[12], PARKED)], -1), "")
        note = AuditRow(seq, AuditEventType(transition.upper()), action.details(data))
        writes = Writes(audits=[note])
        if status is CommandStatus.PENDING:
            yield Statement(self._sql.send_back, (seq, action.data))
            writes.requeues.append(QueueRow(seq, 0, 0, 0, delay=0))
        else:
            writes.outcomes.append(
                OutcomeRow(
                    seq,
                    status,
                    row[5],
                    row[6],
                    None,
                    None,
                    ran=0,
                    result=action.result,
                    error=read_failure(row[7]),
                    reason=action.reason,
                )
            )
        known = Known({seq: priority}, {seq}, {seq: row[12]})
        yield from self._write(domain, None, writes, known)

    def note(
        self,
        domain: str,
        command_id: UUID,
        kind: AuditEventType,
        details: Mapping[str, Any],
        *,
        parked: bool = False,
    ) -> Op[bool]:
        params = (command_id, domain, str(kind), as_json(details), parked)
        return bool((yield Statement(self._sql.note, params)))

    def _standing(self, domain: str, command_id: UUID) -> Op[Any]:
        rows = yield Statement(self._sql.standing, (command_id, domain))
        if not rows:
            raise CommandNotFoundError(domain, command_id)
        return rows[0]

    @autocommit
    def check(self) -> Op[None]:
        yield Urgent(self._sql.check, seconds=CHECK_SECONDS)

    def set_paused(self, domain: str, paused: bool, reason: str | None, actor: str | None) -> Op[bool]:
        changed = bool((yield Statement(self._sql.set_paused, (domain, paused, reason, actor))))
        if changed and not paused:
            yield Statement(self._sql.wake, (domain, ORIGIN, self._notify))
            yield Wake(domain)
        return changed

    def purge(self, domain: str | None) -> Op[int]:
        chosen = "select seq from commandbus.command where $1::text is null or domain = $1::text"
        count = (yield self._in_schema(f"select count(*) from ({chosen}) c", domain))[0][0]
        for table in _TABLES_BY_SEQ:
            yield self._in_schema(f"delete from commandbus.{table} where seq in ({chosen})", domain)
        for table in ("lease", "tally", "domain", "limit_rule", "touch", "bucket", "place"):
            yield self._in_schema(
                f"delete from commandbus.{table} where $1::text is null or domain = $1::text", domain
            )
        mine = "select process_id from commandbus.process where $1::text is null or reply_to = $1::text"
        for table in ("process_step", "process"):
            yield self._in_schema(
                f"delete from commandbus.{table} where process_id in ({mine})", domain
            )
        self._leases.clear()
        return int(count)

    def _in_schema(self, sql: str, domain: str | None) -> Statement:
        return Statement(in_schema(sql, self._schema), (domain,))


def status_of(row: Any) -> CommandStatus:
    """Of a row of the query `standing`."""
    if row[4] is not None:
        return CommandStatus(row[4])
    return CommandStatus.PENDING if row[10] or row[11] else CommandStatus.IN_PROGRESS
