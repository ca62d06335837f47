"""Reads over PGMQ: what waits is a message, which the tables of the bus do not show."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from commandbus.engines.postgres.arrays import integers
from commandbus.engines.postgres.context import Context
from commandbus.engines.postgres.pgmq.base import Messages, place_columns
from commandbus.engines.postgres.reads import FEW, Reader
from commandbus.engines.postgres.rows import Depth
from commandbus.engines.postgres.statements import Autocommit
from commandbus.store.op import Op, Read, scalar
from commandbus.store.reading import Known, Running
from commandbus.store.records import Pruned


class PgmqReader(Reader):
    _is_waiting = (
        "o.seq is null and c.seq <> all (array(select unnest(l.seqs) from commandbus.lease l))"
    )

    def __init__(self, context: Context, messages: Messages) -> None:
        super().__init__(context)
        self._messages = messages

    def _locate(self, known: list[Known], running: Running) -> Op[list[Known]]:
        lost = [one.seq for one in known if one.is_running and one.seq not in running]
        places = (yield from self._messages.places(lost)) if lost else {}
        if not places:
            return known
        queues = self._messages.queues.among(place.queue_id for place in places.values())
        found = yield Read(self._messages.texts("waiting", queues), place_columns(places))
        waiting = {
            seq: {
                "waiting_attempts": attempts,
                "waiting_crashes": crashes,
                "waiting_until": until,
            }
            for seq, attempts, crashes, until in found
        }
        return [msgspec.structs.replace(one, **waiting.get(one.seq, {})) for one in known]

    def _few_waiting(self) -> Op[list[int] | None]:
        yield from self._messages.look_up(None)
        native = yield from super()._few_waiting()
        queues = self._messages.queues.all()
        if native is None or not queues:
            return native
        rows = yield Read(self._messages.texts("few_waiting", queues), (FEW + 1,))
        return None if len(rows) > FEW else sorted([*native, *(seq for (seq,) in rows)])

    def _depth(self, domain: str, cap: int | None) -> Op[Depth]:
        queues = yield from self._messages.known(domain)
        (row,) = yield Read(self._messages.texts("stats", queues), (domain,))
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
        queues = yield from self._messages.known(domain)
        place = (yield from self._messages.places([seq])).get(seq)
        lasts = []
        for queue in queues:
            if place is not None and place.queue_id == queue.queue_id:
                lasts.append(place.msg_id)
            else:
                lasts.append(2**63 - 1 if queue.priority < priority else 0)
        return int(
            scalar((yield Read(self._messages.texts("ahead", queues), (limit, integers(lasts)))))
        )

    def prune(
        self, cutoffs: Mapping[str, int], after: int, limit: int, *, preview: bool = False
    ) -> Op[Pruned]:
        pruned = yield from super().prune(cutoffs, after, limit, preview=preview)
        if pruned.gone and not preview:
            last = 2**63 - 1 if pruned.last is None else pruned.last
            yield Autocommit(self._messages.plain.forget_pruned, (after, last))
        return pruned
