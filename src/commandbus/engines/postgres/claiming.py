"""Claiming commands: promote due work, open gates, put the first rows under a lease."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, get_args

import msgspec

from commandbus.domain.audit import AuditEventType
from commandbus.domain.failure import Failure, FailureKind
from commandbus.domain.lifecycle import CommandStatus
from commandbus.domain.moment import SECOND
from commandbus.domain.priority import rank
from commandbus.engines.postgres.arrays import integers, numbers, texts
from commandbus.engines.postgres.bounds import EVERYTHING, at, only
from commandbus.engines.postgres.claim_query import (
    LeaseShape,
    Received,
    Unclaimable,
    as_claimed,
    as_unclaimable,
    claim_query,
    may_hide_fresh_work,
    suspect_values,
)
from commandbus.engines.postgres.context import Context, Part
from commandbus.engines.postgres.failures import is_about_a_value
from commandbus.engines.postgres.leases import LeasedCommand, LeaseRow
from commandbus.engines.postgres.limits import Limits
from commandbus.engines.postgres.rescuing import Rescuer
from commandbus.engines.postgres.settle_query import Known
from commandbus.engines.postgres.settling import Settler
from commandbus.engines.postgres.sleepers import ASLEEP_SECONDS, look_again
from commandbus.engines.postgres.statements import Autocommit, Boundary, Listening
from commandbus.engines.postgres.templates import Values
from commandbus.errors import CommandBusError, StoreUnavailable
from commandbus.store.batching import TOPIC as BATCHES
from commandbus.store.op import Op, Rows, Statement, Wake, autocommit, scalar
from commandbus.store.reading import UNREADABLE
from commandbus.store.records import Claimed, ClaimReply, ClaimRequest, NewCommand
from commandbus.store.replies import reply_to_expired
from commandbus.store.resolving import EXPIRED, Standing, plan_expired
from commandbus.store.settling import AuditRow, OutcomeRow, Writes
from commandbus.store.suspects import NONE, SuspectLimit

logger = logging.getLogger("commandbus.postgres")

RESCUE_SECONDS = 2.0
"""So long after a rescue every sweep is followed by a look without bounds, in all processes."""


class Claimer(Part):
    """Puts commands under leases, and records for senders whether this process sleeps: they notify only
    then. The steps of a claim are methods, some of which PGMQ replaces."""

    def __init__(self, context: Context, limits: Limits, settler: Settler) -> None:
        super().__init__(context)
        self._limits, self._settler, self._rescuer = limits, settler, Rescuer(context, settler)
        self.held_by = self._rescuer.held_by
        self._queries = {
            (fresh, shape): claim_query(context.schema, fresh, shape)
            for fresh in (False, True)
            for shape in get_args(LeaseShape)
        }
        self._turn = 0

    @autocommit
    def claim(self, request: ClaimRequest) -> Op[ClaimReply]:
        """Each statement commits by itself. Each step runs only if those before it found nothing: the
        idle check; announced work, without a sweep; sweep, gates and all domains in turn; and these
        once more, when senders can know that this process sleeps."""
        if request.idle and self._can_skip_full_claim(request):
            # Without a name, so that its own leases count: when the answer to a claim is lost, nothing
            # renews its lease, and the commands come back with its end.
            moment = yield from self._next_moment(msgspec.structs.replace(request, worker=""), [])
            if moment is None or moment > SECOND:
                due_in = None if moment is None else moment / SECOND
                return ClaimReply([], due_in, 0, hears=self._hears(request))
        if request.skip_sweep and self._context.gated.isdisjoint(request.domains):
            # A worker was woken for this: one round trip less before its handler starts.
            for domain in request.domains:
                self._context.bounds.resume(domain, self._context.monotonic())
            claimed = yield from self._claim_in_turn(request, [])
            if claimed:
                yield from self._stay_awake(request.worker, claimed)
                return ClaimReply(claimed, None, 0)
        rescued, due_in = (yield from self._sweep(request)) if request.sweep else (0, None)
        stuck = self._context.stuck.report() if request.sweep else None
        gated = [domain for domain in request.domains if domain in self._context.gated]
        busy = yield from self._limits.open_gates(gated, request.ageing, patient=False)
        tagged = yield from self._limits.tagged_partitions(gated, request.tags)
        claimed = yield from self._claim_in_turn(request, tagged)
        if not claimed and busy:  # another process was opening them, and may not have seen all
            yield from self._limits.open_gates(gated, request.ageing, patient=True)
            claimed = yield from self._claim_in_turn(request, tagged)
        if claimed:
            yield from self._stay_awake(request.worker, claimed)
            return ClaimReply(claimed, due_in, rescued, stuck)
        look_in = None
        if self._context.notify:
            fell_asleep, look_in = yield from self._fall_asleep(request)
            if fell_asleep:
                # Whatever was sent before senders could know of us is visible to this claim.
                yield from self._limits.open_gates(gated, request.ageing, patient=True)
                claimed = yield from self._claim_in_turn(request, tagged)
                if claimed:
                    return ClaimReply(claimed, due_in, rescued, stuck)
        moment = yield from self._next_moment(request, [partition for _, partition in tagged])
        moments = [m for m in (moment, look_in) if m is not None]
        due_in = max(0.0, min(moments) / SECOND) if moments else None
        return ClaimReply([], due_in, rescued, stuck, self._hears(request))

    def _hears(self, request: ClaimRequest) -> bool:
        """Whether senders know that this process sleeps, and the server that it lives."""
        sleepers = self._context.sleepers
        return bool(sleepers.session) and all(map(sleepers.is_asleep, request.domains))

    def _can_skip_full_claim(self, request: ClaimRequest) -> bool:
        """Whether the time of the next look is all that an idle worker needs to ask for: it is known
        to sleep, and nothing but time can bring it work."""
        for domain in request.domains:
            if domain in self._context.gated or not self._context.sleepers.is_asleep(domain):
                return False
            self._context.sleepers.idle(domain, request.worker, self._context.monotonic())
        return True

    def _next_moment(self, request: ClaimRequest, tagged: list[str]) -> Op[int | None]:
        """In how many microseconds an idle worker should look again."""
        wanted = texts([*request.domains, *tagged])
        moment: int | None = scalar((yield Autocommit(self._sql.next_moment, (wanted, request.worker))))
        return moment

    def _claim_in_turn(self, request: ClaimRequest, tagged: list[tuple[str, str]]) -> Op[list[Claimed]]:
        """Claim from all domains of a request, beginning with another one each time; before them from
        the partitions whose commands require tags, because fewer workers can take those."""
        claimed: list[Claimed] = []
        self._turn += 1
        count = len(request.domains)
        turns = [request.domains[(self._turn + position) % count] for position in range(count)]
        failure: CommandBusError | None = None
        for domain, partition in [*tagged, *((domain, domain) for domain in turns)]:
            try:
                try:
                    yield from self._claim_from(domain, partition, request, claimed)
                except CommandBusError as error:
                    if not is_about_a_value(error):
                        raise
                    if not (yield from self._claim_each(domain, partition, request, claimed)):
                        raise
            except CommandBusError as error:
                # What was claimed before must not wait for its lease to end, and an error in one domain
                # must not keep the worker from the others.
                if isinstance(error, StoreUnavailable) and not claimed:
                    raise
                logger.warning("a claim from %s failed: %s", domain, error)
                failure = error
            if request.wanted(claimed) <= 0:
                break
        if failure is not None and not claimed:
            raise failure
        return claimed

    def _claim_from(
        self, domain: str, partition: str, request: ClaimRequest, claimed: list[Claimed]
    ) -> Op[None]:
        """Claim from one partition. Repeated when a claim within bounds found nothing, and when some of
        what it took cannot run."""
        duration = int(request.lease_seconds * SECOND)
        bounds, fresh_only = self._context.bounds, False
        while (wanted := request.wanted(claimed)) > 0:
            limit = NONE if fresh_only else request.suspects_beside(claimed)
            wanted = self._most_at_once(domain, wanted, limit)
            began = self._context.monotonic()
            ranges = None if request.priority is not None else bounds.ranges(partition, began)
            chosen = yield from self._ranges_for(request, partition, ranges, wanted, began)
            # A chain needs one lease for all of it.
            most = 0 if request.lease_per_command else request.spare(claimed)
            # Commands whose workers died return with old keys, for a look without bounds.
            fresh = fresh_only or (ranges is not None and not bounds.is_careful(domain, began))
            # A worker that has not seen the gates of a domain yet takes no members of groups along.
            shape: LeaseShape = "chains" if domain in self._context.gated else "plain"
            query = self._queries[fresh, "each" if request.lease_per_command else shape]
            values = {
                "partition": partition,
                "wanted": wanted,
                "worker": request.worker,
                "duration": duration,
                "domain": domain,
                "followers": max(0, most),
                "chain": request.chain,
                **chosen,
            }
            if not fresh:
                values |= suspect_values(limit)
            rows = yield Autocommit(query.sql, query.params(values))
            if request.priority is None:
                now = self._context.monotonic()
                bounds.looked(partition, now, now - began, everywhere=ranges is None)
            if not rows:
                if request.priority is None:
                    bounds.emptied(partition)
                if ranges is None:
                    if not may_hide_fresh_work(limit):
                        return
                    fresh_only = True
                continue
            before = len(claimed)
            received = self._receive(domain, request.worker, rows, claimed)
            bounds.took(partition, received.keys)
            if received.suspects:
                bounds.beware([domain], began)
            if limit is not None and (not limit.alone or received.suspects):
                bounds.forget(partition)  # more of them may have been left in the queue
            if request.ageing is not None:
                claimed[before:] = _by_age(claimed[before:], request.ageing)
            if not received.unclaimable:
                return
            yield from self._end_unclaimable(domain, received.unclaimable)

    def _ranges_for(
        self, request: ClaimRequest, partition: str, known: Values | None, wanted: int, began: float
    ) -> Op[Values]:
        """Where in the index a claim looks: in the ranges that are known to be enough, or everywhere;
        unless the request names a priority, or waiting makes commands more urgent."""
        if request.priority is not None:
            return only(request.priority)
        if request.ageing is not None:
            aged = yield Autocommit(self._sql.aged, (partition, request.ageing, wanted))
            if aged:
                return self._context.bounds.ranges_after(partition, began, aged)
        return known or EVERYTHING

    def _claim_each(
        self, domain: str, partition: str, request: ClaimRequest, claimed: list[Claimed]
    ) -> Op[bool]:
        """The server cannot carry out a claim because of a value in one of its rows. Claim each row by
        itself, and park the command of the bad one, so that it fails no other claim. Returns whether
        anything was claimed or parked."""
        before, parked = len(claimed), 0
        query = self._queries[False, "each" if request.lease_per_command else "plain"]
        wanted = request.wanted(claimed)
        for priority, seq in (yield Autocommit(self._sql.first_waiting, (partition, wanted))):
            if request.priority not in (None, priority):
                continue
            values = {
                "partition": partition,
                "wanted": 1,
                "worker": request.worker,
                "duration": int(request.lease_seconds * SECOND),
                "domain": domain,
                "followers": 0,
                "chain": 0,
                **at(priority, seq),
                **suspect_values(request.suspects_beside(claimed)),
            }
            try:
                rows = yield Autocommit(query.sql, query.params(values))
            except CommandBusError as error:
                if not is_about_a_value(error):
                    raise
                parked += yield from self._park_in_place(domain, (partition, priority, seq), error)
                continue
            if rows:
                received = self._receive(domain, request.worker, rows, claimed)
                yield from self._end_unclaimable(domain, received.unclaimable)
        return parked > 0 or len(claimed) > before

    def _park_in_place(
        self, domain: str, key: tuple[str, int, int], error: CommandBusError
    ) -> Op[bool]:
        """Park the command of the queue row with this primary key."""
        *_, seq = key
        failure = Failure(FailureKind.PERMANENT, UNREADABLE, f"It cannot be claimed: {error}")
        try:
            for attempts, crashes in (yield Statement(self._sql.take_place, key)):
                yield from self._park(domain, seq, attempts, failure, crashes)
            yield Boundary()
        except CommandBusError as refusal:  # by another worker meanwhile, or with the next claim
            logger.warning("queue row %d of %s is not parked yet: %s", seq, domain, refusal)
            return False
        return True

    def _park(
        self, domain: str, seq: int, attempts: int, failure: Failure, crashes: int = 0
    ) -> Op[None]:
        """A command that cannot be claimed is for an operator, who can look at it and retry it."""
        parked = CommandStatus.IN_TROUBLESHOOTING_QUEUE
        outcome = OutcomeRow(
            seq, parked, attempts, crashes, None, None, ran=0, error=failure, reason=failure.code
        )
        details = {"error": failure, "reason": failure.code}
        note = AuditRow(seq, AuditEventType.MOVED_TO_TSQ, details)
        columns = yield Statement(self._sql.columns_of, (integers([seq]),))
        known = Known({}, {seq}, {seq: batch_id for seq, _, batch_id, _ in columns})
        yield from self._settler.write(domain, None, Writes(outcomes=[outcome], audits=[note]), known)
        yield Boundary()
        logger.error("command %d of %s is parked: %s", seq, domain, failure.message)

    def _most_at_once(self, domain: str, wanted: int, limit: SuspectLimit | None) -> int:
        """How many to claim from a domain: while rescued commands wait there, no more than the worker
        can start. A claim ahead of the slots would lock suspects that it has to leave, and take fresh
        commands before them."""
        if limit is None or limit.room == 0 or domain not in self._context.bounds.rescued_to:
            return wanted
        return min(wanted, limit.room)

    def _receive(self, domain: str, worker: str, rows: Rows, claimed: list[Claimed]) -> Received:
        """Make commands under lease from rows of the query `claim`, in their order, and remember the
        lease. Rows that are expired or without a command come back as unclaimable. Works on columns,
        because a loop over rows costs twice as much."""
        columns: list[Sequence[Any]] = [*zip(*rows, strict=True)]
        (
            seqs, lease_ids, nows, priorities, attempts, crashes, releases, keyed, expired, _, leaders,
            types, *_,
        ) = columns  # fmt: skip
        keys = [*zip(priorities, seqs, strict=True)]
        chains: dict[int, int] = {}
        if any(leaders):
            keys = [key for key, leader in zip(keys, leaders, strict=True) if not leader]
            leaders = _chains(seqs, leaders)
            chains = {seq: chain for seq, chain in zip(seqs, leaders, strict=True) if chain}
        counted = [before + 1 for before in attempts]
        members = map(LeasedCommand, seqs, counted, crashes, releases, keyed, leaders, priorities)
        under: dict[int, dict[int, LeasedCommand]]
        if lease_ids[0] == lease_ids[-1]:
            under = {lease_ids[0]: dict(zip(seqs, members, strict=True))}
        else:  # each has its own
            under = {one: {member.seq: member} for one, member in zip(lease_ids, members, strict=True)}
        for lease_id, commands in under.items():
            lease = LeaseRow(lease_id, domain, worker, max(nows), 0, commands, chains)
            self._context.leases.keep(lease)
        unclaimable: list[Unclaimable] = []
        columns += (counted, leaders)
        if any(expired) or None in types:
            unclaimable = [one for row in rows if (one := as_unclaimable(row)) is not None]
            left_out = {one.seq for one in unclaimable}
            columns = [
                [value for seq, value in zip(seqs, column, strict=True) if seq not in left_out]
                for column in columns
            ]
        claimed += as_claimed(domain, columns)
        return Received(keys, any(crashes), unclaimable)

    def _end_unclaimable(self, domain: str, unclaimable: Sequence[Unclaimable]) -> Op[None]:
        for lease_id in dict.fromkeys(one.lease_id for one in unclaimable):
            under = [one for one in unclaimable if one.lease_id == lease_id]
            yield from self._end_under(domain, lease_id, under)

    def _end_under(self, domain: str, lease_id: int, ended: Sequence[Unclaimable]) -> Op[None]:
        """End expired commands as CANCELED. A queue row without a command, or of one that has ended, is
        only noted, for operators: the tables were changed by hand, and it must not be in a worker's
        way."""
        writes = Writes()
        for one in ended:
            seq, reason = one.seq, one.reason
            if reason == EXPIRED:
                standing = Standing(seq, CommandStatus.PENDING, one.attempts, one.crashes)
                expired = plan_expired(standing)
                writes.outcomes += expired.outcomes
                writes.audits += expired.audits
            elif reason == "ENDED":
                logger.warning(
                    "queue row %d of domain %s was dropped: its command has ended, and only another "
                    "program can have put it back; see who may write the tables", seq, domain,
                )  # fmt: skip
            else:
                failure = Failure(
                    FailureKind.PERMANENT,
                    "ORPHAN",
                    f"Queue row {seq} of domain {domain!r} has no command; it was changed by hand.",
                )
                writes.audits.append(AuditRow(seq, AuditEventType.MOVED_TO_TSQ, {"error": failure}))
        lease = self._context.leases.get(lease_id)
        assert lease is not None
        replies = [
            _reply_to_expired(domain, one.reply_to, one)
            for one in ended
            if one.reason == EXPIRED and one.reply_to is not None
        ]
        try:
            batches = {one.seq: one.batch_id for one in ended}
            yield from self._settler.write_under(lease, batches, writes, replies)
            if any(batch_id is not None for batch_id in batches.values()):
                yield Wake(BATCHES)
        except StoreUnavailable as error:
            # They stay under the lease and come back with its end; the rest of it is good.
            logger.warning("could not end %d expired commands: %s", len(ended), error)

    def _sweep(self, request: ClaimRequest) -> Op[tuple[int, float | None]]:
        """Returns how many were taken back, and in how many seconds more work is due."""
        params = (texts(request.domains), int(RESCUE_SECONDS * SECOND))
        ((expired, gated, promoted, due_in, rescued_to),) = yield Autocommit(self._sql.sweep, params)
        self._context.gated = (self._context.gated - set(request.domains)) | set(gated)
        for domain in promoted:
            self._context.bounds.returned(domain)
        self._context.bounds.rescued_elsewhere(request.domains, rescued_to, self._context.monotonic())
        rescued = (yield from self._rescuer.rescue()) if expired else 0
        return rescued, None if due_in is None else due_in / SECOND

    def _fall_asleep(self, request: ClaimRequest) -> Op[tuple[bool, int | None]]:
        """Record for senders that this process sleeps, if a worker here waits for notifications.
        Returns whether that is news, and in how many microseconds to look again if it was not
        possible."""
        news, look_in = False, None
        waiting = self._context.hub.armed_domains()
        if waiting and not self._context.sleepers.listening.is_set():
            yield Listening()
            # Before the look: a listener that connects from now on finds it, and wakes this worker.
            self._context.sleepers.missed = True
            if not self._context.sleepers.listening.is_set():
                return False, None
        now, epoch = self._context.monotonic(), self._context.sleepers.epoch
        for domain in request.domains:
            self._context.sleepers.idle(domain, request.worker, now)
            if domain not in waiting or self._context.sleepers.is_asleep(domain):
                continue
            duration = int(ASLEEP_SECONDS * SECOND)
            rows = yield Autocommit(self._sql.sleep, (domain, self._context.process, duration))
            if rows:
                self._context.sleepers.asleep(domain, int(scalar(rows)), epoch)
                news = True
            else:
                again = int(self._context.sleepers.refused(domain) * SECOND)
                look_in = again if look_in is None else min(again, look_in)
        return news, look_in

    def _stay_awake(self, worker: str, claimed: list[Claimed]) -> Op[None]:
        """Record that senders need not notify, once this process has been busy for a while."""
        if not self._context.notify:
            return
        now = self._context.monotonic()
        domains = {claimed[0].domain, claimed[-1].domain}
        busy = [domain for domain in domains if self._context.sleepers.found(domain, worker, now)]
        if not busy:
            return
        untils = numbers([self._context.sleepers.awake(domain) for domain in busy])
        try:
            yield Autocommit(self._sql.awaken, (texts(busy), untils, self._context.process))
        except StoreUnavailable as error:
            logger.debug("could not say that %s is busy: %s", busy, error)
        look_again(self._context.hub, busy)


def _chains(seqs: Sequence[int], leaders: Sequence[int]) -> tuple[int, ...]:
    """The chain of each command: its leader's number; that of a leader is its own."""
    known = set(leaders)
    return tuple([seq if seq in known else leader for seq, leader in zip(seqs, leaders, strict=True)])


def _by_age(claimed: Sequence[Claimed], ageing: int) -> list[Claimed]:
    """By priority and by how long they have been due. In a group only the priority counts."""

    def place(one: Claimed) -> tuple[bool, int, int]:
        if one.follows:
            return True, one.priority, one.seq
        return False, rank(one.priority, -one.age, ageing), one.seq

    return sorted(claimed, key=place)


def _reply_to_expired(domain: str, reply_to: str, one: Unclaimable) -> NewCommand:
    assert one.command_id is not None
    assert one.command_type is not None
    return reply_to_expired(
        reply_to,
        command_id=one.command_id,
        domain=domain,
        command_type=one.command_type,
        correlation_id=one.correlation_id or one.command_id,
    )
