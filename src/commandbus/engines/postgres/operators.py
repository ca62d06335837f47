"""The PostgreSQL engine's other writes: cancel, operators' decisions, pause, purge."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from commandbus.domain.audit import AuditEventType
from commandbus.domain.lifecycle import (
    PARKED,
    CommandStatus,
    refuse_edit,
)
from commandbus.engines.postgres.batches import Batches
from commandbus.engines.postgres.context import Context, Part
from commandbus.engines.postgres.rows import StandingRow
from commandbus.engines.postgres.settle_query import Known, as_json
from commandbus.engines.postgres.settling import Settler
from commandbus.engines.postgres.statements import ORIGIN, Urgent, channel_of, in_schema
from commandbus.errors import CommandNotFoundError
from commandbus.store.batching import tally
from commandbus.store.op import Op, Statement, Wake, autocommit, scalar
from commandbus.store.records import OperatorAction, WaitingEdit
from commandbus.store.resolving import plan_cancel, plan_resolution, plan_revoked
from commandbus.store.settling import QueueRow, Writes

_TABLES_BY_SEQ = (
    "queue", "scheduled", "held", "permit", "outcome", "audit", "unique_key", "progress",
    "recorded_step", "command",
)  # fmt: skip


CHECK_SECONDS = 2.0
"""After so long a probe is answered; the next one finds another connection."""


class Operators(Part):
    """What operators and processes decide about single commands and whole domains."""

    def __init__(self, context: Context, settler: Settler, batches: Batches) -> None:
        super().__init__(context)
        self._settler, self._batches = settler, batches

    def cancel(self, domain: str, command_id: UUID, reason: str, actor: str | None) -> Op[None]:
        found = yield from self._standing(domain, command_id)
        writes = plan_cancel(found.standing, reason, actor)
        yield Statement(self._sql.delete_waiting, (domain, found.priority, found.seq))
        known = Known({}, {found.seq}, {found.seq: found.batch_id})
        yield from self._settler.write(domain, None, writes, known)
        yield Wake(domain)

    def edit_waiting(self, domain: str, command_id: UUID, edit: WaitingEdit) -> Op[None]:
        found = yield from self._standing(domain, command_id)
        seq = found.seq
        if not found.waits:
            refuse_edit(found.standing.status)
        taken = yield Statement(self._sql.delete_waiting, (domain, found.priority, seq))
        ((attempts, crashes, releases, present, now),) = taken
        due_at = edit.moment(present, now)
        params = (seq, edit.priority, due_at if edit.moves else None)
        ((priority, _),) = yield Statement(self._sql.edit_command, params)
        moved = QueueRow(seq, attempts, crashes, releases, delay=due_at - now)
        known = Known({seq: priority}, {seq}, {seq: found.batch_id})
        yield from self._settler.write(domain, None, Writes(requeues=[moved]), known)

    def revoke(self, domain: str, command_id: UUID, reason: str) -> Op[None]:
        found = yield from self._standing(domain, command_id)
        if found.standing.status is not PARKED:
            yield from self.cancel(domain, command_id, reason, None)
            return
        seq, batch_id = found.seq, found.batch_id
        yield Statement(self._sql.revoke_parked, (seq, reason))
        for status, sign in ((PARKED, -1), (CommandStatus.CANCELED, 1)):
            yield from self._batches.add_batch_counts(tally([(batch_id, status)], sign), "")
        writes = Writes(audits=plan_revoked(found.standing, reason).audits)
        yield from self._settler.write(domain, None, writes, Known({}, {seq}, {}))

    def announce(self, topic: str) -> Op[None]:
        if self._context.notify:
            channel = channel_of(self._context.schema)
            query = "select pg_notify($1::text, concat($2::text, ' ', $3::text))"
            yield Statement(query, (channel, topic, ORIGIN))
        yield Wake(topic)

    def resolve(self, domain: str, command_id: UUID, action: OperatorAction) -> Op[None]:
        found = yield from self._standing(domain, command_id)
        seq = found.seq
        resolution = plan_resolution(found.standing, found.data, action)
        yield Statement(self._sql.take_up, (seq, domain, resolution.act))
        yield from self._batches.add_batch_counts(tally([(found.batch_id, PARKED)], -1), "")
        if resolution.back:
            yield Statement(self._sql.send_back, (seq, action.data))
        known = Known({seq: found.priority}, {seq}, {seq: found.batch_id})
        yield from self._settler.write(domain, None, resolution.writes, known)

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

    def _standing(self, domain: str, command_id: UUID) -> Op[StandingRow]:
        rows = yield Statement(self._sql.standing, (command_id, domain))
        if not rows:
            raise CommandNotFoundError(domain, command_id)
        (row,) = rows
        return StandingRow(*row)

    @autocommit
    def check(self) -> Op[None]:
        yield Urgent(self._sql.check, seconds=CHECK_SECONDS)

    def set_paused(self, domain: str, paused: bool, reason: str | None, actor: str | None) -> Op[bool]:
        changed = bool((yield Statement(self._sql.set_paused, (domain, paused, reason, actor))))
        if changed and not paused:
            yield Statement(self._sql.wake, (domain, ORIGIN, self._context.notify))
            yield Wake(domain)
        return changed

    def purge(self, domain: str | None) -> Op[int]:
        chosen = "select seq from commandbus.command where $1::text is null or domain = $1::text"
        count = scalar((yield self._in_schema(f"select count(*) from ({chosen}) c", domain)))
        # A receipt is of one lease, and so of one domain.
        yield self._in_schema(
            "delete from commandbus.receipt r where exists (select 1 from commandbus.unfolded(r) o"
            f" where o.seq in ({chosen}))",
            domain,
        )
        for table in _TABLES_BY_SEQ:
            yield self._in_schema(f"delete from commandbus.{table} where seq in ({chosen})", domain)
        for table in ("lease", "tally", "domain", "limit_rule", "touch", "bucket", "partition"):
            yield self._in_schema(
                f"delete from commandbus.{table} where $1::text is null or domain = $1::text", domain
            )
        mine = "select process_id from commandbus.process where $1::text is null or reply_to = $1::text"
        for table in ("process_step", "process"):
            yield self._in_schema(
                f"delete from commandbus.{table} where process_id in ({mine})", domain
            )
        self._context.leases.clear()
        return int(count)

    def _in_schema(self, sql: str, domain: str | None) -> Statement:
        return Statement(in_schema(sql, self._context.schema), (domain,))
