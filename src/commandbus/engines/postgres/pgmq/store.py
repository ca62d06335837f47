"""The store over PGMQ: what people read and decide, and all parts put together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import msgspec

from commandbus.domain.lifecycle import refuse_edit
from commandbus.domain.mapping import QueueMapping
from commandbus.domain.moment import SECOND
from commandbus.domain.names import as_queue
from commandbus.engines.postgres.arrays import integers
from commandbus.engines.postgres.operators import status_of
from commandbus.engines.postgres.pgmq.claiming import PgmqClaiming
from commandbus.engines.postgres.reads import FEW
from commandbus.engines.postgres.rows import Running, is_running
from commandbus.engines.postgres.settling import UNPROVED
from commandbus.engines.postgres.statements import ORIGIN, Atomic
from commandbus.engines.postgres.store import PostgresStore
from commandbus.errors import ConfigurationError, InvalidArgumentError
from commandbus.store.moving import Moving
from commandbus.store.op import Op, Read, Statement, Wake
from commandbus.store.records import Pruned, WaitingEdit

_WAITING_FROM, _WAITING_TO = 26, 29
"""Of a row of the query `records`: attempts, crashes and due time of what waits."""


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
        rows = yield Statement(self._plain.is_queue, (name,))
        if not rows[0][0]:
            raise InvalidArgumentError(
                f"There is no PGMQ queue {queue!r}; create it first, or check its name."
            )
        text = msgspec.json.encode(mapping.check()).decode()
        yield Statement(self._plain.adopt, (name, domain, priority, text))
        yield from self._look_up([domain])
        yield Wake(domain)

    def _locate(self, rows: Any, running: Running) -> Op[Any]:
        lost = [row[0] for row in rows if is_running(row) and row[0] not in running]
        found = yield from self._waiting(lost)
        return [
            (*row[:_WAITING_FROM], *found[row[0]], *row[_WAITING_TO:]) if row[0] in found else row
            for row in rows
        ]

    def _waiting(self, seqs: Sequence[int]) -> Op[dict[int, Any]]:
        """Attempts, crashes and due time of commands whose messages wait."""
        places = (yield from self._places(seqs)) if seqs else {}
        if not places:
            return {}
        rows = [(seq, *place) for seq, place in places.items()]
        queues = self._queues.among(row[1] for row in rows)
        columns = tuple(integers(row[n] for row in rows) for n in range(3))
        found = yield Read(self._texts("waiting", queues), columns)
        return {row[0]: row[1:] for row in found}

    def _few_waiting(self) -> Op[list[int] | None]:
        yield from self._look_up(None)
        native = yield from super()._few_waiting()
        queues = self._queues.all()
        if native is None or not queues:
            return native
        rows = yield Read(self._texts("few_waiting", queues), (FEW + 1,))
        return None if len(rows) > FEW else sorted([*native, *(row[0] for row in rows)])

    def _standing(self, domain: str, command_id: UUID) -> Op[Any]:
        row = yield from super()._standing(domain, command_id)
        seq, status, waiting, scheduled = row[0], row[4], row[10], row[11]
        if status is not None or waiting or scheduled:
            return row
        place = (yield from self._places([seq])).get(seq)
        queue = None if place is None else self._queues.get(place[0])
        if place is None or queue is None:
            return row
        # Locked first: a claim that took it before has its lease on record by now.
        found = yield Statement(self._texts.of_one("standing", queue), (place[1],))
        if not found and (yield self._gone([seq], UNPROVED)):
            return (*row[:8], 0, 0, True, *row[11:])  # another program removed it while it waited
        leased = yield Statement(self._plain.is_leased, (seq,))
        if not found or leased[0][0]:
            return row
        return (*row[:8], found[0][0], found[0][1], True, *row[11:])

    def edit_waiting(self, domain: str, command_id: UUID, edit: WaitingEdit) -> Op[None]:
        """Its message becomes visible at another time. Each priority is a queue of its own: for another
        one, another message takes its place, behind those that are there."""
        row = yield from self._standing(domain, command_id)
        seq, now = row[0], (yield from self.now())
        if not row[10] and not row[11]:
            refuse_edit(status_of(row))
        place = (yield from self._places([seq])).get(seq)
        queue = None if place is None else self._queues.get(place[0])
        if edit.priority is None and place is not None and queue is not None:
            due_at = edit.moment(now, now)
            text = self._texts.of_one("set_moment", queue)
            if (yield Statement(text, (place[1], due_at))):
                yield Statement(self._sql.edit_command, (seq, None, due_at))
                yield from self._wake_for(domain, due_at - now)
                return
        found = yield Statement(self._sql.delete_waiting, (domain, row[1], seq))
        waits = tuple(found[0][:4]) if found else (0, 0, 0, now)
        if place is not None and queue is not None:
            taken = yield Statement(self._texts.of_one("take_out", queue), (place[1],))
            waits = tuple(taken[0]) if taken else waits
        due_at = edit.moment(waits[3], now)
        params = (seq, edit.priority, due_at if edit.moves else None)
        priority, command_type = (yield Statement(self._sql.edit_command, params))[0]
        state = (seq, due_at, *waits[:3])
        yield from self._put({(domain, priority, command_type)}, *(integers([n]) for n in state))
        yield from self._wake_for(domain, due_at - now)

    def _wake_for(self, domain: str, delay: int) -> Op[None]:
        yield Statement(self._sql.wake, (domain, ORIGIN, self._notify))
        yield Wake(domain, delay / SECOND or None)

    def _stats_row(self, domain: str, cap: int | None) -> Op[Any]:
        queues = yield from self._known(domain)
        row = (yield Read(self._texts("stats", queues), (domain,)))[0]
        native = yield from super()._stats_row(domain, cap)
        # What was sent without knowing of PGMQ waits in the engine's own tables for a moment.
        moments = [moment for moment in (row[5], native[5]) if moment is not None]
        return (
            row[0],
            row[1] + native[1],
            row[2] + native[2],
            native[3],
            row[4],
            min(moments) if moments else None,
            native[6],
            *row[7:],
            *native[9:],
        )

    def count_ahead(self, domain: str, priority: int, seq: int, limit: int) -> Op[int]:
        queues = yield from self._known(domain)
        place = (yield from self._places([seq])).get(seq)
        lasts = []
        for queue in queues:
            if place is not None and place[0] == queue.queue_id:
                lasts.append(place[1])
            else:
                lasts.append(2**63 - 1 if queue.priority < priority else 0)
        rows = yield Read(self._texts("ahead", queues), (limit, integers(lasts)))
        return int(rows[0][0])

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
