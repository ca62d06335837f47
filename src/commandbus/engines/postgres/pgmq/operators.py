"""Operator actions over PGMQ: a waiting command is a message that is moved, deleted or sent again."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from commandbus.domain.lifecycle import refuse_edit
from commandbus.domain.moment import SECOND
from commandbus.engines.postgres.arrays import integers
from commandbus.engines.postgres.arriving import Arrivals
from commandbus.engines.postgres.batches import Batches
from commandbus.engines.postgres.context import Context
from commandbus.engines.postgres.erasing import Eraser
from commandbus.engines.postgres.operators import Operators
from commandbus.engines.postgres.pgmq.base import Messages, Waiting
from commandbus.engines.postgres.rows import StandingRow
from commandbus.engines.postgres.settle_query import UNPROVED
from commandbus.engines.postgres.settling import Settler
from commandbus.engines.postgres.statements import ORIGIN
from commandbus.errors import ConfigurationError
from commandbus.store.moving import Moving
from commandbus.store.op import Op, Read, Statement, Wake, scalar
from commandbus.store.records import WaitingEdit


class PgmqOperators(Operators):
    def __init__(
        self, context: Context, settler: Settler, batches: Batches, messages: Messages
    ) -> None:
        super().__init__(context, settler, batches)
        self._messages = messages

    def _standing(self, domain: str, command_id: UUID) -> Op[StandingRow]:
        standing = yield from super()._standing(domain, command_id)
        seq = standing.seq
        if standing.status is not None or standing.waits:
            return standing
        place = (yield from self._messages.places([seq])).get(seq)
        queue = None if place is None else self._messages.queues.get(place.queue_id)
        if place is None or queue is None:
            return standing
        # Locked first: a claim that took it before has its lease on record by now.
        found = yield Statement(self._messages.texts.of_one("standing", queue), (place.msg_id,))
        if not found and (yield self._messages.gone([seq], UNPROVED)):
            # Another program removed it while it waited.
            return standing._replace(waiting_attempts=0, waiting_crashes=0, ready=True)
        leased = scalar((yield Statement(self._messages.plain.is_leased, (seq,))))
        if not found or leased:
            return standing
        ((attempts, crashes),) = found
        return standing._replace(waiting_attempts=attempts, waiting_crashes=crashes, ready=True)

    def edit_waiting(self, domain: str, command_id: UUID, edit: WaitingEdit) -> Op[None]:
        """Its message becomes visible at another time. Each priority is a queue of its own: for another
        one, another message takes its place, behind those that are there."""
        standing = yield from self._standing(domain, command_id)
        seq, now = standing.seq, scalar((yield Read(self._sql.now)))
        if not standing.waits:
            refuse_edit(standing.standing.status)
        place = (yield from self._messages.places([seq])).get(seq)
        queue = None if place is None else self._messages.queues.get(place.queue_id)
        if edit.priority is None and place is not None and queue is not None:
            due_at = edit.moment(now, now)
            text = self._messages.texts.of_one("set_moment", queue)
            if (yield Statement(text, (place.msg_id, due_at))):
                yield Statement(self._sql.edit_command, (seq, None, due_at))
                yield from self._wake_for(domain, due_at - now)
                return
        found = yield Statement(self._sql.delete_waiting, (domain, standing.priority, seq))
        ((*counts, present, _),) = found or ((0, 0, 0, now, now),)
        if place is not None and queue is not None:
            taken = yield Statement(self._messages.texts.of_one("take_out", queue), (place.msg_id,))
            ((*counts, present),) = taken or ((*counts, present),)
        due_at = edit.moment(present, now)
        params = (seq, edit.priority, due_at if edit.moves else None)
        ((priority, command_type),) = yield Statement(self._sql.edit_command, params)
        waiting = Waiting(seq, due_at, *counts)
        yield from self._messages.put({(domain, priority, command_type)}, [waiting])
        yield from self._wake_for(domain, due_at - now)

    def _wake_for(self, domain: str, delay: int) -> Op[None]:
        yield Statement(self._sql.wake, (domain, ORIGIN, self._context.notify))
        yield Wake(domain, delay / SECOND or None)

    def purge(self, domain: str | None) -> Op[int]:
        yield from self._messages.look_up(None)
        for queue in self._messages.queues.all():
            if domain in (None, queue.domain):
                yield Statement(self._messages.texts.of_one("empty", queue))
        yield self._in_schema(
            "delete from commandbus.pgmq_message where seq in (select seq from commandbus.command"
            " where $1::text is null or domain = $1::text)",
            domain,
        )
        return (yield from super().purge(domain))


class PgmqEraser(Eraser):
    def __init__(self, context: Context, messages: Messages) -> None:
        super().__init__(context)
        self._messages = messages

    def erase(self, seqs: Sequence[int]) -> Op[list[int]]:
        erased = yield from super().erase(seqs)
        if erased:
            yield from self._messages.look_up(None)
            for queue in self._messages.queues.all():
                yield Statement(
                    self._messages.texts.of_one("erase_archived", queue), (integers(erased),)
                )
        return erased


class PgmqArrivals(Arrivals):
    def arrive(self, commands: Sequence[Moving]) -> Op[list[Moving]]:
        raise ConfigurationError(
            "Leave out transport=pgmq in the target: workers over PGMQ take over what arrives in the "
            "tables of the bus."
        )
