"""Recording the outcomes of runs over PGMQ: the same settle, proved by its messages, too.

A message belongs to a lease as long as it has the read count that the lease gave it: the count is the
attempt. A program that reads it again raises the count, and what was prepared with the
old one is refused. A completed command's message is deleted; that of any other end is archived.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from commandbus.domain.audit import AuditEventType
from commandbus.domain.lifecycle import CommandStatus
from commandbus.domain.moment import SECOND
from commandbus.engines.postgres.arrays import integers, texts
from commandbus.engines.postgres.context import Context
from commandbus.engines.postgres.failures import MessagesMoved
from commandbus.engines.postgres.leases import LeasedCommand, LeaseRow
from commandbus.engines.postgres.pgmq.base import Kind, Messages, Place, Waiting
from commandbus.engines.postgres.pgmq.queues import FATES, GRACE_SECONDS, MEMBERS
from commandbus.engines.postgres.receipts import Folded
from commandbus.engines.postgres.sending import Sender
from commandbus.engines.postgres.settle_query import (
    UNPROVED,
    Known,
    Prepared,
    as_json,
    settle_values,
)
from commandbus.engines.postgres.settling import Settler
from commandbus.engines.postgres.statements import Autocommit, Boundary
from commandbus.engines.postgres.templates import Query, Values
from commandbus.store.op import Op, Statement, autocommit
from commandbus.store.settling import Member, OutcomeRow, Writes

logger = logging.getLogger("commandbus.pgmq")

DELETE, ARCHIVE, RETURN = 0, 1, 2

MESSAGE_GONE = "MESSAGE_GONE"
"""In the audit: another program removed the message of a command that was under a lease."""

QUICK_MIN = 10
"""From so many on it pays to delete messages without a look at them first."""


class Fate(NamedTuple):
    """What becomes of a message, and the lease that proves it."""

    proof: int
    seq: int
    queue_id: int
    msg_id: int
    read_count: int
    fate: int


class LeaseMessages(LeaseRow, frozen=True):
    """A lease, with the messages under it by sequence."""

    places: dict[int, Place] = msgspec.field(default_factory=dict)


class PgmqSettler(Settler):
    def __init__(self, context: Context, sender: Sender, messages: Messages) -> None:
        super().__init__(context, sender)
        self._messages = messages

    def _write_prepared(self, prepared: Prepared) -> Op[set[int]]:
        """First as if everything were as it was last seen, which is cheap; undone, with a look."""
        in_transaction = prepared.locked or prepared.sends
        if len(prepared.proofs) >= QUICK_MIN and not in_transaction:
            prepared.trusts_counts = True
            try:
                return (yield from super()._write_prepared(prepared))
            except MessagesMoved:
                # In a caller's transaction nothing can follow; if it is tried again, the
                # leases are read from the server.
                self._context.leases.forget(prepared.leases)
                prepared.trusts_counts = False
        return (yield from super()._write_prepared(prepared))

    def _statement(self, prepared: Prepared) -> Op[tuple[Query, Values]]:
        if prepared.trusts_counts:
            quick = self._deletes(prepared)
            if quick is not None:
                return quick
        fates = yield from self._fates(prepared)
        # As rows: a message may be read again after this statement has looked at it. Then its reader
        # and this worker can both end the command, with rows: the primary key refuses one of them.
        folded = Folded((), prepared.writes.outcomes)
        values = settle_values(prepared, folded, self._context.notify, "all")
        if not fates and prepared.writes.requeues:
            # An operator's retry: the message is in the archive, and `write` sends another.
            return self._queries["all"], values
        queues = self._messages.queues.among(fate.queue_id for fate in fates)
        lock = len({fate.read_count for fate in fates}) > 1
        values |= FATES(
            proof=[fate.proof for fate in fates],
            seq=[fate.seq for fate in fates],
            queue_id=[fate.queue_id for fate in fates],
            msg_id=[fate.msg_id for fate in fates],
            read_ct=[fate.read_count for fate in fates],
            fate=[fate.fate for fate in fates],
        )
        return self._messages.texts.settle(queues, lock=lock), values

    def _deletes(self, prepared: Prepared) -> tuple[Query, Values] | None:
        """What settles completed commands of one attempt, if that is all there is."""
        writes, by_queue = prepared.writes, dict[int, list[int]]()
        if writes.requeues or any(row.status != CommandStatus.COMPLETED for row in writes.outcomes):
            return None
        attempts = {row.attempts for row in writes.outcomes}
        if len(attempts) != 1:
            return None
        for row in writes.outcomes:
            lease = prepared.leases[prepared.proofs[row.seq]]
            if not isinstance(lease, LeaseMessages):
                return None
            queue_id, msg_id = lease.places[row.seq]
            by_queue.setdefault(queue_id, []).append(msg_id)
        queues = self._messages.queues.among(by_queue)
        if len(queues) < len(by_queue):
            return None
        folded = prepared.folded()
        extent = prepared.extent(folded)
        values = settle_values(prepared, folded, self._context.notify, extent) | {
            "deleted": texts(integers(by_queue[queue.queue_id]) for queue in queues),
            "read_count": attempts.pop(),
            "leases": len(prepared.leases),
            "messages": len(writes.outcomes),
        }
        return self._messages.texts.settle_quickly(queues, extent), values

    def _fates(self, prepared: Prepared) -> Op[list[Fate]]:
        """What becomes of the messages of what is written."""
        decided = [(row.seq, row.attempts, _fate_of(row)) for row in prepared.writes.outcomes]
        decided += [(row.seq, row.attempts, RETURN) for row in prepared.writes.requeues]
        places: dict[int, Place] = {}
        for lease in prepared.leases.values():
            if isinstance(lease, LeaseMessages):
                places |= lease.places
        unknown = [seq for seq, _, _ in decided if seq not in places]
        if unknown:
            places = places | (yield from self._messages.places(unknown))
        fates: list[Fate] = []
        for seq, attempts, fate in decided:
            proof, place = prepared.proofs[seq], places.get(seq)
            if place is None:
                continue
            if proof != UNPROVED:
                read_count = prepared.leases[proof].commands[seq].attempt
                fates.append(Fate(proof, seq, *place, read_count, fate))
            elif (read_count := prepared.known.deliveries.get(seq, attempts)) or fate != RETURN:
                fates.append(Fate(proof, seq, *place, read_count, fate))
        return fates

    def write(self, domain: str, worker: str | None, writes: Writes, known: Known) -> Op[None]:
        yield from super().write(domain, worker, writes, known)
        if any(not (row.attempts or known.deliveries.get(row.seq)) for row in writes.requeues):
            yield from self._messages.take_over([domain])

    def still_held(self, members: list[Member]) -> Op[list[Member]]:
        yield from self._messages.look_up(None)
        attempts = {member.seq: member.attempt for member in members}
        held = yield from self._messages.as_read(attempts)
        missing = [member for member in members if member.seq not in held]
        restored = (yield from self._restore(missing, UNPROVED)) if missing else ()
        return [member for member in members if member.seq in held or member.seq in restored]

    def _restore(self, members: Sequence[Member], lease_id: int) -> Op[set[int]]:
        """Send again what has no message any more and no outcome, with the read count that it had, so
        that it belongs to its lease as before. What was read again belongs to its new reader."""
        by_seq = {member.seq: member for member in members}
        gone = yield self._messages.gone(by_seq, lease_id)
        waiting: list[Waiting] = []
        kinds: set[Kind] = set()
        for seq, until, command_id, domain, priority, command_type in gone:
            member = by_seq[seq]
            visible = None if until is None else until + GRACE_SECONDS * SECOND
            waiting.append(Waiting(seq, visible, member.attempt, member.crashes, member.releases))
            kinds.add((domain, priority, command_type))
            logger.warning(
                "the message of command %s is gone from its queue without an outcome; it is sent again",
                command_id,
            )
            details = as_json({"attempt": member.attempt, "reason": MESSAGE_GONE})
            note = (command_id, domain, AuditEventType.RELEASED, details, False)
            yield Statement(self._sql.note, note)
        if waiting:
            yield from self._messages.put(kinds, waiting)
        return {one.seq for one in waiting}

    def _remember(self, lease: LeaseRow) -> Op[None]:
        """Only messages that are still as this lease read them belong to it."""
        attempts = {seq: one.attempt for seq, one in lease.commands.items()}
        places = yield from self._messages.as_read(attempts)
        missing = [one for seq, one in lease.commands.items() if seq not in places]
        if missing and (yield from self._restore(missing, lease.lease_id)):
            places = yield from self._messages.as_read(attempts)
        commands = {seq: one for seq, one in lease.commands.items() if seq in places}
        self._context.leases.keep(with_places(lease, commands, places))

    @autocommit
    def renew(self, lease_ids: Sequence[int], seconds: float) -> Op[list[int]]:
        wanted = sorted(lease_ids)
        unknown = [n for n in wanted if not isinstance(self._context.leases.get(n), LeaseMessages)]
        if unknown:
            yield from self._recall(unknown)
            yield Boundary()
        under: list[tuple[int, LeasedCommand, Place]] = []
        for lease_id in wanted:
            lease = self._context.leases.get(lease_id)
            if isinstance(lease, LeaseMessages):
                under += [(lease_id, one, lease.places[s]) for s, one in lease.commands.items()]
        queues = self._messages.queues.among(place.queue_id for _, _, place in under)
        if not queues:
            return (yield from super().renew(lease_ids, seconds))
        values = MEMBERS(
            lease_id=[lease_id for lease_id, _, _ in under],
            queue_id=[place.queue_id for _, _, place in under],
            msg_id=[place.msg_id for _, _, place in under],
            read_ct=[one.attempt for _, one, _ in under],
            seq=[one.seq for _, one, _ in under],
        )
        values |= {"leases": integers(wanted), "duration": int(seconds * SECOND)}
        query = self._messages.texts.renew(queues)
        found = yield Autocommit(query.sql, query.params(values))
        renewed = {lease_id for (lease_id,) in found}
        gone = [lease_id for lease_id in lease_ids if lease_id not in renewed]
        self._context.leases.forget(gone)
        return gone


def with_places(
    lease: LeaseRow, commands: dict[int, LeasedCommand], places: dict[int, Place]
) -> LeaseMessages:
    return LeaseMessages(
        lease.lease_id, lease.domain, lease.worker, lease.claimed_at, lease.version, commands,
        places=places,
    )  # fmt: skip


def _fate_of(row: OutcomeRow) -> int:
    return DELETE if row.status == CommandStatus.COMPLETED else ARCHIVE
