"""What the parts of the PGMQ transport share: the queues, and how they come about."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from commandbus.domain.priority import LABELS
from commandbus.domain.reply import REPLY_TYPE
from commandbus.engines.postgres.arrays import integers, texts
from commandbus.engines.postgres.base import PostgresBase
from commandbus.engines.postgres.pgmq.queues import Queue, Queues, Texts, templates
from commandbus.engines.postgres.statements import ORIGIN, Atomic
from commandbus.store.op import Op, Read


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


class PgmqBase(PostgresBase):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._queues = Queues()
        self._plain = templates(self._schema)
        self._texts = Texts(self._schema, last_read_at=True)

    def use_version(self, *, last_read_at: bool) -> None:
        """Statements for the tables that the server's version of PGMQ has."""
        self._texts = Texts(self._schema, last_read_at=last_read_at)

    def _learn(self, domains: Iterable[str]) -> Op[None]:
        """Look up the queues of domains; each has at least the one of its ordinary commands, for
        others to send to."""
        wanted = list(domains)
        yield from self._look_up(wanted)
        for domain in wanted:
            if not self._queues.of(domain):
                yield from self._bind(domain, LABELS["normal"], replies=False)

    def _look_up(self, domains: list[str] | None) -> Op[None]:
        chosen = None if domains is None else texts(domains)
        rows = yield Atomic(self._plain.queues, (chosen, ORIGIN))
        self._queues.learn(domains, rows)

    def _known(self, domain: str) -> Op[list[Queue]]:
        if not self._queues.is_sure(domain):
            yield from self._learn([domain])
        return self._queues.of(domain)

    def _bind(self, domain: str, priority: int, *, replies: bool) -> Op[None]:
        """Create a queue for a domain's commands of a priority, or for replies to it."""
        yield Atomic(self._plain.bind, (domain, priority, replies))
        yield from self._look_up([domain])

    def _carriers(self, kinds: Iterable[Kind]) -> Op[list[Queue]]:
        """The queues that carry such commands, created where they are missing."""
        carriers: dict[int, Queue] = {}
        for domain, priority, command_type in sorted(set(kinds)):
            yield from self._known(domain)
            queue = self._queues.carrier(domain, priority, command_type)
            if queue is None:
                yield from self._bind(domain, priority, replies=command_type == REPLY_TYPE)
                queue = self._queues.carrier(domain, priority, command_type)
                assert queue is not None, "a queue that was just created is not there"
            carriers[queue.queue_id] = queue
        return [carriers[queue_id] for queue_id in sorted(carriers)]

    def _places(self, seqs: Sequence[int]) -> Op[dict[int, Place]]:
        """Where the messages of commands are; their queues become known."""
        rows = yield Read(self._plain.places, (integers(seqs),))
        if any(self._queues.get(queue_id) is None for _, queue_id, _ in rows):
            yield from self._look_up(None)
        return {
            seq: Place(queue_id, msg_id)
            for seq, queue_id, msg_id in rows
            if self._queues.get(queue_id) is not None
        }
