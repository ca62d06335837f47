"""The memory engine's other writes: cancel, edits and decisions of operators, pause, purge."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

import msgspec

from commandbus.domain.audit import AuditEventType
from commandbus.domain.lifecycle import (
    PARKED,
    CommandStatus,
    refuse_edit,
)
from commandbus.domain.moment import SECOND
from commandbus.engines.memory.commands import MemoryCommands
from commandbus.engines.memory.state import Entry, Pause, Stored
from commandbus.errors import CommandNotFoundError
from commandbus.store.op import Op, Wake
from commandbus.store.records import OperatorAction, WaitingEdit
from commandbus.store.resolving import Standing, plan_cancel, plan_resolution, plan_revoked
from commandbus.store.settling import OutcomeRow
from commandbus.store.trail import Kept


class MemoryStore(MemoryCommands):
    def cancel(self, domain: str, command_id: UUID, reason: str, actor: str | None) -> Op[None]:
        stored = self._require(domain, command_id)
        waiting = self._state.domain(domain).waiting
        entry, status = waiting.get(stored.seq), self._status(stored)
        counts = (entry.attempts, entry.crashes) if entry else (0, 0)
        writes = plan_cancel(Standing(stored.seq, status, *counts), reason, actor)
        self.journal.entry(waiting, stored.seq)
        del waiting[stored.seq]
        if self._carry_out(stored, writes, self._clock()):
            yield Wake(domain)

    def edit_waiting(self, domain: str, command_id: UUID, edit: WaitingEdit) -> Op[None]:
        stored, now = self._require(domain, command_id), self._clock()
        status = self._status(stored)
        if status is not CommandStatus.PENDING:
            refuse_edit(status)
        waiting = self._state.domain(domain).waiting
        self.journal.entry(waiting, stored.seq)
        entry = waiting.pop(stored.seq)
        due_at = edit.moment(entry.due_at, now)
        self.journal.fields(stored, "due_at", "command")
        if edit.moves:
            stored.due_at = due_at
        if edit.priority is not None:
            stored.command = msgspec.structs.replace(stored.command, priority=edit.priority)
        if self._leave_gates(stored, now):
            yield Wake(domain)
        moved = Entry(entry.seq, entry.attempts, entry.crashes, entry.releases, due_at)
        self._enqueue(stored.seq, moved, now)
        yield Wake(domain, (due_at - now) / SECOND or None, stored.command.requires is not None)

    def revoke(self, domain: str, command_id: UUID, reason: str) -> Op[None]:
        stored, now = self._require(domain, command_id), self._clock()
        parked = stored.outcome
        if parked is None or parked.status is not PARKED:
            yield from self.cancel(domain, command_id, reason, None)
            return
        counted = self._state.domain(domain).tally
        self.journal.entry(counted, PARKED)
        counted[PARKED] -= 1
        self._count(stored, PARKED, -1)
        if self._carry_out(stored, plan_revoked(_standing(parked), reason), now):
            yield Wake(domain)

    def announce(self, topic: str) -> Op[None]:
        yield Wake(topic)

    def resolve(self, domain: str, command_id: UUID, action: OperatorAction) -> Op[None]:
        stored, now = self._require(domain, command_id), self._clock()
        parked = stored.outcome
        standing = _standing(parked) if parked else Standing(stored.seq, self._status(stored), 0, 0)
        resolution = plan_resolution(standing, stored.data, action)
        counted, act = self._state.domain(domain).tally, resolution.act
        self.journal.contents(counted)
        self.journal.fields(stored, "outcome", "due_at", "data")
        counted[PARKED] -= 1
        counted[act] = counted.get(act, 0) + 1
        self._count(stored, PARKED, -1)
        stored.outcome = None
        self._carry_out(stored, resolution.writes, now)
        if resolution.back:
            stored.due_at = now
            if action.data is not None:
                stored.data = action.data
            for back in resolution.writes.requeues:
                entry = Entry(back.seq, back.attempts, back.crashes, back.releases, now)
                self._enqueue(stored.seq, entry, now)
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
        yield from ()
        for stored in self._stored(command_id, domain):
            if not parked or self._status(stored) is PARKED:
                self._keep(stored, Kept(kind, self._clock(), dict(details)))
                return True
        return False

    def _require(self, domain: str, command_id: UUID) -> Stored:
        seq = self._state.by_id.get(command_id, {}).get(domain)
        if seq is None:
            raise CommandNotFoundError(domain, command_id)
        return self._state.commands[seq]

    def check(self) -> Op[None]:
        yield from ()

    def set_paused(self, domain: str, paused: bool, reason: str | None, actor: str | None) -> Op[bool]:
        present = self._state.look_at(domain).pause
        if (present is not None) == paused and (present is None or present.reason == reason):
            return False
        found = self._state.domain(domain)
        self.journal.fields(found, "pause")
        found.pause = Pause(reason, self._clock()) if paused else None
        if not paused:
            yield Wake(domain)
        return True

    def purge(self, domain: str | None) -> Op[int]:
        yield from ()
        state, journal = self._state, self.journal
        journal.contents(state.commands, state.domains, state.recorded, state.leases)
        journal.contents(state.processes, state.process_events, *state.by_id.values())
        journal.fields(state, "unique")
        doomed = {
            seq
            for seq, stored in state.commands.items()
            if domain is None or stored.command.domain == domain
        }
        for seq in doomed:
            stored = state.commands.pop(seq)
            del state.by_id[stored.command.command_id][stored.command.domain]
        for name in [domain] if domain else list(state.domains):
            state.domains.pop(name, None)
        state.unique = {key: seq for key, seq in state.unique.items() if seq not in doomed}
        for seq in doomed:
            state.recorded.pop(seq, None)
        for process_id, row in list(state.processes.items()):
            if domain is None or row.reply_to == domain:
                del state.processes[process_id]
                state.process_events.pop(process_id, None)
        for lease_id, lease in list(state.leases.items()):
            journal.fields(lease, "members")
            lease.members = {seq: m for seq, m in lease.members.items() if seq not in doomed}
            if not lease.members:
                del state.leases[lease_id]
        return len(doomed)


def _standing(outcome: OutcomeRow) -> Standing:
    return Standing(outcome.seq, outcome.status, outcome.attempts, outcome.crashes, outcome.error)
