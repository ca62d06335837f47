"""Taking commands from PGMQ's queues, and making commands of what others have put there."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from commandbus.domain.failure import Failure, FailureKind
from commandbus.domain.moment import SECOND
from commandbus.engines.postgres.arrays import integers, texts
from commandbus.engines.postgres.claim_query import may_hide_fresh_work, suspect_values
from commandbus.engines.postgres.claiming import Claimer
from commandbus.engines.postgres.context import Context
from commandbus.engines.postgres.failures import is_about_a_value
from commandbus.engines.postgres.limits import Limits
from commandbus.engines.postgres.listener import Other
from commandbus.engines.postgres.pgmq.base import Messages, Place
from commandbus.engines.postgres.pgmq.envelope import Envelope, Refusal, read_envelope
from commandbus.engines.postgres.pgmq.queues import MESSAGES, Queue
from commandbus.engines.postgres.pgmq.rounds import Rounds
from commandbus.engines.postgres.pgmq.settling import MESSAGE_GONE, with_places
from commandbus.engines.postgres.settle_query import UNPROVED
from commandbus.engines.postgres.settling import Settler
from commandbus.engines.postgres.statements import Autocommit, Boundary
from commandbus.engines.postgres.templates import Values
from commandbus.errors import CommandBusError, SchemaOutdated
from commandbus.store.op import Op, Row, Rows, scalar
from commandbus.store.reading import UNREADABLE
from commandbus.store.records import CLAIMED, Claimed, ClaimRequest
from commandbus.store.suspects import NONE, SuspectLimit

logger = logging.getLogger("commandbus.pgmq")

ATTEMPTS_MAX = 32_767
_LAST = 2**63 - 1
_REMOVED = (
    "Its message is gone from its queue: another program removed it while the command waited. Complete "
    "the command if that program has done its work, else retry or cancel it."
)

_text = msgspec.json.Decoder(tuple[str | None, str | None, int])
"""Message, headers, and when it was sent."""


class Message(NamedTuple):
    """A message that was read but carries no command to run: its text, if it is none of ours."""

    place: Place
    priority: int
    read_count: int
    text: str | None = None
    sent_at: int = 0


class ReadMessages(NamedTuple):
    """What one claim has read."""

    ours: list[Row]
    """With the columns of the engine's own query `claim`."""
    others: list[Message]
    places: dict[int, Place]
    """Of ours, by sequence."""
    last: dict[int, int]
    """The last number that was read, by queue."""
    suspects: bool
    """Whether workers died over some of them."""


Envelopes = dict[Place, tuple[Message, Envelope]]
"""Messages of other senders and what was read from them, by their places."""


class PgmqClaimer(Claimer):
    listen_also: Callable[[Mapping[str, Other]], None] | None = None
    """How to hear channels of PGMQ, while this process listens."""

    def __init__(self, context: Context, limits: Limits, settler: Settler, messages: Messages) -> None:
        super().__init__(context, limits, settler)
        self._messages = messages
        self._rounds = Rounds()
        self._served: set[str] = set()

    def _can_skip_full_claim(self, request: ClaimRequest) -> bool:
        return False  # other programs may have made queues that are not known here

    def _hears(self, request: ClaimRequest) -> bool:
        """Queues of other programs may have no trigger that announces what is sent to them."""
        queues = (queue for domain in request.domains for queue in self._messages.queues.of(domain))
        return super()._hears(request) and all(queue.mapping is None for queue in queues)

    def _sweep(self, request: ClaimRequest) -> Op[tuple[int, float | None]]:
        swept = yield from super()._sweep(request)
        for domain in request.domains:
            self._context.bounds.returned(domain)  # messages become visible by time alone
        yield from self._messages.learn(request.domains)
        try:
            yield from self._messages.take_over(request.domains)
            yield Boundary()
        except CommandBusError as error:
            if not is_about_a_value(error):
                raise
            logger.warning("messages are sent without payload, which other readers miss: %s", error)
            yield from self._messages.take_over(request.domains, with_payload=False)
            yield Boundary()
        yield from self._look_for_removed(request.domains)
        return swept

    def _look_for_removed(self, domains: Sequence[str]) -> Op[None]:
        """Park commands whose messages another program removed while they waited, from a piece of all
        commands: it may have done the work or not, which an operator has to find out."""
        self._served.update(domains)
        piece = self._rounds.piece(self._context.monotonic())
        if piece is None:
            return
        params = *piece, texts(sorted(self._served))
        ((last, first_open, seqs),) = yield Autocommit(self._messages.plain.open_piece, params)
        self._rounds.looked(last, first_open)
        gone = (yield self._messages.gone(seqs, UNPROVED)) if seqs else ()
        for seq, _, command_id, domain, _, _ in gone:
            failure = Failure(FailureKind.PERMANENT, MESSAGE_GONE, _REMOVED)
            try:
                yield from self._park(domain, seq, 0, failure)
            except CommandBusError as error:  # by another process meanwhile, or in the next round
                logger.debug("command %s is not parked: %s", command_id, error)

    def _fall_asleep(self, request: ClaimRequest) -> Op[tuple[bool, int | None]]:
        """The look that follows must not miss a queue that was created before senders knew of us."""
        news, look_in = yield from super()._fall_asleep(request)
        if news:
            yield from self._messages.learn(request.domains)
            yield from self._hear_of(request.domains)
        return news, look_in

    def _hear_of(self, domains: Sequence[str]) -> Op[None]:
        """Where our trigger could not be made, PGMQ's own notifications serve, if they are enabled."""
        if self.listen_also is not None:
            rows = yield Autocommit(self._messages.plain.notified, (texts(domains),))
            self.listen_also(
                {
                    f"pgmq.q_{queue.lower()}.INSERT": Other(domain, float(throttle))
                    for queue, domain, throttle in rows
                }
            )

    def _next_moment(self, request: ClaimRequest, tagged: list[str]) -> Op[int | None]:
        queues: list[Queue] = []
        for domain in request.domains:
            queues += yield from self._messages.known(domain)
        moment: int | None = scalar(
            (yield Autocommit(self._messages.texts("next_moment", queues), (request.worker,)))
        )
        return moment

    def _claim_from(
        self, domain: str, partition: str, request: ClaimRequest, claimed: list[Claimed]
    ) -> Op[None]:
        queues = yield from self._messages.known(domain)
        if request.priority is not None:
            queues = [queue for queue in queues if queue.priority == request.priority]
            if not queues:
                return
        fresh_only = False
        while request.limit > len(claimed):
            limit = NONE if fresh_only else request.suspects_beside(claimed)
            began = self._context.monotonic()
            bounds = self._context.bounds.after(domain, began)
            firsts = [(bounds or {}).get(queue.queue_id, 0) for queue in queues]
            try:
                fresh = fresh_only or bounds is not None
                rows = yield self._claim_of(
                    domain, request, claimed, queues, firsts, limit=limit, fresh=fresh
                )
            except SchemaOutdated:
                self._messages.queues.forget()  # one of them was dropped; the next claim looks again
                raise
            except CommandBusError as error:
                if not is_about_a_value(error):
                    raise
                yield from self._claim_one_by_one(domain, request, queues, claimed)
                return
            now = self._context.monotonic()
            self._context.bounds.looked(domain, now, now - began, everywhere=bounds is None)
            if not rows:
                self._context.bounds.forget(domain)
                if bounds is None:
                    if not may_hide_fresh_work(limit):
                        return
                    fresh_only = True
                continue
            read = _read(rows)
            self._context.bounds.took(domain, read.last.items())
            if limit is not None and (not limit.alone or read.suspects):
                self._context.bounds.forget(domain)  # more of them may have been left in the queue
            if not (yield from self._receive_read(domain, request, queues, read, claimed)):
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
    ) -> Autocommit:
        """The claim of the first visible messages in these ranges of numbers, one range per queue; with
        `fresh`, only of what was never read."""
        wanted = self._most_at_once(domain, request.limit - len(claimed), limit)
        duration = _micro(request.lease_seconds)
        ends = integers(lasts or [_LAST] * len(queues))
        query = self._messages.texts.claim(queues, fresh=fresh)
        values = {
            "domain": domain,
            "wanted": wanted,
            "worker": request.worker,
            "firsts": integers(firsts),
            "duration": duration,
            "lasts": ends,
            **suspect_values(limit),
        }
        return Autocommit(query.sql, query.params(values))

    def _claim_one_by_one(
        self, domain: str, request: ClaimRequest, queues: Sequence[Queue], claimed: list[Claimed]
    ) -> Op[None]:
        """The server cannot carry out a claim because of a value in one of its rows: that row is set
        aside, so that it fails no other claim."""
        wanted = request.limit - len(claimed)
        rows = yield Autocommit(self._messages.texts("first_visible", queues), (wanted,))
        for queue_id, msg_id, read_count, seq in rows:
            firsts = [msg_id if queue.queue_id == queue_id else _LAST for queue in queues]
            lasts = [msg_id if queue.queue_id == queue_id else 0 for queue in queues]
            try:
                found = yield self._claim_of(domain, request, claimed, queues, firsts, lasts)
            except CommandBusError as error:
                if not is_about_a_value(error):
                    raise
                message = Message(Place(queue_id, msg_id), 0, read_count - 1)
                yield from self._set_aside(domain, queues, message, seq, error)
            else:
                yield from self._receive_read(domain, request, queues, _read(found), claimed)

    def _set_aside(
        self,
        domain: str,
        queues: Sequence[Queue],
        message: Message,
        seq: int | None,
        error: CommandBusError,
    ) -> Op[None]:
        """Archive a message that cannot be claimed, or park the command that it carries."""
        try:
            if seq is None:
                yield from self._refuse(domain, queues, [(message, f"{UNREADABLE}: {error}")])
            else:
                words = f"Its message cannot be claimed: {error}"
                failure = Failure(FailureKind.PERMANENT, UNREADABLE, words)
                attempts = min(max(message.read_count + 1, 0), ATTEMPTS_MAX)
                yield from self._park(domain, seq, attempts, failure)
        except CommandBusError as refusal:  # by another worker meanwhile, or with the next claim
            logger.warning("message %d is not set aside yet: %s", message.place.msg_id, refusal)

    def _receive_read(
        self,
        domain: str,
        request: ClaimRequest,
        queues: Sequence[Queue],
        read: ReadMessages,
        claimed: list[Claimed],
    ) -> Op[bool]:
        """What a claim has read; whether some were no commands to run, so that there is room."""
        more = False
        if read.ours:
            more = yield from self._keep_claimed(
                domain, request.worker, read.ours, read.places, claimed
            )
        if read.others:
            yield from self._receive_others(domain, request, queues, read.others, claimed)
            more = True
        return more

    def _receive_others(
        self,
        domain: str,
        request: ClaimRequest,
        queues: Sequence[Queue],
        others: Sequence[Message],
        claimed: list[Claimed],
    ) -> Op[None]:
        """Messages of other senders become commands; what cannot is archived, with the reason."""
        refused: list[tuple[Message, str]] = []
        envelopes: Envelopes = {}
        by_id = {queue.queue_id: queue for queue in queues}
        for message in others:
            if message.text is None:
                refused.append((message, "ENDED: its command has an outcome already"))
                continue
            try:
                text, headers, sent_at = _text.decode(message.text)
                envelope = read_envelope(text, headers, by_id[message.place.queue_id].mapping)
            except Refusal as error:
                refused.append((message, str(error)))
            else:
                envelopes[message.place] = message._replace(sent_at=sent_at), envelope
        if envelopes:
            yield from self._admit_others(domain, request, queues, envelopes, claimed, refused)
        if refused:
            yield from self._refuse(domain, queues, refused)

    def _admit_others(
        self,
        domain: str,
        request: ClaimRequest,
        queues: Sequence[Queue],
        envelopes: Envelopes,
        claimed: list[Claimed],
        refused: list[tuple[Message, str]],
    ) -> Op[None]:
        """Make commands of messages; what the server does not take, or has already, is refused."""
        query = self._messages.texts.admit(_among(queues, {place.queue_id for place in envelopes}))
        lease = {
            "domain": domain,
            "worker": request.worker,
            "duration": _micro(request.lease_seconds),
        }
        try:
            found = yield Autocommit(query.sql, query.params(_admitted(envelopes) | lease))
        except CommandBusError as error:
            if not is_about_a_value(error):
                raise
            if len(envelopes) == 1:
                refused += [(one, f"{UNREADABLE}: {error}") for one, _ in envelopes.values()]
                return
            for key, entry in envelopes.items():
                alone = {key: entry}
                yield from self._admit_others(domain, request, queues, alone, claimed, refused)
            return
        yield from self._keep_admitted(domain, request.worker, found, envelopes, claimed)
        fresh = {(queue_id, msg_id) for queue_id, msg_id, _, _, _ in found}
        refused += [(one, _taken(e)) for place, (one, e) in envelopes.items() if place not in fresh]

    def _keep_admitted(
        self, domain: str, worker: str, found: Rows, envelopes: Envelopes, claimed: list[Claimed]
    ) -> Op[None]:
        """What the query `admit` has put under a lease, as if it had been claimed."""
        rows: list[Row] = []
        places: dict[int, Place] = {}
        for queue_id, msg_id, seq, lease_id, now in found:
            places[seq] = place = Place(queue_id, msg_id)
            message, envelope = envelopes[place]
            expired = envelope.expires_at is not None and envelope.expires_at <= now
            optional = [getattr(envelope, column.name, None) for column in CLAIMED]
            rows.append((
                seq, lease_id, now, message.priority, message.read_count, 0, 0, False, expired,
                now - message.sent_at, 0, envelope.command_type, envelope.command_id, envelope.data,
                envelope.correlation_id, message.sent_at, *optional,
            ))  # fmt: skip
        if rows:
            yield from self._keep_claimed(domain, worker, rows, places, claimed)

    def _keep_claimed(
        self, domain: str, worker: str, rows: Rows, places: dict[int, Place], claimed: list[Claimed]
    ) -> Op[bool]:
        """Rows with the columns of the engine's own query; whether some had expired."""
        ended = self._receive(domain, worker, rows, claimed).unclaimable
        _, lease_id, *_ = rows[-1]
        lease = self._context.leases.get(lease_id)
        assert lease is not None
        self._context.leases.keep(with_places(lease, lease.commands, places))
        if ended:
            yield from self._end_unclaimable(domain, ended)
        return bool(ended)

    def _refuse(
        self, domain: str, queues: Sequence[Queue], refused: list[tuple[Message, str]]
    ) -> Op[None]:
        names = {queue.queue_id: queue.name for queue in queues}
        for message, reason in refused:
            logger.warning(
                "message %d of queue %s is archived, because it is no command: %s",
                message.place.msg_id,
                names[message.place.queue_id],
                reason,
            )
        params = (
            integers(message.place.queue_id for message, _ in refused),
            integers(message.place.msg_id for message, _ in refused),
            integers(message.read_count + 1 for message, _ in refused),
            texts(reason for _, reason in refused),
            domain,
        )
        concerned = _among(queues, {message.place.queue_id for message, _ in refused})
        yield Autocommit(self._messages.texts("refuse", concerned), params)


def _among(queues: Sequence[Queue], wanted: set[int]) -> list[Queue]:
    """In the order of their ids, so that a set of queues has one text."""
    chosen = [queue for queue in queues if queue.queue_id in wanted]
    return sorted(chosen, key=lambda queue: queue.queue_id)


def _read(rows: Rows) -> ReadMessages:
    """Rows of the query `claim`: columns of the message come before those of the engine's own query."""
    ours: list[Row] = []
    others: list[Message] = []
    places: dict[int, Place] = {}
    last: dict[int, int] = {}
    suspects = False
    for queue_id, msg_id, ended, priority, read_count, crashes, text, seq, *rest in rows:
        last[queue_id] = msg_id
        suspects = suspects or bool(crashes)
        place = Place(queue_id, msg_id)
        if ended or text is not None:
            others.append(Message(place, priority, read_count, text))
        else:
            ours.append((seq, *rest))
            places[seq] = place
    return ReadMessages(ours, others, places, last, suspects)


def _admitted(envelopes: Envelopes) -> Values:
    messages = [message for message, _ in envelopes.values()]
    read = [envelope for _, envelope in envelopes.values()]
    return MESSAGES(
        queue_id=[message.place.queue_id for message in messages],
        msg_id=[message.place.msg_id for message in messages],
        read_ct=[message.read_count + 1 for message in messages],
        command_id=[e.command_id for e in read],
        command_type=[e.command_type for e in read],
        data=[e.data for e in read],
        correlation_id=[e.correlation_id for e in read],
        causation_id=[e.causation_id for e in read],
        reply_to=[e.reply_to for e in read],
        priority=[message.priority for message in messages],
        max_attempts=[e.max_attempts for e in read],
        created_at=[message.sent_at for message in messages],
        expires_at=[e.expires_at for e in read],
        tags=[e.tags for e in read],
        headers=[e.headers for e in read],
    )


def _taken(envelope: Envelope) -> str:
    return f"DUPLICATE: there is a command {envelope.command_id} in this domain already"


def _micro(seconds: float) -> int:
    return int(seconds * SECOND)
