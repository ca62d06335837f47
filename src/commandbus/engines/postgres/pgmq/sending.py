"""Commands on their way in, over PGMQ: the engine's statements, with messages for what waits."""

from __future__ import annotations

from collections.abc import Sequence

from commandbus.domain.limits import Limit
from commandbus.engines.postgres.arrays import EMPTY, integers
from commandbus.engines.postgres.copying import Row
from commandbus.engines.postgres.pgmq.base import PgmqBase
from commandbus.engines.postgres.sending import PostgresSending
from commandbus.engines.postgres.statements import Shared
from commandbus.errors import InvalidOperationError, SchemaOutdated
from commandbus.store.op import Op, Statement
from commandbus.store.records import Capacity, Inserted, NewCommand


class PgmqSending(PgmqBase, PostgresSending):
    def insert(self, commands: Sequence[NewCommand], capacity: Capacity) -> Op[list[Inserted]]:
        for command in commands:
            if command.group_key is not None or command.requires is not None:
                raise InvalidOperationError(
                    "Over PGMQ every reader of a queue takes what it finds, so group_key and requires "
                    "cannot be kept; leave them out, or open the bus without transport='pgmq'."
                )
        return self._insert(commands, capacity)

    def put_limit(self, limit: Limit) -> Op[None]:
        if not limit.per_sender:
            raise InvalidOperationError(
                "Over PGMQ every reader of a queue takes what it finds, so only sends can be limited "
                "(per_sender=True); open the bus without transport='pgmq' for other limits."
            )
        return super().put_limit(limit)

    def _insert_some(self, commands: list[NewCommand], kind: type[Statement]) -> Op[list[bool]]:
        yield from self._carriers(_kinds(commands))
        try:
            return (yield from super()._insert_some(commands, kind))
        except SchemaOutdated:
            # A queue was dropped, or its creation undone; a lone statement may be tried again.
            self._queues.forget()
            if kind is not Shared:
                raise
        yield from self._carriers(_kinds(commands))
        return (yield from super()._insert_some(commands, kind))

    def _insert_sql(self, commands: Sequence[NewCommand]) -> tuple[str, str | None]:
        found = [self._queues.carrier(*kind) for kind in _kinds(commands)]
        carriers = self._queues.among(queue.queue_id for queue in found if queue is not None)
        return self._texts.insert(carriers), None

    def _copy_places(self, ready: list[Row], later: list[Row]) -> Op[None]:
        rows = sorted(ready + later, key=lambda row: row[0])
        yield from self._put(_kinds([row[1] for row in rows]), integers(row[0] for row in rows))

    def _put(self, kinds: set[tuple[str, int, str]], seqs: str, *state: str) -> Op[None]:
        """Messages for commands that are in the store: due times, attempts, crashes and releases
        follow their sequences, where they are not those of new commands."""
        carriers = yield from self._carriers(kinds)
        columns = (seqs, *state, *([EMPTY] * (4 - len(state))))
        yield Statement(self._texts("put", carriers), columns)

    def _count_pending(self, domain: str, limit: int) -> Op[int]:
        queues = yield from self._known(domain)
        rows = yield Statement(self._texts("count_pending", queues), (domain, limit))
        return int(rows[0][0])


def _kinds(commands: Sequence[NewCommand]) -> set[tuple[str, int, str]]:
    return {(command.domain, command.priority, command.command_type) for command in commands}
