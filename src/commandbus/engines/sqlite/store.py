"""The SQLite engine's commands: in, claimed, settled.

Every op here runs under the write lock, so what it reads cannot change before it writes: heads and due
ranges are taken by key range, and sequences are given out without asking row by row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from commandbus.domain.lifecycle import FINAL, CommandStatus
from commandbus.domain.moment import SECOND, Clock
from commandbus.engines.sqlite.departing import SqliteDeparting
from commandbus.engines.sqlite.documents import SqliteDocuments
from commandbus.engines.sqlite.erasing import SqliteErasing
from commandbus.engines.sqlite.failures import UniqueViolation
from commandbus.engines.sqlite.heads import expired_reply, orphan, take_head
from commandbus.engines.sqlite.lane import TransactionGone, undoable
from commandbus.engines.sqlite.limits import Routed, Waiting
from commandbus.engines.sqlite.processes import SqliteProcesses
from commandbus.engines.sqlite.queries import load_queries
from commandbus.engines.sqlite.rows import (
    Head,
    Lease,
    as_claimed,
    as_id,
    as_json,
    as_member,
    as_members,
    command_params,
    outcome_params,
)
from commandbus.errors import DuplicateCommandError, QueueFull, StoreUnavailable
from commandbus.store.batching import TOPIC as BATCHES
from commandbus.store.batching import tally
from commandbus.store.capabilities import Capabilities
from commandbus.store.deaths import plan_rescued
from commandbus.store.inserting import (
    Admitted,
    Key,
    added_by_domain,
    admit,
    check_room,
    plan_insert,
)
from commandbus.store.op import Op, Statement, Wake, repeatable, scalar
from commandbus.store.records import (
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
from commandbus.store.rescuing import StuckLeases
from commandbus.store.resolving import plan_expired
from commandbus.store.settling import (
    Member,
    OutcomeRow,
    Writes,
    chains_of,
    hand_over,
    is_recorded,
    plan,
    soonest,
)
from commandbus.store.suspects import Admission

SQL = load_queries("commands.sql")
GATES = load_queries("gates.sql")

_SEQ_MAX = 2**63 - 1
_PROMOTE_MAX = 10_000
"""Due commands promoted per claim and domain, so that a flood does not hold the lock for seconds."""

_AGAIN_SECONDS = 1.0
"""When to look again at a domain that cannot be claimed from."""


class SqliteStore(SqliteDeparting, SqliteErasing, SqliteDocuments, SqliteProcesses):
    capabilities = Capabilities(
        durable=True,
        many_processes=True,
        caller_transactions=True,
        one_machine=True,
    )

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._turn = 0
        self._stuck = StuckLeases()
        self._apart = False
        """The last claim failed over a domain: each is undone by itself, until none fails."""

    def insert(self, commands: Sequence[NewCommand], capacity: Capacity) -> Op[list[Inserted]]:
        now = self._clock()
        admitted = yield from self._admitted(commands)
        new = admitted.new
        ((last, limited),) = yield Statement(SQL.last_seq)
        first = last + 1
        gates = (yield from self._gates_of(c.domain for c in new)) if limited else {}
        try:
            pending = yield from self._check_capacity(new, capacity)
        except QueueFull:
            # A repeated send adds nothing: it is reported as a duplicate, however full the queue is.
            yield from self._name_duplicate(new, first)
            raise
        plan = plan_insert(enumerate(new, first), now, gates)
        try:
            rows = [command_params(*row) for row in plan.rows]
            yield Statement(SQL.insert_command, rows, many=True)
        except UniqueViolation:
            yield from self._name_duplicate(new, first)
            raise
        for statement, params in (
            (SQL.insert_queue, [(c.domain, c.priority, seq, due) for seq, c, _, due in plan.ready]),
            (SQL.insert_scheduled, [(c.domain, due, seq) for seq, c, _, due in plan.later]),
            (SQL.hold_key, plan.keys),
            (SQL.ensure_domain, [(domain,) for domain in plan.soonest]),
            (GATES.mark_gated, [(domain,) for domain in {domain for domain, _ in plan.gated}]),
            (GATES.ensure_partition, [tagged for tagged in plan.gated if tagged[-1] is not None]),
        ):
            if params:
                yield Statement(statement, params, many=True)
        held: dict[str, list[tuple[str, Waiting]]] = {}
        for gate, (seq, command, _, due_at) in plan.held:
            waiting = Waiting(command.priority, seq, 0, 0, 0, due_at)
            held.setdefault(command.domain, []).append((gate, waiting))
        for domain, waiting_rows in held.items():
            yield from self._hold(domain, waiting_rows, now)
        yield from plan.wakes()
        return with_pending(admitted.results, commands, pending)

    def _admitted(self, commands: Sequence[NewCommand]) -> Op[Admitted]:
        """The commands that are really to be added."""
        holders: dict[Key, UUID] = {}
        known: set[tuple[UUID, str]] = set()
        for command in commands:
            if command.unique_key is None:
                continue
            rows = yield Statement(SQL.key_holder, (command.domain, command.unique_key))
            if not rows:
                continue
            holders[command.domain, command.unique_key] = as_id(scalar(rows))
            own_id = (command.command_id.bytes, command.domain, _SEQ_MAX)
            if (yield Statement(SQL.has_id, own_id)):
                known.add((command.command_id, command.domain))
        return admit(commands, holders, known)

    def _check_capacity(self, new: Sequence[NewCommand], capacity: Capacity) -> Op[dict[str, int]]:
        """How many will be waiting in each domain, where that is counted."""
        pending: dict[str, int] = {}
        if capacity.pending_max is None:
            return pending
        for domain, count in added_by_domain(new).items():
            wanted = {"domain": domain, "limit": capacity.pending_max + 1}
            waiting = scalar((yield Statement(SQL.count_pending, wanted)))
            pending[domain] = check_room(domain, waiting, count, capacity.pending_max)
        return pending

    def _name_duplicate(self, new: Sequence[NewCommand], first: int) -> Op[None]:
        """Say which one is a duplicate; those before it in the bulk are in the table by now."""
        seen = set()
        for command in new:
            key = (command.command_id.bytes, command.domain)
            if key in seen or (yield Statement(SQL.has_id, (*key, first))):
                raise DuplicateCommandError(command.domain, command.command_id)
            seen.add(key)

    @repeatable
    def claim(self, request: ClaimRequest) -> Op[ClaimReply]:
        now = self._clock()
        rescued, stuck = 0, None
        if request.sweep:
            rescued = yield from self._reclaim(now)
            stuck = self._stuck.report()
        claimed: list[Claimed] = []
        problems: list[str] = []
        self._turn += 1
        count = len(request.domains)
        for position in range(count):
            domain = request.domains[(self._turn + position) % count]
            if request.wanted(claimed) <= 0:
                break
            before, taking = len(claimed), self._claim_in(domain, request, now, claimed)
            try:
                yield from undoable(taking) if self._apart else taking
            except StoreUnavailable:
                raise
            except Exception as error:
                if not self._apart:  # all of this claim is undone, and the next one goes on below
                    self._apart = True
                    raise
                del claimed[before:]
                problems.append(f"claims from {domain} fail: {type(error).__name__}: {error}")
        self._apart = bool(problems)
        if claimed and not request.sweep:
            return ClaimReply(claimed, None, rescued, stuck)
        wanted = {"worker": request.worker, "domains": as_json(request.domains)}
        next_one = SQL.next_due if claimed else SQL.next_moment
        moment = scalar((yield Statement(next_one, wanted)))
        due_in = None if moment is None else max(0.0, (moment - now) / SECOND)
        if problems:
            due_in = _AGAIN_SECONDS if due_in is None else max(_AGAIN_SECONDS, due_in)
            stuck = None if stuck is None else (*stuck, *problems)
        return ClaimReply(claimed, due_in, rescued, stuck)

    def _claim_in(
        self, domain: str, request: ClaimRequest, now: int, claimed: list[Claimed]
    ) -> Op[None]:
        rows = yield Statement(SQL.domain_state, (domain,))
        ((paused, gated),) = rows or ((False, False),)
        if paused:
            return
        if request.sweep:
            yield from self._promote(domain, now, gated)
        partitions = [domain]
        if gated:
            yield from self._admit(domain, request.ageing, now)
            partitions = yield from self._partitions(domain, request.tags)
        for partition in partitions:
            yield from self._claim_from(domain, partition, gated, request, now, claimed)

    def _promote(self, domain: str, now: int, gated: bool) -> Op[None]:
        due = yield Statement(SQL.due, (domain, now, _PROMOTE_MAX))
        if not due:
            return
        routed: list[Routed] = [
            (command_type, group_key, requires, Waiting(*waiting))
            for *waiting, command_type, group_key, requires in due
            if command_type is not None
        ]
        if gated:
            gates = (yield from self._gates_of([domain]))[domain]
            yield from self._route(domain, gates, routed, now)
        else:
            ready = [(domain, *waiting) for _, _, _, waiting in routed]
            yield Statement(SQL.promote, ready, many=True)
        *waiting, _, _, _ = due[-1]
        last = Waiting(*waiting)
        yield Statement(SQL.unschedule, (domain, last.available_at, last.seq))
        if len(routed) < len(due):
            seqs = [seq for _, seq, *_, command_type, _, _ in due if command_type is None]
            yield from self._audit([orphan(domain, seq, "no command") for seq in seqs], now)

    def _claim_from(
        self,
        domain: str,
        partition: str,
        gated: bool,
        request: ClaimRequest,
        now: int,
        claimed: list[Claimed],
    ) -> Op[None]:
        fit: list[Head] = []
        admission = Admission(request.suspects_beside(claimed))
        while (wanted := request.wanted(claimed) - len(fit)) > 0:
            head = yield from take_head(partition, wanted, request, admission, now)
            found = yield from self._without_unfit(domain, head, now)
            fit += found
            if len(found) == len(head):
                break
        if not fit:
            return
        chains: dict[int, int] = {}
        passed = (yield from self._passed(fit)) if gated else ()
        followers = request.spare(claimed)
        if gated and followers > 0 and request.chain:
            along = yield from self._followers(domain, fit, followers, request.chain)
            leaders = {one.seq: leader for one, leader in along}
            behind = yield from self._without_unfit(domain, [one for one, _ in along], now)
            for one in behind:
                leader = leaders[one.seq]
                chains[one.seq] = chains[leader] = leader
            fit += behind
        # A command with a unique key, or one that passed a gate, may make room at its end.
        keyed = chains.keys() | passed
        members = [as_member(head, head.seq in keyed, chains.get(head.seq, 0)) for head in fit]
        until = now + int(request.lease_seconds * SECOND)
        lease = (domain, request.worker, now, until, as_json(members))
        lease_id = scalar((yield Statement(SQL.insert_lease, lease)))
        claimed += [
            as_claimed(domain, lease_id, row, now, member)
            for row, member in zip(fit, members, strict=True)
        ]

    def _without_unfit(self, domain: str, heads: Sequence[Head], now: int) -> Op[list[Head]]:
        """Those that can be run; the others end here."""
        fit = []
        for head in heads:
            if not head.is_unfit(now):
                fit.append(head)
                continue
            if head.command_type is None:
                yield from self._park_orphan(domain, head, now)
                continue
            yield from self._end(domain, plan_expired(head.standing), now)
            if head.column("batch_id") is not None:
                yield Wake(BATCHES)
            reply_to = head.column("reply_to")
            if reply_to is not None:
                reply = expired_reply(domain, reply_to, head.command_type, head)
                yield from self.insert([reply], Capacity())
        return fit

    def _park_orphan(self, domain: str, head: Head, now: int) -> Op[None]:
        """A queue row whose command is missing or damaged: reported for operators, never in a
        worker's way."""
        seq, attempts, crashes = head.seq, head.attempts, head.crashes
        there = bool((yield Statement(SQL.has_command, (seq,))))
        audit = orphan(domain, seq, "a damaged command" if there else "no command")
        if there:
            parked = CommandStatus.IN_TROUBLESHOOTING_QUEUE
            failure = audit.details["error"]
            outcome = OutcomeRow(
                seq, parked, attempts, crashes, None, None, 0, error=failure, reason="PERMANENT"
            )
            yield from self._end_all([outcome], {seq: domain}, now)
        yield from self._audit([audit], now)

    def settle(self, batch: Sequence[Settlement]) -> Op[SettleReport]:
        now, writes = self._clock(), Writes()
        lost: list[Settlement] = []
        ids = sorted({settlement.lease_id for settlement in batch})
        rows = yield Statement(SQL.leases, (as_json(ids),))
        leases: dict[int, tuple[Lease, dict[int, Member]]] = {}
        for row in rows:
            lease = Lease(*row)
            if lease.until > now:
                leases[lease.lease_id] = (lease, as_members(lease.packed))
        domains: dict[int, str] = {}
        leaving: dict[int, dict[int, Member]] = {}
        keyed: list[int] = []
        permits: list[int] = []
        sends: list[NewCommand] = []
        batches: dict[int, UUID] = {}
        for settlement in batch:
            seq = settlement.seq
            held, members = leases.get(settlement.lease_id, (None, {}))
            member = members.get(seq)
            settled = seq in leaving.get(settlement.lease_id, ())
            if held is None or member is None or settled or member.attempt != settlement.attempt:
                lost.append(settlement)
                continue
            domains[seq] = held.domain
            if member.keyed:
                keyed.append(seq)
                if not member.chain:
                    permits.append(seq)
            plan(writes, settlement, member, held.worker, held.claimed_at)
            sends += settlement.sends
            if settlement.batch_id is not None:
                batches[seq] = settlement.batch_id
            leaving.setdefault(settlement.lease_id, {})[seq] = member
        for lease_id, gone in leaving.items():
            _, members = leases[lease_id]
            if any(member.chain for member in gone.values()):
                heirs = hand_over(chains_of(members.values()), gone)
                permits += [holder for holder, heir in heirs.items() if heir is None]
                yield from self._hand_over(heirs)
            for seq in gone:
                del members[seq]
            if members:
                params = (as_json(list(members.values())), lease_id)
                yield Statement(SQL.shrink_lease, params)
            else:
                yield Statement(SQL.delete_lease, (lease_id,))
        yield from self._write(writes, domains, keyed, permits, now)
        if batches and writes.outcomes:
            ends = [(batches.get(row.seq), row.status) for row in writes.outcomes]
            yield from self.add_batch_counts(tally(ends), writes.outcomes[0].worker or "")
        if sends:
            yield from self.insert(sends, Capacity())
        return SettleReport((yield from self._really_lost(lost)), tuple(set(batches.values())))

    def _really_lost(self, lost: Sequence[Settlement]) -> Op[tuple[int, ...]]:
        """Without those whose outcome this very lease has recorded before."""
        if not lost:
            return ()
        rows = yield Statement(SQL.recorded_leases, (as_json([s.seq for s in lost]),))
        recorded = {seq: (lease_id, status) for seq, lease_id, status in rows}
        return tuple(s.seq for s in lost if not is_recorded(s, *recorded.get(s.seq, (None, None))))

    def _reclaim(self, now: int) -> Op[int]:
        """Take back what expired leases still held: all together, and after an error each by itself,
        so that one that cannot be taken back holds up neither the others nor claims."""
        skipped = self._stuck.skipped(now / SECOND)
        expired = [
            (lease_id, *rest)
            for lease_id, *rest in (yield Statement(SQL.expired_leases, (now,)))
            if lease_id not in skipped
        ]
        if not expired and not skipped:
            self._stuck.swept((), ())
            return 0
        try:
            count = yield from undoable(self._take_back(expired, now))
            failed = list[int]()
        except TransactionGone:
            raise
        except Exception:  # whatever is wrong with one of them
            count, failed = yield from self._take_back_each(expired, now)
        self._stuck.swept(skipped, failed)
        return count

    def _take_back_each(self, expired: Sequence[Any], now: int) -> Op[tuple[int, list[int]]]:
        """Returns how many commands came back, and the leases that cannot be taken back."""
        count, failed = 0, list[int]()
        for lease in expired:
            try:
                count += yield from undoable(self._take_back([lease], now))
            except TransactionGone:
                raise
            except Exception as error:  # it is tried again later, and an operator hears of it
                lease_id, *_ = lease
                failed.append(lease_id)
                self._stuck.failed(lease_id, error, now / SECOND)
        return count, failed

    def _take_back(self, expired: Sequence[Any], now: int) -> Op[int]:
        writes = Writes()
        domains: dict[int, str] = {}
        keyed: list[int] = []
        for lease_id, domain, worker, claimed_at, packed in expired:
            death = self._witness(worker)
            for member in as_members(packed).values():
                plan_rescued(writes, member, lease_id, worker, claimed_at, death)
                domains[member.seq] = domain
                if member.keyed:
                    keyed.append(member.seq)
            yield Statement(SQL.delete_lease, (lease_id,))
        yield from self._write(writes, domains, keyed, keyed, now)
        yield from self._count_ends((row.seq, row.status) for row in writes.outcomes)
        return len(domains)

    def _write(
        self,
        writes: Writes,
        domains: dict[int, str],
        keyed: Sequence[int],
        permits: Sequence[int],
        now: int,
    ) -> Op[None]:
        """Of those that are keyed, `permits` are all that may hold the permit of a group."""
        yield from self._end_all(writes.outcomes, domains, now)
        freed = set(keyed) & {row.seq for row in writes.outcomes if row.status in FINAL}
        if freed:
            yield Statement(SQL.free_keys, (as_json(sorted(freed)),))
        ready = [row for row in writes.requeues if not row.delay]
        if ready:
            back = [(row.seq, row.attempts, row.crashes, row.releases) for row in ready]
            yield from self._route_back(back, now)
        later = [
            (now + r.delay, r.attempts, r.crashes, r.releases, r.seq)
            for r in writes.requeues
            if r.delay
        ]
        if later:
            yield Statement(SQL.reschedule, later, many=True)
        if permits:
            # After what comes back, which may be the next one of its group itself.
            yield from self._leave_gates(permits, now)
        yield from self._audit(writes.audits, now)
        for domain, due_in in soonest(writes, domains).items():
            yield Wake(domain, due_in)

    def _end_all(self, outcomes: Sequence[OutcomeRow], domains: dict[int, str], now: int) -> Op[None]:
        if not outcomes:
            return
        yield Statement(SQL.insert_outcome, [outcome_params(row, now) for row in outcomes], many=True)
        ended = Counter((domains[row.seq], row.status) for row in outcomes)
        yield Statement(SQL.add_tally, [(*key, n) for key, n in ended.items()], many=True)

    def renew(self, lease_ids: Sequence[int], seconds: float) -> Op[list[int]]:
        now, gone = self._clock(), []
        for lease_id in lease_ids:
            until = now + int(seconds * SECOND)
            if not (yield Statement(SQL.renew_lease, (until, lease_id, now))):
                gone.append(lease_id)
        return gone

    def report_progress(self, seq: int, lease_id: int, percent: float, message: str) -> Op[bool]:
        now = self._clock()
        if not (yield from self._is_held(seq, lease_id, now)):
            return False
        yield Statement(SQL.put_progress, (seq, percent, message, now))
        return True
