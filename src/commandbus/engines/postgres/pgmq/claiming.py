"""Taking commands from PGMQ's queues, and making commands of what others have put there."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from commandbus.domain.moment import SECOND
from commandbus.engines.postgres.arrays import integers, numbers, texts
from commandbus.engines.postgres.claiming import CRASHES, PostgresClaiming, hides, suspect_params
from commandbus.engines.postgres.listener import Other
from commandbus.engines.postgres.pgmq.base import Place
from commandbus.engines.postgres.pgmq.envelope import Envelope, Refusal, read_envelope
from commandbus.engines.postgres.pgmq.queues import Queue
from commandbus.engines.postgres.pgmq.settling import PgmqSettling, with_places
from commandbus.engines.postgres.statements import Atomic, Boundary
from commandbus.errors import SchemaOutdated
from commandbus.store.op import Op
from commandbus.store.records import Claimed, ClaimRequest
from commandbus.store.suspects import NONE

logger = logging.getLogger("commandbus.pgmq")

NATIVE = slice(None, 22)
"""Rows of our query `claim` are the engine's, with columns of the message behind. The text of a message
that is none of ours is one of them, read into the last: message, headers, and when it was sent."""
QUEUE, MESSAGE_ID, ENDED, TEXT, SENT_AT = range(22, 27)
PLACE = slice(QUEUE, ENDED)

_text = msgspec.json.Decoder(tuple[str | None, str | None, int])


class PgmqClaiming(PgmqSettling, PostgresClaiming):
    listen_also: Callable[[Mapping[str, Other]], None] | None = None
    """How to hear channels of PGMQ, while this process listens."""

    def _glance_will_do(self, request: ClaimRequest) -> bool:
        return False  # other programs may have made queues that are not known here

    def _sweep(self, request: ClaimRequest) -> Op[tuple[int, float | None]]:
        swept = yield from super()._sweep(request)
        for domain in request.domains:
            self._bounds.returned(domain)  # messages become visible by time alone
        yield from self._learn(request.domains)
        yield from self._take_over(request.domains)
        yield Boundary()
        return swept

    def _fall_asleep(self, request: ClaimRequest) -> Op[tuple[bool, int | None]]:
        """The look that follows must not miss a queue that was created before senders knew of us."""
        news, look_in = yield from super()._fall_asleep(request)
        if news:
            yield from self._learn(request.domains)
            yield from self._hear_of(request.domains)
        return news, look_in

    def _hear_of(self, domains: Sequence[str]) -> Op[None]:
        """Where our trigger could not be made, PGMQ's own notifications serve, if they are enabled."""
        if self.listen_also is not None:
            rows = yield Atomic(self._plain.notified, (texts(domains),))
            self.listen_also(
                {f"pgmq.q_{row[0].lower()}.INSERT": Other(row[1], float(row[2])) for row in rows}
            )

    def _next_moment(self, request: ClaimRequest, places: list[str]) -> Op[int | None]:
        queues: list[Queue] = []
        for domain in request.domains:
            queues += yield from self._known(domain)
        rows = yield Atomic(self._texts("next_moment", queues), (request.worker,))
        return rows[0][0]  # type: ignore[no-any-return]

    def _claim_from(
        self, domain: str, place: str, request: ClaimRequest, claimed: list[Claimed]
    ) -> Op[None]:
        duration = int(request.lease_seconds * SECOND)
        queues = yield from self._known(domain)
        if request.priority is not None:
            queues = [queue for queue in queues if queue.priority == request.priority]
            if not queues:
                return
        fresh_only = False
        while (wanted := request.limit - len(claimed)) > 0:
            limit = NONE if fresh_only else request.suspects_beside(claimed)
            began = self._monotonic()
            bounds = self._bounds.after(domain, began)
            firsts = integers([(bounds or {}).get(queue.queue_id, 0) for queue in queues])
            params = (domain, wanted, request.worker, firsts, duration, *suspect_params(limit))
            try:
                rows = yield Atomic(self._texts("claim", queues), params)
            except SchemaOutdated:
                self._queues.forget()  # one of them was dropped; the next claim looks again
                raise
            now = self._monotonic()
            self._bounds.looked(domain, now, now - began, everywhere=bounds is None)
            if not rows:
                self._bounds.forget(domain)
                if bounds is None:
                    if not hides(limit):
                        return
                    fresh_only = True
                continue
            last = {row[QUEUE]: row[MESSAGE_ID] for row in rows}
            self._bounds.took(domain, last.items())
            if limit is not None and (not limit.alone or any(row[CRASHES] for row in rows)):
                self._bounds.returned(domain)  # more of them may have been left in the queue
            if not (yield from self._receive(domain, request, rows, claimed)):
                return

    def _receive(
        self, domain: str, request: ClaimRequest, rows: Any, claimed: list[Claimed]
    ) -> Op[bool]:
        """Rows of the query `claim`; whether some were no commands to run, so that there is room."""
        ours: list[Any] = []
        others: list[Any] = []
        places: dict[int, Place] = {}
        for row in rows:
            if row[0] is None or row[ENDED]:
                others.append(row)
            else:
                ours.append(row[NATIVE])
                places[row[0]] = row[PLACE]
        more = False
        if ours:
            more = yield from self._keep_claimed(domain, request.worker, ours, places, claimed)
        if others:
            yield from self._receive_others(domain, request, others, claimed)
            more = True
        return more

    def _receive_others(
        self, domain: str, request: ClaimRequest, rows: Any, claimed: list[Claimed]
    ) -> Op[None]:
        """Messages of other senders become commands; what cannot is archived, with the reason."""
        refused: list[tuple[Any, str]] = []
        envelopes: dict[tuple[int, int], tuple[Any, Envelope]] = {}
        for row in rows:
            queue = self._queues.get(row[QUEUE])
            assert queue is not None
            if row[ENDED]:
                refused.append((row, "ENDED: its command has an outcome already"))
                continue
            try:
                message, headers, sent_at = _text.decode(row[TEXT])
                envelope = read_envelope(message, headers, queue.mapping)
            except Refusal as error:
                refused.append((row, str(error)))
            else:
                envelopes[row[QUEUE], row[MESSAGE_ID]] = (*row, sent_at), envelope
        if envelopes:
            params = (*_admitted(envelopes), domain, request.worker, _micro(request.lease_seconds))
            queues = self._queues.among(queue_id for queue_id, _ in envelopes)
            found = yield Atomic(self._texts("admit", queues), params)
            yield from self._keep_admitted(domain, request.worker, found, envelopes, claimed)
            for row in found:
                del envelopes[row[0], row[1]]
            refused += [(row, _taken(envelope)) for row, envelope in envelopes.values()]
        if refused:
            yield from self._refuse(domain, refused)

    def _keep_admitted(
        self, domain: str, worker: str, found: Any, envelopes: Any, claimed: list[Claimed]
    ) -> Op[None]:
        """What the query `admit` has put under a lease, as if it had been claimed."""
        rows: list[Any] = []
        for queue_id, msg_id, seq, lease_id, now in found:
            row, envelope = envelopes[queue_id, msg_id]
            expired = envelope.expires_at is not None and envelope.expires_at <= now
            rows.append((
                seq, lease_id, now, row[3], row[4], 0, 0, False, envelope.command_type,
                envelope.command_id, envelope.data, envelope.correlation_id, envelope.causation_id,
                envelope.reply_to, envelope.max_attempts, row[SENT_AT], envelope.tags,
                envelope.headers, None, expired, now - row[SENT_AT], 0,
            ))  # fmt: skip
        if rows:
            places = {row[2]: (row[0], row[1]) for row in found}
            yield from self._keep_claimed(domain, worker, rows, places, claimed)

    def _keep_claimed(
        self, domain: str, worker: str, rows: Any, places: dict[int, Place], claimed: list[Claimed]
    ) -> Op[bool]:
        """Rows with the columns of the engine's own query; whether some had expired."""
        ended = self._admit(domain, worker, rows, claimed)
        held = self._leases.get(rows[0][1])
        assert held is not None
        self._leases.keep(with_places(held, held.seats, places))
        if ended:
            yield from self._end_unclaimable(domain, worker, rows[0][1], ended)
        return bool(ended)

    def _refuse(self, domain: str, refused: list[tuple[Any, str]]) -> Op[None]:
        for row, reason in refused:
            queue = self._queues.get(row[QUEUE])
            logger.warning(
                "message %d of queue %s is archived, because it is no command: %s",
                row[MESSAGE_ID],
                queue.name if queue else row[QUEUE],
                reason,
            )
        params = (
            integers(row[QUEUE] for row, _ in refused),
            integers(row[MESSAGE_ID] for row, _ in refused),
            integers(row[4] + 1 for row, _ in refused),
            texts(reason for _, reason in refused),
            domain,
        )
        queues = self._queues.among(row[QUEUE] for row, _ in refused)
        yield Atomic(self._texts("refuse", queues), params)


def _admitted(envelopes: dict[tuple[int, int], tuple[Any, Envelope]]) -> tuple[str, ...]:
    """$1 to $15 of the query `admit`."""
    rows = [row for row, _ in envelopes.values()]
    read = [envelope for _, envelope in envelopes.values()]
    return (
        integers(row[QUEUE] for row in rows),
        integers(row[MESSAGE_ID] for row in rows),
        integers(row[4] + 1 for row in rows),
        numbers(e.command_id for e in read),
        texts(e.command_type for e in read),
        texts(e.data for e in read),
        numbers(e.correlation_id for e in read),
        numbers(e.causation_id for e in read),
        texts(e.reply_to for e in read),
        integers(row[3] for row in rows),
        numbers(e.max_attempts for e in read),
        integers(row[SENT_AT] for row in rows),
        numbers(e.expires_at for e in read),
        texts(e.tags for e in read),
        texts(e.headers for e in read),
    )


def _taken(envelope: Envelope) -> str:
    return f"DUPLICATE: there is a command {envelope.command_id} in this domain already"


def _micro(seconds: float) -> int:
    return int(seconds * SECOND)
