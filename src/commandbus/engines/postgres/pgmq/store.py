"""The store over PGMQ: the parts that work on messages, put together."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from commandbus.domain.adopted_messages import QueueMapping
from commandbus.domain.names import as_queue
from commandbus.engines.postgres.listener import Other
from commandbus.engines.postgres.pgmq.base import Messages
from commandbus.engines.postgres.pgmq.claiming import PgmqClaimer
from commandbus.engines.postgres.pgmq.operators import PgmqArrivals, PgmqEraser, PgmqOperators
from commandbus.engines.postgres.pgmq.reads import PgmqReader
from commandbus.engines.postgres.pgmq.sending import PgmqLimits, PgmqSender
from commandbus.engines.postgres.pgmq.settling import PgmqSettler
from commandbus.engines.postgres.store import PostgresStore, Transport
from commandbus.errors import InvalidArgumentError
from commandbus.store.op import Op, Statement, Wake


class PgmqStore(PostgresStore):
    """Commands in PostgreSQL tables; what waits or runs is a message in a PGMQ queue."""

    capabilities = msgspec.structs.replace(
        PostgresStore.capabilities, adopted_queues=True, gates=False, ageing=False
    )

    def _transport(self) -> Transport:
        context, messages = self.context, Messages(self.context)
        limits = PgmqLimits(context)
        sender = PgmqSender(context, limits, messages)
        settler = PgmqSettler(context, sender, messages)
        self.messages = messages
        self._claimer = PgmqClaimer(context, limits, settler, messages)
        self.use_version = messages.use_version
        return Transport(
            limits,
            sender,
            settler,
            self._claimer,
            PgmqReader(context, messages),
            PgmqOperators(context, settler, self._batches, messages),
            PgmqEraser(context, messages),
            PgmqArrivals(context, sender),
        )

    def listen_also(self, listen: Callable[[Mapping[str, Other]], None] | None) -> None:
        """How to hear channels of PGMQ, while this process listens."""
        self._claimer.listen_also = listen

    def adopt_queue(self, domain: str, queue: str, mapping: QueueMapping, priority: int) -> Op[None]:
        name = as_queue(queue)
        ((exists, _),) = yield Statement(self.messages.plain.is_queue, (name,))
        if not exists:
            raise InvalidArgumentError(
                f"There is no PGMQ queue {queue!r}; create it first, or check its name."
            )
        text = msgspec.json.encode(mapping.check()).decode()
        yield Statement(self.messages.plain.adopt, (name, domain, priority, text))
        yield from self.messages.look_up([domain])
        yield Wake(domain)
