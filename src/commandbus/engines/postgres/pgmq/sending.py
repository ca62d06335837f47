"""Commands on their way in, over PGMQ: the engine's statements, with messages for what waits."""

from __future__ import annotations

from collections.abc import Sequence

from commandbus.domain.limits import Limit
from commandbus.domain.reply import REPLY_TYPE
from commandbus.engines.postgres.context import Context
from commandbus.engines.postgres.insert_query import Insert
from commandbus.engines.postgres.limits import Limits
from commandbus.engines.postgres.pgmq.base import Kind, Messages
from commandbus.engines.postgres.pgmq.copying import Message, message_line, place_line
from commandbus.engines.postgres.pgmq.queues import Queue
from commandbus.engines.postgres.sending import Sender
from commandbus.engines.postgres.statements import Coalescing, Copy
from commandbus.errors import InvalidOperationError, SchemaOutdated
from commandbus.store.inserting import Row
from commandbus.store.op import Op, Statement, scalar
from commandbus.store.records import Capacity, Inserted, NewCommand


class PgmqLimits(Limits):
    def put_limit(self, limit: Limit) -> Op[None]:
        if not limit.per_sender:
            raise InvalidOperationError(
                "Over PGMQ every reader of a queue takes what it finds, so only sends can be limited "
                "(per_sender=True); open the bus without transport='pgmq' for other limits."
            )
        return super().put_limit(limit)


class PgmqSender(Sender):
    def __init__(self, context: Context, limits: Limits, messages: Messages) -> None:
        super().__init__(context, limits)
        self._messages = messages

    def insert(self, commands: Sequence[NewCommand], capacity: Capacity) -> Op[list[Inserted]]:
        for command in commands:
            if command.group_key is not None or command.requires is not None:
                raise InvalidOperationError(
                    "Over PGMQ every reader of a queue takes what it finds, so group_key and requires "
                    "cannot be kept; leave them out, or open the bus without transport='pgmq'."
                )
        return self._insert(commands, capacity)

    def _insert_some(self, commands: list[NewCommand], kind: type[Statement]) -> Op[list[bool]]:
        if self._context.limited:
            # Without rights on queues it leaves commands in the tables, where workers take them over.
            return (yield from super()._insert_some(commands, kind))
        yield from self._messages.carriers(_kinds(commands))
        try:
            return (yield from super()._insert_some(commands, kind))
        except SchemaOutdated:
            # A queue was dropped, or its creation undone; a lone statement may be tried again.
            self._messages.queues.forget()
            if kind is not Coalescing:
                raise
        yield from self._messages.carriers(_kinds(commands))
        return (yield from super()._insert_some(commands, kind))

    def _insert_query(self, commands: Sequence[NewCommand]) -> tuple[Insert, str | None, str | None]:
        if self._context.limited:
            return super()._insert_query(commands)
        found = [self._messages.queues.carrier(*kind) for kind in _kinds(commands)]
        carriers = self._messages.queues.among(queue.queue_id for queue in found if queue is not None)
        return self._messages.texts.insert(carriers), None, None

    def _copy_plain_places(self, rows: list[Row], now: int) -> Op[None]:
        yield from self._copy_places(rows, [])

    def _copy_places(self, ready: list[Row], later: list[Row]) -> Op[None]:
        rows = sorted(ready + later, key=_sequence)
        commands = [command for _, command, _, _ in rows]
        yield from self._messages.carriers(_kinds(commands))
        announced = " ".join(["", *sorted({command.domain for command in commands}), ""])
        messages: list[Message] = []
        for queue, carried in self._by_carrier(rows):
            params = (queue.sequence, len(carried), announced)
            ((drawn, _),) = yield Statement(self._messages.plain.draw_numbers, params)
            copied = [(queue.queue_id, msg_id, row) for msg_id, row in zip(drawn, carried, strict=True)]
            yield Copy(self._messages.texts.of_one("copy_messages", queue), copied, render=message_line)
            messages += copied
        yield Copy(self._messages.plain.copy_message_places, messages, render=place_line)

    def _by_carrier(self, rows: list[Row]) -> list[tuple[Queue, list[Row]]]:
        """Rows with the queues that carry them, which are known."""
        found: dict[tuple[str, int, bool], tuple[Queue, list[Row]]] = {}
        for row in rows:
            _, c, _, _ = row
            kind = c.domain, c.priority, c.command_type == REPLY_TYPE
            if kind not in found:
                queue = self._messages.queues.carrier(c.domain, c.priority, c.command_type)
                assert queue is not None, "a queue is gone that was just looked up"
                found[kind] = (queue, [])
            _, carried = found[kind]
            carried.append(row)
        return list(found.values())

    def _count_pending(self, domain: str, limit: int) -> Op[int]:
        if self._context.limited:
            return (yield from super()._count_pending(domain, limit))
        queues = yield from self._messages.known(domain)
        return int(
            scalar((yield Statement(self._messages.texts("count_pending", queues), (domain, limit))))
        )


def _sequence(row: Row) -> int:
    seq, _, _, _ = row
    return seq


def _kinds(commands: Sequence[NewCommand]) -> set[Kind]:
    return {(command.domain, command.priority, command.command_type) for command in commands}
