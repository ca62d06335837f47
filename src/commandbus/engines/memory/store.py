"""The memory engine's commands: the port's contract on dictionaries and heaps.

Its session holds a lock around each op, so an op is atomic if it checks everything before it changes
anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heappop, heappush
from typing import Any
from uuid import UUID

import msgspec

from commandbus.domain.audit import AuditEventType
from commandbus.domain.batch import BatchCounts
from commandbus.domain.command import Progress
from commandbus.domain.lifecycle import (
    FINAL,
    PARKED,
    CommandStatus,
    Transition,
    after,
    refuse_cancel,
    refuse_edit,
)
from commandbus.domain.moment import SECOND, Clock, as_datetime
from commandbus.engines.memory.batches import MemoryBatches
from commandbus.engines.memory.documents import MemoryDocuments
from commandbus.engines.memory.gates import MemoryGates
from commandbus.engines.memory.processes import MemoryProcesses
from commandbus.engines.memory.reads import MemoryReads
from commandbus.engines.memory.state import Domain, Entry, Lease, Pause, State, Stored
from commandbus.errors import CommandNotFoundError, DuplicateCommandError, QueueFull
from commandbus.store.batching import TOPIC as BATCHES
from commandbus.store.batching import tally
from commandbus.store.capabilities import Capabilities
from commandbus.store.op import Op, Wake
from commandbus.store.records import (
    Capacity,
    Claimed,
    ClaimReply,
    ClaimRequest,
    Inserted,
    NewCommand,
    OperatorAction,
    Settlement,
    SettleReport,
    WaitingEdit,
    with_pending,
)
from commandbus.store.replies import replies_to_expired
from commandbus.store.rescuing import StuckLeases
from commandbus.store.settling import Member, OutcomeRow, Writes, chains_of, hand_over, plan, plan_lost
from commandbus.store.suspects import Admission
from commandbus.store.trail import Kept


class MemoryStore(MemoryReads, MemoryDocuments, MemoryBatches, MemoryProcesses, MemoryGates):
    capabilities = Capabilities(
        durable=False, many_processes=False, caller_transactions=False, needs_migration=False
    )

    def __init__(self, clock: Clock) -> None:
        super().__init__(State(), clock)
        self._turn = 0
        self._stuck = StuckLeases()

    def insert(self, commands: Sequence[NewCommand], capacity: Capacity) -> Op[list[Inserted]]:
        state, now = self._state, self._clock()
        added: dict[str, int] = {}
        keys: dict[tuple[str, str], UUID] = {}
        ids: set[tuple[str, UUID]] = set()
        results: list[Inserted] = []
        new: list[NewCommand] = []
        for command in commands:
            domain, command_id = command.domain, command.command_id
            if domain in state.by_id.get(command_id, ()) or (domain, command_id) in ids:
                raise DuplicateCommandError(domain, command_id)
            if command.unique_key is not None:
                key = (domain, command.unique_key)
                held = state.unique.get(key)
                holder = state.commands[held].command.command_id if held else keys.get(key)
                if holder is not None:
                    results.append(Inserted(holder, duplicate=True))
                    continue
                keys[key] = command_id
            ids.add((domain, command_id))
            added[domain] = added.get(domain, 0) + 1
            new.append(command)
            results.append(Inserted(command_id, duplicate=False))
        pending = self._check_capacity(added, capacity)
        wakes: dict[str, float | None] = {}
        for command in new:
            due_in = self._add(command, now)
            known = wakes.get(command.domain, due_in)
            wakes[command.domain] = None if not due_in or not known else min(due_in, known)
        everyone = {command.domain for command in new if command.requires is not None}
        for domain, soonest in wakes.items():
            yield Wake(domain, soonest, domain in everyone)
        return with_pending(results, commands, pending)

    def _check_capacity(self, added: dict[str, int], capacity: Capacity) -> dict[str, int]:
        """How many will be waiting in each domain, where that is counted."""
        pending: dict[str, int] = {}
        if capacity.pending_max is not None:
            for name, count in added.items():
                waiting = len(self._state.look_at(name).waiting)
                pending[name] = waiting + count
                if pending[name] > capacity.pending_max:
                    raise QueueFull(
                        f"Domain {name!r} holds {waiting} waiting commands; {count} more "
                        f"would exceed its capacity of {capacity.pending_max}. Try again later, or "
                        "add workers."
                    )
        return pending

    def _add(self, command: NewCommand, now: int) -> float | None:
        state = self._state
        state.last_seq += 1
        seq = state.last_seq
        due_at = now + command.delay if command.due_at is None else command.due_at
        state.commands[seq] = Stored(seq, command, now, due_at, command.data)
        state.by_id.setdefault(command.command_id, {})[command.domain] = seq
        if command.unique_key is not None:
            state.unique[command.domain, command.unique_key] = seq
        self._enqueue(seq, Entry(seq, 0, 0, 0, due_at), now)
        return (due_at - now) / SECOND if due_at > now else None

    def _enqueue(self, seq: int, entry: Entry, now: int) -> None:
        command = self._state.commands[seq].command
        domain = self._state.domain(command.domain)
        domain.waiting[seq] = entry
        if entry.due_at <= now:
            self._route(domain, self._state.commands[seq], entry, now)
        else:
            domain.heaps.push(command.priority, seq, entry, entry.due_at, now)

    def claim(self, request: ClaimRequest) -> Op[ClaimReply]:
        now = self._clock()
        rescued = yield from self._reclaim(now)
        claimed: list[Claimed] = []
        self._turn += 1
        count = len(request.domains)
        for position in range(count):
            name = request.domains[(self._turn + position) % count]
            yield from self._claim_from(name, request, now, claimed)
        due_in = None if claimed else self._next_due_in(request, now)
        return ClaimReply(claimed, due_in, rescued, self._stuck.report())

    def _claim_from(
        self, name: str, request: ClaimRequest, now: int, claimed: list[Claimed]
    ) -> Op[None]:
        domain = self._state.look_at(name)
        if domain.pause is not None:
            return
        if domain.ageing != request.ageing:
            self._grow_old(domain, request.ageing)
        self._promote(domain, now)
        self._admit(name, domain, now)
        heaps = self._heaps_for(domain, request.tags)
        members: dict[int, Member] = {}
        expired: list[NewCommand] = []
        most = request.wanted(claimed)
        admission = Admission(request.suspects_beside(claimed))
        for heap in heaps:
            passed_over = []
            while heap and len(members) < most:
                item = heappop(heap)
                entry = item[2]
                if domain.waiting.get(entry.seq) is not entry:
                    continue
                is_special = entry.crashes or request.priority is not None
                if is_special and not self._may_take(entry, request.priority, admission, now):
                    passed_over.append(item)
                else:
                    self._take(domain, entry, members, expired, now)
            for item in passed_over:
                heappush(heap, item)
        followers = request.spare(claimed)
        for leader, gate, share in self._leaders(domain, members, followers, request.chain):
            for entry in self._next_at(domain, gate, share):
                if self._take(domain, entry, members, expired, now, chain=leader.seq):
                    members[leader.seq] = msgspec.structs.replace(leader, chain=leader.seq)
        if members:
            self._state.last_lease += 1
            lease_id, until = self._state.last_lease, now + int(request.lease_seconds * SECOND)
            self._state.leases[lease_id] = Lease(name, request.worker, now, until, members)
            for member in members.values():
                stored = self._state.commands[member.seq]
                stored.lease_id = lease_id
                claimed.append(_claimed(stored, member, lease_id, now))
        if any(command.batch_id is not None for command in expired):
            yield Wake(BATCHES)
        yield from self.insert(replies_to_expired(expired), Capacity())

    def _may_take(self, entry: Entry, priority: int | None, admission: Admission, now: int) -> bool:
        command = self._state.commands[entry.seq].command
        if priority not in (None, command.priority):
            return False
        is_over = command.expires_at is not None and command.expires_at <= now
        return is_over or admission.admits(entry.crashes, now - entry.due_at)

    def _take(
        self,
        domain: Domain,
        entry: Entry,
        members: dict[int, Member],
        expired: list[NewCommand],
        now: int,
        chain: int = 0,
    ) -> bool:
        """A command that waited becomes a member of a lease, unless it has expired."""
        seq = entry.seq
        del domain.waiting[seq]
        stored = self._state.commands[seq]
        command = stored.command
        if command.expires_at is not None and command.expires_at <= now:
            self._end_waiting(stored, entry, "EXPIRED", AuditEventType.EXPIRED, None, now)
            expired.append(command)
            return False
        keyed = command.unique_key is not None or chain != 0 or seq in domain.passed
        members[seq] = Member(seq, entry.attempts + 1, entry.crashes, entry.releases, keyed, chain)
        return True

    def _next_due_in(self, request: ClaimRequest, now: int) -> float | None:
        moments: list[float] = [
            lease.until for lease in self._state.leases.values() if lease.worker != request.worker
        ]
        for name in request.domains:
            domain = self._state.look_at(name)
            domain.drop_canceled()
            due = domain.heaps.next_due()
            if domain.pause is None:
                moments += domain.touched.values()
                if due is not None:
                    moments.append(due)
        return max(0.0, (min(moments) - now) / SECOND) if moments else None

    def settle(self, batch: Sequence[Settlement]) -> Op[SettleReport]:
        now, writes = self._clock(), Writes()
        lost: list[int] = []
        sends: list[NewCommand] = []
        touched: set[tuple[str, UUID]] = set()
        leaving: dict[int, set[int]] = {}
        for settlement in batch:
            lease = self._state.leases.get(settlement.lease_id)
            member = lease.members.get(settlement.seq) if lease and lease.until > now else None
            if settlement.seq in leaving.get(settlement.lease_id, ()):
                member = None
            if lease is None or member is None or member.attempt != settlement.attempt:
                stored = self._state.commands.get(settlement.seq)
                recorded = stored.outcome.lease_id if stored and stored.outcome else None
                if recorded != settlement.lease_id:
                    lost.append(settlement.seq)
                continue
            plan(writes, settlement, member, lease.worker, lease.claimed_at)
            sends += settlement.sends
            if settlement.batch_id is not None:
                touched.add((lease.domain, settlement.batch_id))
            leaving.setdefault(settlement.lease_id, set()).add(settlement.seq)
        for lease_id, seqs in leaving.items():
            self._leave_lease(lease_id, seqs)
        yield from self._write(writes, now)
        yield from self.insert(sends, Capacity())
        return SettleReport(tuple(lost), tuple(touched))

    def _leave_lease(self, lease_id: int, seqs: set[int]) -> None:
        lease = self._state.leases[lease_id]
        heirs = hand_over(chains_of(lease.members.values()), seqs)
        self._hand_over(self._state.domain(lease.domain), heirs)
        for seq in seqs:
            del lease.members[seq]
        if not lease.members:
            del self._state.leases[lease_id]

    def _reclaim(self, now: int) -> Op[int]:
        """Take back what expired leases still held, each by itself."""
        leases, skipped = self._state.leases, self._stuck.skipped(now / SECOND)
        rescued, failed = 0, list[int]()
        for lease_id in [key for key, lease in leases.items() if lease.until <= now]:
            if lease_id in skipped:
                continue
            lease, writes = leases.pop(lease_id), Writes()
            for member in lease.members.values():
                plan_lost(writes, member, lease_id, lease.worker, lease.claimed_at)
            try:
                yield from self._write(writes, now)
                rescued += len(lease.members)
            except Exception as error:  # it is tried again later, and an operator hears of it
                leases[lease_id] = lease
                failed.append(lease_id)
                self._stuck.failed(lease_id, error, now / SECOND)
        self._stuck.swept(skipped, failed)
        return rescued

    def _write(self, writes: Writes, now: int) -> Op[None]:
        for audit in writes.audits:
            details = msgspec.to_builtins(audit.details)
            self._state.commands[audit.seq].audit.append(Kept(audit.kind, now, details))
        for outcome in writes.outcomes:
            if self._end(self._state.commands[outcome.seq], outcome, now):
                yield Wake(self._state.commands[outcome.seq].command.domain)
        for row in writes.requeues:
            stored = self._state.commands[row.seq]
            stored.lease_id = None
            if self._leave_gates(stored, now):
                yield Wake(stored.command.domain)
            entry = Entry(row.seq, row.attempts, row.crashes, row.releases, now + row.delay)
            self._enqueue(row.seq, entry, now)
            due_in, everyone = row.delay / SECOND or None, stored.command.requires is not None
            yield Wake(stored.command.domain, due_in, everyone)

    def _end(self, stored: Stored, outcome: OutcomeRow, now: int) -> bool:
        """Record an outcome; whether that let others pass a gate."""
        stored.outcome, stored.finished_at, stored.lease_id = outcome, now, None
        domain = self._state.domain(stored.command.domain)
        domain.tally[outcome.status] = domain.tally.get(outcome.status, 0) + 1
        self._count(stored, outcome.status)
        if stored.command.unique_key is not None and outcome.status in FINAL:
            key = (stored.command.domain, stored.command.unique_key)
            if self._state.unique.get(key) == stored.seq:
                del self._state.unique[key]
        return self._leave_gates(stored, now)

    def _count(self, stored: Stored, status: CommandStatus, sign: int = 1) -> None:
        for batch_id, added in tally([(stored.command.batch_id, status)], sign).items():
            before = self._state.batches.get(batch_id, BatchCounts())
            self._state.batches[batch_id] = before.plus(added)

    def _end_waiting(
        self,
        stored: Stored,
        entry: Entry,
        reason: str,
        kind: AuditEventType,
        actor: str | None,
        now: int,
    ) -> bool:
        details = {"reason": reason} | ({"actor": actor} if actor else {})
        stored.audit.append(Kept(kind, now, details))
        outcome = OutcomeRow(
            stored.seq,
            CommandStatus.CANCELED,
            entry.attempts,
            entry.crashes,
            None,
            None,
            0,
            reason=reason,
        )
        return self._end(stored, outcome, now)

    def renew(self, lease_ids: Sequence[int], seconds: float) -> Op[list[int]]:
        yield from ()
        now, gone = self._clock(), []
        for lease_id in lease_ids:
            lease = self._state.leases.get(lease_id)
            if lease is None or lease.until <= now:
                gone.append(lease_id)
            else:
                lease.until = max(lease.until, now + int(seconds * SECOND))
        return gone

    def report_progress(self, seq: int, lease_id: int, percent: float, message: str) -> Op[bool]:
        yield from ()
        now, lease = self._clock(), self._state.leases.get(lease_id)
        if lease is None or lease.until <= now or seq not in lease.members:
            return False
        self._state.commands[seq].progress = Progress(percent, message, as_datetime(now))
        return True

    def cancel(self, domain: str, command_id: UUID, reason: str, actor: str | None) -> Op[None]:
        stored = self._require(domain, command_id)
        status = self._status(stored)
        if status is not CommandStatus.PENDING:
            refuse_cancel(status)
        entry = self._state.domain(domain).waiting.pop(stored.seq)
        if self._end_waiting(stored, entry, reason, AuditEventType.CANCELED, actor, self._clock()):
            yield Wake(domain)

    def edit_waiting(self, domain: str, command_id: UUID, edit: WaitingEdit) -> Op[None]:
        stored, now = self._require(domain, command_id), self._clock()
        status = self._status(stored)
        if status is not CommandStatus.PENDING:
            refuse_edit(status)
        entry = self._state.domain(domain).waiting.pop(stored.seq)
        due_at = edit.moment(entry.due_at, now)
        if edit.moves:
            stored.due_at = due_at
        if edit.priority is not None:
            stored.command = msgspec.structs.replace(stored.command, priority=edit.priority)
        if self._leave_gates(stored, now):
            yield Wake(domain)
        moved = Entry(entry.seq, entry.attempts, entry.crashes, entry.releases, due_at)
        self._enqueue(stored.seq, moved, now)
        yield Wake(domain, (due_at - now) / SECOND or None, stored.command.requires is not None)

    def announce(self, topic: str) -> Op[None]:
        yield Wake(topic)

    def resolve(self, domain: str, command_id: UUID, action: OperatorAction) -> Op[None]:
        stored, now = self._require(domain, command_id), self._clock()
        transition = Transition(f"operator_{action.kind}")
        status = after(self._status(stored), transition)
        parked = stored.outcome
        assert parked is not None
        counted, act = self._state.domain(domain).tally, transition.upper()
        counted[parked.status] -= 1
        counted[act] = counted.get(act, 0) + 1
        self._count(stored, parked.status, -1)
        stored.audit.append(Kept(AuditEventType(transition.upper()), now, action.details(stored.data)))
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
                stored.audit.append(Kept(kind, self._clock(), dict(details)))
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
        self._state.domain(domain).pause = Pause(reason, self._clock()) if paused else None
        if not paused:
            yield Wake(domain)
        return True

    def purge(self, domain: str | None) -> Op[int]:
        yield from ()
        state = self._state
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
            lease.members = {seq: m for seq, m in lease.members.items() if seq not in doomed}
            if not lease.members:
                del state.leases[lease_id]
        return len(doomed)


def _claimed(stored: Stored, member: Member, lease_id: int, now: int) -> Claimed:
    command = stored.command
    return Claimed(
        stored.seq,
        lease_id,
        command.domain,
        command.command_type,
        command.command_id,
        stored.data,
        command.correlation_id,
        command.causation_id,
        command.reply_to,
        command.priority,
        command.max_attempts,
        stored.created_at,
        command.tags,
        command.headers,
        member.attempt,
        member.crashes,
        member.releases,
        command.batch_id,
        now - stored.due_at,
        command.group_key is not None,
        member.chain,
    )
