"""Recording what runs amounted to, over PGMQ: the same settle, proved by its messages, too.

A message belongs to a lease as long as it has the read count that the lease gave it: the count is the
attempt. Whoever reads it again, in whatever program, raises the count, and what was prepared with the
old one is refused. A completed command's message is deleted; that of any other end is archived.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from commandbus.domain.audit import AuditEventType
from commandbus.domain.lifecycle import CommandStatus
from commandbus.domain.moment import SECOND
from commandbus.engines.postgres.arrays import integers, numbers, texts
from commandbus.engines.postgres.failures import MessagesMoved
from commandbus.engines.postgres.leases import Held
from commandbus.engines.postgres.pgmq.base import Place
from commandbus.engines.postgres.pgmq.queues import GRACE_SECONDS
from commandbus.engines.postgres.pgmq.sending import PgmqSending
from commandbus.engines.postgres.settling import (
    UNPROVED,
    Known,
    PostgresSettling,
    Prepared,
    as_json,
)
from commandbus.engines.postgres.statements import Atomic, Boundary
from commandbus.store.op import Op, Statement, autocommit
from commandbus.store.settling import Member, OutcomeRow, Writes

logger = logging.getLogger("commandbus.pgmq")

DELETE, ARCHIVE, RETURN = 0, 1, 2

MESSAGE_GONE = "MESSAGE_GONE"
"""In the audit: another program removed the message of a command that was under a lease."""

QUICK_MIN = 10
"""From so many on it pays to delete messages without a look at them first."""

Fate = tuple[int, int, int, int, int, int]
"""proof, sequence, queue, message, read count, and what becomes of the message"""


class HeldMessages(Held, frozen=True):
    """A lease, with the messages under it by sequence."""

    places: dict[int, Place] = msgspec.field(default_factory=dict)


class PgmqSettling(PgmqSending, PostgresSettling):
    def _send_prepared(self, built: Prepared, kind: type[Statement]) -> Op[set[int]]:
        """First as if everything were as it was last seen, which is cheap; undone, with a look."""
        if kind is Atomic and len(built.proofs) >= QUICK_MIN:
            built.doubted = False
            try:
                return (yield from super()._send_prepared(built, kind))
            except MessagesMoved:
                # In a transaction of somebody else's nothing can follow; if it is tried again, the
                # leases are read from the server.
                self._leases.forget(built.shrinks)
                built.doubted = True
        return (yield from super()._send_prepared(built, kind))

    def _transport(self, prepared: Prepared) -> Op[tuple[str, tuple[Any, ...]]]:
        if not prepared.doubted:
            quick = self._deletes(prepared)
            if quick is not None:
                return quick
        fates = yield from self._fates(prepared)
        if not fates and prepared.writes.requeues:
            # An operator's retry: the message is in the archive, and `_write` sends another.
            return self._sql.settle, ()
        queues = self._queues.among(fate[2] for fate in fates)
        lock = len({fate[4] for fate in fates}) > 1
        columns = tuple(integers(fate[n] for fate in fates) for n in range(6))
        return self._texts.settle(queues, lock=lock), columns

    def _deletes(self, prepared: Prepared) -> tuple[str, tuple[Any, ...]] | None:
        """What settles completed commands of one attempt, if that is all there is."""
        writes, by_queue = prepared.writes, dict[int, list[int]]()
        if writes.requeues or any(row.status != CommandStatus.COMPLETED for row in writes.outcomes):
            return None
        attempts = {row.attempts for row in writes.outcomes}
        if len(attempts) != 1:
            return None
        for row in writes.outcomes:
            held = prepared.shrinks[prepared.proofs[row.seq]].held
            if not isinstance(held, HeldMessages):
                return None
            queue_id, msg_id = held.places[row.seq]
            by_queue.setdefault(queue_id, []).append(msg_id)
        queues = self._queues.among(by_queue)
        if len(queues) < len(by_queue):
            return None
        params = (
            texts(integers(by_queue[queue.queue_id]) for queue in queues),
            attempts.pop(),
            len(prepared.shrinks),
            len(writes.outcomes),
        )
        return self._texts.settle_quickly(queues), params

    def _fates(self, prepared: Prepared) -> Op[list[Fate]]:
        """What becomes of the messages of what is written."""
        decided = [(row.seq, row.attempts, _fate_of(row)) for row in prepared.writes.outcomes]
        decided += [(row.seq, row.attempts, RETURN) for row in prepared.writes.requeues]
        places: dict[int, Place] = {}
        for shrink in prepared.shrinks.values():
            if isinstance(shrink.held, HeldMessages):
                places |= shrink.held.places
        unknown = [seq for seq, _, _ in decided if seq not in places]
        if unknown:
            places = places | (yield from self._places(unknown))
        fates: list[Fate] = []
        for seq, attempts, fate in decided:
            proof, place = prepared.proofs[seq], places.get(seq)
            if place is None:
                continue
            if proof != UNPROVED:
                read_count = prepared.shrinks[proof].held.seats[seq][0]
                fates.append((proof, seq, *place, read_count, fate))
            elif attempts or fate != RETURN:
                fates.append((proof, seq, *place, attempts, fate))
        return fates

    def _write(self, domain: str, worker: str | None, writes: Writes, known: Known) -> Op[None]:
        yield from super()._write(domain, worker, writes, known)
        if any(row.attempts == 0 for row in writes.requeues):
            yield from self._take_over([domain])

    def _take_over(self, domains: Sequence[str], *, with_payload: bool = True) -> Op[None]:
        """Messages for what waits in the engine's own table: retried by an operator, or sent by a
        program that does not know of PGMQ."""
        rows = yield Statement(self._plain.take_over, (texts(domains),))
        if rows:
            kinds = {(row[5], row[6], row[7]) for row in rows}
            state = (integers(row[n] for row in rows) for n in range(5))
            yield from self._put(kinds, *state, with_payload=with_payload)

    def _still_held(self, members: list[Member]) -> Op[list[Member]]:
        yield from self._look_up(None)
        attempts = {member.seq: member.attempt for member in members}
        held = yield from self._as_read(attempts)
        missing = [member for member in members if member.seq not in held]
        restored = (yield from self._restore(missing, UNPROVED)) if missing else ()
        return [member for member in members if member.seq in held or member.seq in restored]

    def _restore(self, members: Sequence[Member], lease_id: int) -> Op[set[int]]:
        """Send again what has no message any more and no outcome, with the read count that it had, so
        that it belongs to its lease as before. What was read again belongs to its new reader."""
        by_seq = {member.seq: member for member in members}
        gone = yield self._gone(by_seq, lease_id)
        state = []
        for seq, until, command_id, domain, _, _ in gone:
            member = by_seq[seq]
            visible = None if until is None else until + GRACE_SECONDS * SECOND
            state.append((seq, visible, member.attempt, member.crashes, member.releases))
            logger.warning(
                "the message of command %s is gone from its queue without an outcome; it is sent again",
                command_id,
            )
            details = as_json({"attempt": member.attempt, "reason": MESSAGE_GONE})
            note = (command_id, domain, AuditEventType.RELEASED, details, False)
            yield Statement(self._sql.note, note)
        if gone:
            kinds = {tuple(row[3:]) for row in gone}
            yield from self._put(kinds, *(numbers(row[n] for row in state) for n in range(5)))
        return {row[0] for row in gone}

    def _gone(self, seqs: Iterable[int], lease_id: int) -> Atomic:
        """Which of these commands have no message any more and no outcome, under this lease or none."""
        queues = self._queues.all()
        params = integers(seqs), lease_id, integers(queue.queue_id for queue in queues)
        return Atomic(self._texts("gone", queues), params)

    def _as_read(self, attempts: Mapping[int, int]) -> Op[dict[int, Place]]:
        """Those of commands whose messages have been read so many times, and not once more."""
        places = yield from self._places(list(attempts))
        if not places:
            return {}
        rows = [(seq, *place, attempts[seq]) for seq, place in places.items()]
        queues = self._queues.among(row[1] for row in rows)
        columns = tuple(integers(row[n] for row in rows) for n in range(4))
        found = (yield Statement(self._texts("as_read", queues), columns)) if queues else ()
        return {row[0]: places[row[0]] for row in found}

    def _keep_found(self, held: Held) -> Op[None]:
        """Only messages that are still as this lease read them belong to it."""
        attempts = {seq: seat[0] for seq, seat in held.seats.items()}
        places = yield from self._as_read(attempts)
        missing = [Member(seq, *seat[:4]) for seq, seat in held.seats.items() if seq not in places]
        if missing and (yield from self._restore(missing, held.lease_id)):
            places = yield from self._as_read(attempts)
        seats = {seq: seat for seq, seat in held.seats.items() if seq in places}
        self._leases.keep(with_places(held, seats, places))

    @autocommit
    def renew(self, lease_ids: Sequence[int], seconds: float) -> Op[list[int]]:
        wanted = sorted(lease_ids)
        unknown = [n for n in wanted if not isinstance(self._leases.get(n), HeldMessages)]
        if unknown:
            yield from self._recall(unknown)
            yield Boundary()
        rows: list[tuple[int, int, int, int, int]] = []
        for lease_id in wanted:
            held = self._leases.get(lease_id)
            if isinstance(held, HeldMessages):
                rows += [(lease_id, *held.places[s], seat[0], s) for s, seat in held.seats.items()]
        queues = self._queues.among(row[1] for row in rows)
        if not queues:
            return (yield from super().renew(lease_ids, seconds))
        columns = [integers(row[n] for row in rows) for n in range(5)]
        duration = int(seconds * SECOND)
        found = yield Atomic(self._texts("renew", queues), (integers(wanted), duration, *columns))
        renewed = {row[0] for row in found}
        gone = [lease_id for lease_id in lease_ids if lease_id not in renewed]
        self._leases.forget(gone)
        return gone


def with_places(held: Held, seats: dict[int, Any], places: dict[int, Place]) -> HeldMessages:
    return HeldMessages(
        held.lease_id, held.domain, held.worker, held.claimed_at, held.version, seats, places=places
    )


def _fate_of(row: OutcomeRow) -> int:
    return DELETE if row.status == CommandStatus.COMPLETED else ARCHIVE
