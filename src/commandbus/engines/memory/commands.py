"""The memory engine's commands: the port's contract on dictionaries and heaps.

Its session holds a lock around each op. What commits by itself checks everything before it changes
anything; what other ops are composed of notes in the journal what it changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from operator import attrgetter
from uuid import UUID

import msgspec

from commandbus.domain.batch import BatchCounts
from commandbus.domain.command import Progress
from commandbus.domain.lifecycle import (
    FINAL,
    CommandStatus,
)
from commandbus.domain.moment import SECOND, Clock, as_datetime
from commandbus.engines.memory.batches import MemoryBatches
from commandbus.engines.memory.documents import MemoryDocuments
from commandbus.engines.memory.journal import Journal
from commandbus.engines.memory.limits import MemoryGates
from commandbus.engines.memory.processes import MemoryProcesses
from commandbus.engines.memory.reads import MemoryReads
from commandbus.engines.memory.state import Domain, Entry, Lease, State, Stored
from commandbus.store.batching import TOPIC as BATCHES
from commandbus.store.batching import tally
from commandbus.store.capabilities import Capabilities
from commandbus.store.deaths import KEPT_SECONDS, HeldCommand, Witness, plan_rescued, unknown_death
from commandbus.store.inserting import Key, added_by_domain, admit, check_room, plan_insert
from commandbus.store.op import Op, Wake, autocommit
from commandbus.store.records import (
    CLAIMED,
    Capacity,
    Claimed,
    ClaimReply,
    ClaimRequest,
    Inserted,
    NewCommand,
    Settlement,
    SettleReport,
    with_pending,
)
from commandbus.store.replies import replies_to_expired
from commandbus.store.rescuing import StuckLeases
from commandbus.store.resolving import Standing, plan_expired
from commandbus.store.settling import (
    Member,
    OutcomeRow,
    Writes,
    chains_of,
    hand_over,
    is_recorded,
    plan,
)
from commandbus.store.suspects import Admission
from commandbus.store.trail import Kept


class MemoryCommands(MemoryReads, MemoryDocuments, MemoryBatches, MemoryProcesses, MemoryGates):
    capabilities = Capabilities(
        durable=False,
        many_processes=False,
        caller_transactions=False,
        one_machine=True,
    )

    def __init__(self, clock: Clock) -> None:
        super().__init__(State(), clock)
        self._turn = 0
        self._stuck = StuckLeases()
        self._witness: Witness = unknown_death

    @property
    def journal(self) -> Journal:
        return self._state.journal

    @autocommit
    def insert(self, commands: Sequence[NewCommand], capacity: Capacity) -> Op[list[Inserted]]:
        now = self._clock()
        admitted = admit(commands, *self._known(commands))
        pending = self._check_capacity(admitted.new, capacity)
        first = self._state.last_seq + 1
        plan = plan_insert(enumerate(admitted.new, first), now, {})
        for row in plan.rows:
            self._add(*row)
        yield from plan.wakes()
        return with_pending(admitted.results, commands, pending)

    def _known(self, commands: Sequence[NewCommand]) -> tuple[dict[Key, UUID], set[tuple[UUID, str]]]:
        """The holders of the unique keys of commands, and which of them were sent before."""
        state = self._state
        holders: dict[Key, UUID] = {}
        known: set[tuple[UUID, str]] = set()
        for command in commands:
            domain, command_id = command.domain, command.command_id
            if domain in state.by_id.get(command_id, ()):
                known.add((command_id, domain))
            if command.unique_key is not None:
                held = state.unique.get((domain, command.unique_key))
                if held:
                    holders[domain, command.unique_key] = state.commands[held].command.command_id
        return holders, known

    def _check_capacity(self, new: Sequence[NewCommand], capacity: Capacity) -> dict[str, int]:
        """How many will be waiting in each domain, where that is counted."""
        if capacity.pending_max is None:
            return {}
        return {
            name: check_room(name, len(self._state.look_at(name).waiting), count, capacity.pending_max)
            for name, count in added_by_domain(new).items()
        }

    def _add(self, seq: int, command: NewCommand, now: int, due_at: int) -> None:
        state = self._state
        state.last_seq = seq
        state.commands[seq] = Stored(seq, command, now, due_at, command.data)
        state.by_id.setdefault(command.command_id, {})[command.domain] = seq
        if command.unique_key is not None:
            state.unique[command.domain, command.unique_key] = seq
        if state.journal.active:
            state.journal.note(lambda: self._forget(seq))
        self._enqueue(seq, Entry(seq, 0, 0, 0, due_at), now)

    def _forget(self, seq: int) -> None:
        """As if it had never been sent."""
        state, command = self._state, self._state.commands.pop(seq).command
        known = state.by_id[command.command_id]
        del known[command.domain]
        if not known:
            del state.by_id[command.command_id]
        if command.unique_key is not None:
            del state.unique[command.domain, command.unique_key]

    def _enqueue(self, seq: int, entry: Entry, now: int) -> None:
        command = self._state.commands[seq].command
        domain = self._state.domain(command.domain)
        if self._state.journal.active:
            self._state.journal.entry(domain.waiting, seq)
        domain.waiting[seq] = entry
        if entry.due_at <= now:
            self._route(domain, self._state.commands[seq], entry, now)
        else:
            domain.heaps.push(command.priority, seq, entry, entry.due_at, now)

    @autocommit
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
        domain.note_all(self.journal)
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
            self.journal.entry(self._state.leases, lease_id)
            self._state.leases[lease_id] = Lease(name, request.worker, now, until, members)
            noting = self.journal.active
            for member in members.values():
                stored = self._state.commands[member.seq]
                if noting:
                    self.journal.fields(stored, "lease_id")
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
            standing = Standing(seq, CommandStatus.PENDING, entry.attempts, entry.crashes)
            self._carry_out(stored, plan_expired(standing), now)
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
        if any(settlement.sends for settlement in batch):
            return self._settle_and_send(batch)
        return self._settle(batch)

    def _settle_and_send(self, batch: Sequence[Settlement]) -> Op[SettleReport]:
        """Not marked: a follow-up whose id is taken undoes the outcomes, too."""
        return (yield from self._settle(batch))

    @autocommit
    def _settle(self, batch: Sequence[Settlement]) -> Op[SettleReport]:
        now, writes = self._clock(), Writes()
        lost: list[int] = []
        sends: list[NewCommand] = []
        touched: set[UUID] = set()
        leaving: dict[int, set[int]] = {}
        for settlement in batch:
            lease = self._state.leases.get(settlement.lease_id)
            member = lease.members.get(settlement.seq) if lease and lease.until > now else None
            if settlement.seq in leaving.get(settlement.lease_id, ()):
                member = None
            if lease is None or member is None or member.attempt != settlement.attempt:
                stored = self._state.commands.get(settlement.seq)
                known = stored.outcome if stored else None
                if known is None or not is_recorded(settlement, known.lease_id, known.status):
                    lost.append(settlement.seq)
                continue
            plan(writes, settlement, member, lease.worker, lease.claimed_at)
            sends += settlement.sends
            if settlement.batch_id is not None:
                touched.add(settlement.batch_id)
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
        self.journal.contents(lease.members)
        self.journal.entry(self._state.leases, lease_id)
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
            self.journal.entry(leases, lease_id)
            lease, writes = leases.pop(lease_id), Writes()
            death = self._witness(lease.worker)
            for member in lease.members.values():
                plan_rescued(writes, member, lease_id, lease.worker, lease.claimed_at, death)
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
            self._keep(self._state.commands[audit.seq], Kept(audit.kind, now, details))
        for outcome in writes.outcomes:
            if self._end(self._state.commands[outcome.seq], outcome, now):
                yield Wake(self._state.commands[outcome.seq].command.domain)
        for row in writes.requeues:
            stored = self._state.commands[row.seq]
            self.journal.fields(stored, "lease_id")
            stored.lease_id = None
            if self._leave_gates(stored, now):
                yield Wake(stored.command.domain)
            entry = Entry(row.seq, row.attempts, row.crashes, row.releases, now + row.delay)
            self._enqueue(row.seq, entry, now)
            due_in, everyone = row.delay / SECOND or None, stored.command.requires is not None
            yield Wake(stored.command.domain, due_in, everyone)

    def _keep(self, stored: Stored, kept: Kept) -> None:
        stored.audit.append(kept)
        self.journal.note(stored.audit.pop)

    def _end(self, stored: Stored, outcome: OutcomeRow, now: int) -> bool:
        """Record an outcome; whether that let others pass a gate."""
        domain, journal = self._state.domain(stored.command.domain), self._state.journal
        if journal.active:
            journal.fields(stored, "outcome", "finished_at", "lease_id")
            journal.entry(domain.tally, outcome.status)
        stored.outcome, stored.finished_at, stored.lease_id = outcome, now, None
        domain.tally[outcome.status] = domain.tally.get(outcome.status, 0) + 1
        self._count(stored, outcome.status)
        if stored.command.unique_key is not None and outcome.status in FINAL:
            key = (stored.command.domain, stored.command.unique_key)
            if self._state.unique.get(key) == stored.seq:
                journal.entry(self._state.unique, key)
                del self._state.unique[key]
        return self._leave_gates(stored, now)

    def _count(self, stored: Stored, status: CommandStatus, sign: int = 1) -> None:
        for batch_id, added in tally([(stored.command.batch_id, status)], sign).items():
            before = self._state.batches.get(batch_id, BatchCounts())
            self.journal.entry(self._state.batches, batch_id)
            self._state.batches[batch_id] = before.plus(added)

    def _carry_out(self, stored: Stored, writes: Writes, now: int) -> bool:
        """Write about a command that no worker runs; whether its end made room for others."""
        for note in writes.audits:
            self._keep(stored, Kept(note.kind, now, note.details))
        made_room = False
        for outcome in writes.outcomes:
            made_room |= self._end(stored, outcome, now)
        return made_room

    @autocommit
    def renew(self, lease_ids: Sequence[int], seconds: float) -> Op[list[int]]:
        yield from ()
        now, gone = self._clock(), []
        for lease_id in lease_ids:
            lease = self._state.leases.get(lease_id)
            if lease is None or lease.until <= now:
                gone.append(lease_id)
            else:
                self.journal.fields(lease, "until")
                lease.until = max(lease.until, now + int(seconds * SECOND))
        return gone

    def consult(self, witness: Witness) -> None:
        self._witness = witness

    def held_by(self, worker: str) -> Op[list[HeldCommand]]:
        yield from ()
        held: list[HeldCommand] = []
        for lease_id, lease in self._state.leases.items():
            if lease.worker == worker:
                self.journal.fields(lease, "until")
                lease.until = max(lease.until, self._clock() + int(KEPT_SECONDS * SECOND))
                held += [
                    (lease_id, member, self._state.commands[member.seq].command.batch_id)
                    for member in lease.members.values()
                ]
        return held

    @autocommit
    def report_progress(self, seq: int, lease_id: int, percent: float, message: str) -> Op[bool]:
        yield from ()
        now, lease = self._clock(), self._state.leases.get(lease_id)
        if lease is None or lease.until <= now or seq not in lease.members:
            return False
        stored = self._state.commands[seq]
        self.journal.fields(stored, "progress")
        stored.progress = Progress(percent, message, as_datetime(now))
        return True


_claimed_columns = attrgetter(*(column.name for column in CLAIMED))


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
        command.priority,
        stored.created_at,
        member.attempt,
        member.crashes,
        member.releases,
        now - stored.due_at,
        command.group_key is not None,
        member.chain,
        *_claimed_columns(command),
    )
