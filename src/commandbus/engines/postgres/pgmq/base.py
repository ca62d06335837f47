"""The base of the parts of the PGMQ transport: the queues, and how they are made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from commandbus.domain.priority import LABELS
from commandbus.domain.reply import REPLY_TYPE
from commandbus.engines.postgres.arrays import integers, texts
from commandbus.engines.postgres.context import Context, Part
from commandbus.engines.postgres.pgmq.queues import WAITING, Queue, Queues, Texts, templates
from commandbus.engines.postgres.statements import ORIGIN, Autocommit
from commandbus.store.op import Op, Read, Statement


class Place(NamedTuple):
    """Where a message is."""

    queue_id: int
    msg_id: int


class Waiting(NamedTuple):
    """A command that is to get a message: when it becomes visible, by default when the command is due,
    and what the message counts."""

    seq: int
    ready_at: int | None
    attempts: int
    crashes: int
    releases: int


Kind = tuple[str, int, str]
"""Domain, priority and type of commands, which decide about their queue."""


def place_columns(places: Mapping[int, Place]) -> tuple[str, str, str]:
    """Sequences, queues and numbers of messages as arrays."""
    return (
        integers(places),
        integers(place.queue_id for place in places.values()),
        integers(place.msg_id for place in places.values()),
    )


class Messages(Part):
    """The queues of this database, as this process knows them, and what is common to all that it does
    with their messages."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.queues = Queues()
        self.plain = templates(self._context.schema)
        self.texts = Texts(self._context.schema, last_read_at=True)

    def use_version(self, *, last_read_at: bool) -> None:
        """Statements for the tables that the server's version of PGMQ has."""
        self.texts = Texts(self._context.schema, last_read_at=last_read_at)

    def learn(self, domains: Iterable[str]) -> Op[None]:
        """Look up the queues of domains; each has at least the one of its ordinary commands, for
        others to send to."""
        wanted = list(domains)
        yield from self.look_up(wanted)
        for domain in wanted:
            if not self.queues.of(domain):
                yield from self.bind(domain, LABELS["normal"], replies=False)

    def look_up(self, domains: list[str] | None) -> Op[None]:
        chosen = None if domains is None else texts(domains)
        rows = yield Autocommit(self.plain.queues, (chosen, ORIGIN))
        self.queues.learn(domains, rows)

    def known(self, domain: str) -> Op[list[Queue]]:
        if not self.queues.is_sure(domain):
            yield from self.learn([domain])
        return self.queues.of(domain)

    def bind(self, domain: str, priority: int, *, replies: bool) -> Op[None]:
        """Create a queue for a domain's commands of a priority, or for replies to it."""
        yield Autocommit(self.plain.bind, (domain, priority, replies))
        yield from self.look_up([domain])

    def carriers(self, kinds: Iterable[Kind]) -> Op[list[Queue]]:
        """The queues that carry such commands, created where they are missing."""
        carriers: dict[int, Queue] = {}
        for domain, priority, command_type in sorted(set(kinds)):
            yield from self.known(domain)
            queue = self.queues.carrier(domain, priority, command_type)
            if queue is None:
                yield from self.bind(domain, priority, replies=command_type == REPLY_TYPE)
                queue = self.queues.carrier(domain, priority, command_type)
                assert queue is not None, "a queue that was just created is not there"
            carriers[queue.queue_id] = queue
        return [carriers[queue_id] for queue_id in sorted(carriers)]

    def places(self, seqs: Sequence[int]) -> Op[dict[int, Place]]:
        """Where the messages of commands are; their queues become known."""
        rows = yield Read(self.plain.places, (integers(seqs),))
        if any(self.queues.get(queue_id) is None for _, queue_id, _ in rows):
            yield from self.look_up(None)
        return {
            seq: Place(queue_id, msg_id)
            for seq, queue_id, msg_id in rows
            if self.queues.get(queue_id) is not None
        }

    def put(
        self, kinds: Iterable[Kind], waiting: Sequence[Waiting], *, with_payload: bool = True
    ) -> Op[None]:
        """Messages for commands that are in the store."""
        carriers = yield from self.carriers(kinds)
        values = WAITING(
            seq=[one.seq for one in waiting],
            ready_at=[one.ready_at for one in waiting],
            attempts=[one.attempts for one in waiting],
            crashes=[one.crashes for one in waiting],
            releases=[one.releases for one in waiting],
        )
        query = self.texts.put(carriers)
        yield Statement(query.sql, query.params(values | {"with_payload": with_payload}))

    def take_over(self, domains: Sequence[str], *, with_payload: bool = True) -> Op[None]:
        """Messages for what waits in the engine's own table: retried by an operator, or sent by a
        program that does not know of PGMQ."""
        rows = yield Statement(self.plain.take_over, (texts(domains),))
        if rows:
            kinds = {tuple(kind) for _, _, _, _, _, *kind in rows}
            waiting = [Waiting(*state) for *state, _, _, _ in rows]
            yield from self.put(kinds, waiting, with_payload=with_payload)

    def gone(self, seqs: Iterable[int], lease_id: int) -> Autocommit:
        """Which of these commands have no message any more and no outcome, under this lease or none."""
        queues = self.queues.all()
        params = integers(seqs), lease_id, integers(queue.queue_id for queue in queues)
        return Autocommit(self.texts("gone", queues), params)

    def as_read(self, attempts: Mapping[int, int]) -> Op[dict[int, Place]]:
        """Those of commands whose messages have been read so many times, and not once more."""
        places = yield from self.places(list(attempts))
        if not places:
            return {}
        queues = self.queues.among(place.queue_id for place in places.values())
        columns = (*place_columns(places), integers(attempts[seq] for seq in places))
        found = (yield Statement(self.texts("as_read", queues), columns)) if queues else ()
        return {seq: places[seq] for (seq,) in found}
