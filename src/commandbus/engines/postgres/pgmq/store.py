"""The store over PGMQ: what people read and decide, and all parts put together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

import msgspec

from commandbus.domain.lifecycle import refuse_edit
from commandbus.domain.mapping import QueueMapping
from commandbus.domain.moment import SECOND
from commandbus.domain.names import as_queue
from commandbus.engines.postgres.arrays import integers
from commandbus.engines.postgres.pgmq.base import Waiting, place_columns
from commandbus.engines.postgres.pgmq.claiming import PgmqClaiming
from commandbus.engines.postgres.reads import FEW
from commandbus.engines.postgres.rows import Depth, KnownCommand, Running, Standing
from commandbus.engines.postgres.settle_query import UNPROVED
from commandbus.engines.postgres.statements import ORIGIN, Atomic
from commandbus.engines.postgres.store import PostgresStore
from commandbus.errors import ConfigurationError, InvalidArgumentError
from commandbus.store.moving import Moving
from commandbus.store.op import Op, Read, Statement, Wake, scalar
from commandbus.store.records import Pruned, WaitingEdit


class PgmqStore(PgmqClaiming, PostgresStore):
    """Commands in PostgreSQL tables; what waits or runs is a message in a PGMQ queue."""

    capabilities = msgspec.structs.replace(
        PostgresStore.capabilities, adopted_queues=True, gates=False, ageing=False
    )

    _is_waiting = (
        "o.seq is null and c.seq <> all (array(select unnest(l.seqs) from commandbus.lease l))"
    )

    def adopt_queue(self, domain: str, queue: str, mapping: QueueMapping, priority: int) -> Op[None]:
        name = as_queue(queue)
        ((exists, _),) = yield Statement(self._plain.is_queue, (name,))
        if not exists:
            raise InvalidArgumentError(
                f"There is no PGMQ queue {queue!r}; create it first, or check its name."
            )
        text = msgspec.json.encode(mapping.check()).decode()
        yield Statement(self._plain.adopt, (name, domain, priority, text))
        yield from self._look_up([domain])
        yield Wake(domain)

    def _locate(self, known: list[KnownCommand], running: Running) -> Op[list[KnownCommand]]:
        lost = [one.seq for one in known if one.is_running and one.seq not in running]
        places = (yield from self._places(lost)) if lost else {}
        if not places:
            return known
        queues = self._queues.among(place.queue_id for place in places.values())
        found = yield Read(self._texts("waiting", queues), place_columns(places))
        waiting = {
            seq: {
                "waiting_attempts": attempts,
                "waiting_crashes": crashes,
                "waiting_until": until,
            }
            for seq, attempts, crashes, until in found
        }
        return [one._replace(**waiting.get(one.seq, {})) for one in known]

    def _few_waiting(self) -> Op[list[int] | None]:
        yield from self._look_up(None)
        native = yield from super()._few_waiting()
        queues = self._queues.all()
        if native is None or not queues:
            return native
        rows = yield Read(self._texts("few_waiting", queues), (FEW + 1,))
        return None if len(rows) > FEW else sorted([*native, *(seq for (seq,) in rows)])

    def _standing(self, domain: str, command_id: UUID) -> Op[Standing]:
        standing = yield from super()._standing(domain, command_id)
        seq = standing.seq
        if standing.status is not None or standing.waits:
            return standing
        place = (yield from self._places([seq])).get(seq)
        queue = None if place is None else self._queues.get(place.queue_id)
        if place is None or queue is None:
            return standing
        # Locked first: a claim that took it before has its lease on record by now.
        found = yield Statement(self._texts.of_one("standing", queue), (place.msg_id,))
        if not found and (yield self._gone([seq], UNPROVED)):
            # Another program removed it while it waited.
            return standing._replace(waiting_attempts=0, waiting_crashes=0, ready=True)
        leased = scalar((yield Statement(self._plain.is_leased, (seq,))))
        if not found or leased:
            return standing
        ((attempts, crashes),) = found
        return standing._replace(waiting_attempts=attempts, waiting_crashes=crashes, ready=True)

    def edit_waiting(self, domain: str, command_id: UUID, edit: WaitingEdit) -> Op[None]:
        """Its message becomes visible at another time. Each priority is a queue of its own: for another
        one, another message takes its place, behind those that are there."""
        standing = yield from self._standing(domain, command_id)
        seq, now = standing.seq, (yield from self.now())
        if not standing.waits:
            refuse_edit(standing.known_status)
        place = (yield from self._places([seq])).get(seq)
        queue = None if place is None else self._queues.get(place.queue_id)
        if edit.priority is None and place is not None and queue is not None:
            due_at = edit.moment(now, now)
            text = self._texts.of_one("set_moment", queue)
            if (yield Statement(text, (place.msg_id, due_at))):
                yield Statement(self._sql.edit_command, (seq, None, due_at))
                yield from self._wake_for(domain, due_at - now)
                return
        found = yield Statement(self._sql.delete_waiting, (domain, standing.priority, seq))
        ((*counts, present, _),) = found or ((0, 0, 0, now, now),)
        if place is not None and queue is not None:
            taken = yield Statement(self._texts.of_one("take_out", queue), (place.msg_id,))
            ((*counts, present),) = taken or ((*counts, present),)
        due_at = edit.moment(present, now)
        params = (seq, edit.priority, due_at if edit.moves else None)
        ((priority, command_type),) = yield Statement(self._sql.edit_command, params)
        waiting = Waiting(seq, due_at, *counts)
        yield from self._put({(domain, priority, command_type)}, [waiting])
        yield from self._wake_for(domain, due_at - now)

    def _wake_for(self, domain: str, delay: int) -> Op[None]:
        yield Statement(self._sql.wake, (domain, ORIGIN, self._notify))
        yield Wake(domain, delay / SECOND or None)

    def _depth(self, domain: str, cap: int | None) -> Op[Depth]:
        queues = yield from self._known(domain)
        (row,) = yield Read(self._texts("stats", queues), (domain,))
        messages, native = Depth(*row), (yield from super()._depth(domain, cap))
        # What was sent without knowing of PGMQ waits in the engine's own tables for a moment.
        moments = [one.oldest for one in (messages, native) if one.oldest is not None]
        return native._replace(
            now=messages.now,
            ready=messages.ready + native.ready,
            scheduled=messages.scheduled + native.scheduled,
            running=messages.running,
            oldest=min(moments, default=None),
            paused_at=messages.paused_at,
            paused_reason=messages.paused_reason,
        )

    def count_ahead(self, domain: str, priority: int, seq: int, limit: int) -> Op[int]:
        queues = yield from self._known(domain)
        place = (yield from self._places([seq])).get(seq)
        lasts = []
        for queue in queues:
            if place is not None and place.queue_id == queue.queue_id:
                lasts.append(place.msg_id)
            else:
                lasts.append(2**63 - 1 if queue.priority < priority else 0)
        return int(scalar((yield Read(self._texts("ahead", queues), (limit, integers(lasts))))))

    def prune(self, cutoffs: Mapping[str, int], after: int, limit: int) -> Op[Pruned]:
        pruned = yield from super().prune(cutoffs, after, limit)
        if pruned.gone:
            last = 2**63 - 1 if pruned.last is None else pruned.last
            yield Atomic(self._plain.forget_pruned, (after, last))
        return pruned

    def arrive(self, commands: Sequence[Moving]) -> Op[list[Moving]]:
        raise ConfigurationError(
            "Leave out transport=pgmq in the target: workers over PGMQ take over what arrives in the "
            "tables of the bus."
        )

    def erase(self, seqs: Sequence[int]) -> Op[list[int]]:
        erased = yield from super().erase(seqs)
        if erased:
            yield from self._look_up(None)
            for queue in self._queues.all():
                yield Statement(self._texts.of_one("erase_archived", queue), (integers(erased),))
        return erased

    def purge(self, domain: str | None) -> Op[int]:
        yield from self._look_up(None)
        for queue in self._queues.all():
            if domain in (None, queue.domain):
                yield Statement(self._texts.of_one("empty", queue))
        yield self._in_schema(
            "delete from commandbus.pgmq_message where seq in (select seq from commandbus.command"
            " where $1::text is null or domain = $1::text)",
            domain,
        )
        return (yield from super().purge(domain))
