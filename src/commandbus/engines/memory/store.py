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
    Transition,
    after,
    refuse_cancel,
    refuse_edit,
)
from commandbus.domain.moment import SECOND
from commandbus.engines.memory.commands import MemoryCommands
from commandbus.engines.memory.state import Entry, Pause, Stored
from commandbus.errors import CommandNotFoundError
from commandbus.store.op import Op, Wake
from commandbus.store.records import OperatorAction, WaitingEdit
from commandbus.store.settling import OutcomeRow
from commandbus.store.trail import Kept


class MemoryStore(MemoryCommands):
    def cancel(self, domain: str, command_id: UUID, reason: str, actor: str | None) -> Op[None]:
        stored = self._require(domain, command_id)
        status = self._status(stored)
        if status is not CommandStatus.PENDING:
            refuse_cancel(status)
        waiting = self._state.domain(domain).waiting
        self.journal.entry(waiting, stored.seq)
        entry = waiting.pop(stored.seq)
        if self._end_waiting(stored, entry, reason, AuditEventType.CANCELED, actor, self._clock()):
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
        parked, canceled = stored.outcome, CommandStatus.CANCELED
        if parked is None or parked.status is not PARKED:
            yield from self.cancel(domain, command_id, reason, None)
            return
        counted = self._state.domain(domain).tally
        self.journal.entry(counted, PARKED)
        counted[PARKED] -= 1
        self._count(stored, PARKED, -1)
        self._keep(stored, Kept(AuditEventType.CANCELED, now, {"reason": reason}))
        counts = (parked.attempts, parked.crashes)
        outcome = OutcomeRow(
            stored.seq, canceled, *counts, None, None, 0, error=parked.error, reason=reason
        )
        if self._end(stored, outcome, now):
            yield Wake(domain)

    def announce(self, topic: str) -> Op[None]:
        yield Wake(topic)

    def resolve(self, domain: str, command_id: UUID, action: OperatorAction) -> Op[None]:
        stored, now = self._require(domain, command_id), self._clock()
        transition = Transition(f"operator_{action.kind}")
        status = after(self._status(stored), transition)
        parked = stored.outcome
        assert parked is not None
        counted, act = self._state.domain(domain).tally, transition.upper()
        self.journal.contents(counted)
        self.journal.fields(stored, "outcome", "due_at", "data")
        counted[parked.status] -= 1
        counted[act] = counted.get(act, 0) + 1
        self._count(stored, parked.status, -1)
        self._keep(stored, Kept(AuditEventType(act), now, action.details(stored.data)))
        stored.outcome = None
        if status is CommandStatus.PENDING:
            stored.due_at = now
            if action.data is not None:
                stored.data = action.data
            self._enqueue(stored.seq, Entry(stored.seq, 0, 0, 0, now), now)
            yield Wake(domain)
        else:
            self._end(
                stored,
                OutcomeRow(
                    stored.seq,
                    status,
                    parked.attempts,
                    parked.crashes,
                    None,
                    None,
                    0,
                    result=action.result,
                    error=parked.error,
                    reason=action.reason,
                ),
                now,
            )

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
