"""Taking commands from PGMQ's queues, and making commands of what others have put there."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from commandbus.domain.audit import AuditEventType
from commandbus.domain.failure import Failure, FailureKind
from commandbus.domain.lifecycle import CommandStatus
from commandbus.domain.moment import SECOND
from commandbus.engines.postgres.arrays import integers, numbers, texts
from commandbus.engines.postgres.claiming import CRASHES, PostgresClaiming, hides, suspect_params
from commandbus.engines.postgres.failures import sqlstate_of
from commandbus.engines.postgres.listener import Other
from commandbus.engines.postgres.pgmq.base import Place
from commandbus.engines.postgres.pgmq.envelope import Envelope, Refusal, read_envelope
from commandbus.engines.postgres.pgmq.queues import Queue
from commandbus.engines.postgres.pgmq.rounds import Rounds
from commandbus.engines.postgres.pgmq.settling import MESSAGE_GONE, PgmqSettling, with_places
from commandbus.engines.postgres.settling import UNPROVED, Known
from commandbus.engines.postgres.statements import Atomic, Boundary
from commandbus.errors import CommandBusError, SchemaOutdated
from commandbus.store.op import Op, Statement
from commandbus.store.records import Claimed, ClaimRequest
from commandbus.store.settling import AuditRow, OutcomeRow, Writes
from commandbus.store.suspects import NONE, SuspectLimit

logger = logging.getLogger("commandbus.pgmq")

NATIVE = slice(None, 22)
"""Rows of our query `claim` are the engine's, with columns of the message behind. The text of a message
that is none of ours is one of them, read into the last: message, headers, and when it was sent."""
QUEUE, MESSAGE_ID, ENDED, TEXT, SENT_AT = range(22, 27)
PLACE = slice(QUEUE, ENDED)
READ_COUNT = 4

UNREADABLE = "UNREADABLE"
ATTEMPTS_MAX = 32_767
_LAST = 2**63 - 1
_REMOVED = (
    "Its message is gone from its queue: another program removed it while the command waited. Complete "
    "the command if that program has done its work, else retry or cancel it."
)

_text = msgspec.json.Decoder(tuple[str | None, str | None, int])


class PgmqClaiming(PgmqSettling, PostgresClaiming):
    listen_also: Callable[[Mapping[str, Other]], None] | None = None
    """How to hear channels of PGMQ, while this process listens."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._rounds = Rounds()
        self._served: set[str] = set()

    def _glance_will_do(self, request: ClaimRequest) -> bool:
        return False  # other programs may have made queues that are not known here

    def _sweep(self, request: ClaimRequest) -> Op[tuple[int, float | None]]:
        swept = yield from super()._sweep(request)
        for domain in request.domains:
            self._bounds.returned(domain)  # messages become visible by time alone
        yield from self._learn(request.domains)
        try:
            yield from self._take_over(request.domains)
            yield Boundary()
        except CommandBusError as error:
            if not _is_about_a_value(error):
                raise
            logger.warning("messages are sent without payload, which other readers miss: %s", error)
            yield from self._take_over(request.domains, with_payload=False)
            yield Boundary()
        yield from self._look_for_removed(request.domains)
        return swept

    def _look_for_removed(self, domains: Sequence[str]) -> Op[None]:
        """Park commands whose messages another program removed while they waited, from a piece of all
        commands: it may have done the work or not, which an operator has to find out."""
        self._served.update(domains)
        piece = self._rounds.piece(self._monotonic())
        if piece is None:
            return
        params = *piece, texts(sorted(self._served))
        last, first_open, seqs = (yield Atomic(self._plain.open_piece, params))[0]
        self._rounds.looked(last, first_open)
        gone = (yield self._gone(seqs, UNPROVED)) if seqs else ()
        for row in gone:
            failure = Failure(FailureKind.PERMANENT, MESSAGE_GONE, _REMOVED)
            try:
                yield from self._park(row[3], row[0], 0, failure)
            except CommandBusError as error:  # by another process meanwhile, or in the next round
                logger.debug("command %s is not parked: %s", row[2], error)

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
        queues = yield from self._known(domain)
        if request.priority is not None:
            queues = [queue for queue in queues if queue.priority == request.priority]
            if not queues:
                return
        fresh_only = False
        while request.limit > len(claimed):
            limit = NONE if fresh_only else request.suspects_beside(claimed)
            began = self._monotonic()
            bounds = self._bounds.after(domain, began)
            firsts = [(bounds or {}).get(queue.queue_id, 0) for queue in queues]
            try:
                fresh = fresh_only or bounds is not None
                rows = yield self._claim_of(
                    domain, request, claimed, queues, firsts, limit=limit, fresh=fresh
                )
            except SchemaOutdated:
                self._queues.forget()  # one of them was dropped; the next claim looks again
                raise
            except CommandBusError as error:
                if not _is_about_a_value(error):
                    raise
                yield from self._claim_one_by_one(domain, request, queues, claimed)
                return
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
                self._bounds.forget(domain)  # more of them may have been left in the queue
            if not (yield from self._receive(domain, request, queues, rows, claimed)):
                return

    def _claim_of(
        self,
        domain: str,
        request: ClaimRequest,
        claimed: list[Claimed],
        queues: Sequence[Queue],
        firsts: Sequence[int],
        lasts: Sequence[int] = (),
        limit: SuspectLimit | None = None,
        fresh: bool = False,
    ) -> Atomic:
        """The claim of the first visible messages in these ranges of numbers, one range per queue; with
        `fresh`, only of what was never read."""
        wanted = self._at_once(domain, request.limit - len(claimed), limit)
        duration = _micro(request.lease_seconds)
        ends = integers(lasts or [_LAST] * len(queues))
        params = (domain, wanted, request.worker, integers(firsts), duration, ends)
        if fresh:
            return Atomic(self._texts("claim_fresh", queues), params)
        return Atomic(self._texts("claim", queues), (*params, *suspect_params(limit)))

    def _claim_one_by_one(
        self, domain: str, request: ClaimRequest, queues: Sequence[Queue], claimed: list[Claimed]
    ) -> Op[None]:
        """The server cannot carry out a claim because of a value in one of its rows: that row is set
        aside, so that it fails no other claim."""
        wanted = request.limit - len(claimed)
        rows = yield Atomic(self._texts("first_visible", queues), (wanted,))
        for queue_id, msg_id, read_count, seq in rows:
            firsts = [msg_id if queue.queue_id == queue_id else _LAST for queue in queues]
            lasts = [msg_id if queue.queue_id == queue_id else 0 for queue in queues]
            try:
                found = yield self._claim_of(domain, request, claimed, queues, firsts, lasts)
            except CommandBusError as error:
                if not _is_about_a_value(error):
                    raise
                place = {QUEUE: queue_id, MESSAGE_ID: msg_id, READ_COUNT: read_count - 1}
                yield from self._set_aside(domain, queues, place, seq, error)
            else:
                yield from self._receive(domain, request, queues, found, claimed)

    def _set_aside(
        self,
        domain: str,
        queues: Sequence[Queue],
        place: Mapping[int, int],
        seq: int | None,
        error: CommandBusError,
    ) -> Op[None]:
        """Archive a message that cannot be claimed, or park the command that it carries."""
        try:
            if seq is None:
                yield from self._refuse(domain, queues, [(place, f"{UNREADABLE}: {error}")])
            else:
                words = f"Its message cannot be claimed: {error}"
                failure = Failure(FailureKind.PERMANENT, UNREADABLE, words)
                yield from self._park(domain, seq, place[READ_COUNT] + 1, failure)
        except CommandBusError as refusal:  # by another worker meanwhile, or with the next claim
            logger.warning("message %d is not set aside yet: %s", place[MESSAGE_ID], refusal)

    def _park(self, domain: str, seq: int, attempts: int, failure: Failure) -> Op[None]:
        """A command of the bus itself is for an operator, who can look at it and retry it."""
        parked = CommandStatus.IN_TROUBLESHOOTING_QUEUE
        attempts = min(max(attempts, 0), ATTEMPTS_MAX)
        outcome = OutcomeRow(
            seq, parked, attempts, 0, None, None, ran=0, error=failure, reason=failure.code
        )
        details = {"error": failure, "reason": failure.code}
        note = AuditRow(seq, AuditEventType.MOVED_TO_TSQ, details)
        columns = yield Statement(self._sql.columns_of, (integers([seq]),))
        known = Known({}, {seq}, {row[0]: row[2] for row in columns})
        yield from self._write(domain, None, Writes(outcomes=[outcome], audits=[note]), known)
        yield Boundary()
        logger.error("command %d of %s is parked: %s", seq, domain, failure.message)

    def _receive(
        self,
        domain: str,
        request: ClaimRequest,
        queues: Sequence[Queue],
        rows: Any,
        claimed: list[Claimed],
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
            yield from self._receive_others(domain, request, queues, others, claimed)
            more = True
        return more

    def _receive_others(
        self,
        domain: str,
        request: ClaimRequest,
        queues: Sequence[Queue],
        rows: Any,
        claimed: list[Claimed],
    ) -> Op[None]:
        """Messages of other senders become commands; what cannot is archived, with the reason."""
        refused: list[tuple[Any, str]] = []
        envelopes: dict[tuple[int, int], tuple[Any, Envelope]] = {}
        by_id = {queue.queue_id: queue for queue in queues}
        for row in rows:
            if row[ENDED]:
                refused.append((row, "ENDED: its command has an outcome already"))
                continue
            try:
                message, headers, sent_at = _text.decode(row[TEXT])
                envelope = read_envelope(message, headers, by_id[row[QUEUE]].mapping)
            except Refusal as error:
                refused.append((row, str(error)))
            else:
                envelopes[row[QUEUE], row[MESSAGE_ID]] = (*row, sent_at), envelope
        if envelopes:
            yield from self._admit_others(domain, request, queues, envelopes, claimed, refused)
        if refused:
            yield from self._refuse(domain, queues, refused)

    def _admit_others(
        self,
        domain: str,
        request: ClaimRequest,
        queues: Sequence[Queue],
        envelopes: dict[tuple[int, int], tuple[Any, Envelope]],
        claimed: list[Claimed],
        refused: list[tuple[Any, str]],
    ) -> Op[None]:
        """Make commands of messages; what the server does not take, or has already, is refused."""
        params = (*_admitted(envelopes), domain, request.worker, _micro(request.lease_seconds))
        carriers = _among(queues, {queue_id for queue_id, _ in envelopes})
        try:
            found = yield Atomic(self._texts("admit", carriers), params)
        except CommandBusError as error:
            if not _is_about_a_value(error):
                raise
            if len(envelopes) == 1:
                refused += [(row, f"{UNREADABLE}: {error}") for row, _ in envelopes.values()]
                return
            for key, entry in envelopes.items():
                alone = {key: entry}
                yield from self._admit_others(domain, request, queues, alone, claimed, refused)
            return
        yield from self._keep_admitted(domain, request.worker, found, envelopes, claimed)
        fresh = {(row[0], row[1]) for row in found}
        refused += [(row, _taken(e)) for key, (row, e) in envelopes.items() if key not in fresh]

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

    def _refuse(self, domain: str, queues: Sequence[Queue], refused: list[tuple[Any, str]]) -> Op[None]:
        names = {queue.queue_id: queue.name for queue in queues}
        for row, reason in refused:
            logger.warning(
                "message %d of queue %s is archived, because it is no command: %s",
                row[MESSAGE_ID],
                names[row[QUEUE]],
                reason,
            )
        params = (
            integers(row[QUEUE] for row, _ in refused),
            integers(row[MESSAGE_ID] for row, _ in refused),
            integers(row[READ_COUNT] + 1 for row, _ in refused),
            texts(reason for _, reason in refused),
            domain,
        )
        concerned = _among(queues, {row[QUEUE] for row, _ in refused})
        yield Atomic(self._texts("refuse", concerned), params)


def _among(queues: Sequence[Queue], wanted: set[int]) -> list[Queue]:
    """In the order of their ids, so that a set of queues has one text."""
    chosen = [queue for queue in queues if queue.queue_id in wanted]
    return sorted(chosen, key=lambda queue: queue.queue_id)


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


def _is_about_a_value(error: CommandBusError) -> bool:
    """Whether the server refuses a value: it is out of range, of a wrong form or too large."""
    return sqlstate_of(error.__cause__ or error).startswith(("22", "54"))


def _taken(envelope: Envelope) -> str:
    return f"DUPLICATE: there is a command {envelope.command_id} in this domain already"


def _micro(seconds: float) -> int:
    return int(seconds * SECOND)
