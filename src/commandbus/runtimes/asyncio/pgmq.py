"""`PgmqClient`: PGMQ's functions for asyncio programs."""

from __future__ import annotations

from typing import Any, Self

from commandbus.operations import pgmq
from commandbus.runtimes.asyncio.facade import awaiting_own
from commandbus.runtimes.base import PgmqClientBase
from commandbus.store.session import AsyncSession


class _Functions:
    session: AsyncSession

    create = awaiting_own(pgmq.create)
    create_unlogged = awaiting_own(pgmq.create_unlogged)
    create_partitioned = awaiting_own(pgmq.create_partitioned)
    drop = awaiting_own(pgmq.drop)
    purge = awaiting_own(pgmq.purge)
    list_queues = awaiting_own(pgmq.list_queues)
    send = awaiting_own(pgmq.send)
    send_batch = awaiting_own(pgmq.send_batch)
    read = awaiting_own(pgmq.read)
    read_with_poll = awaiting_own(pgmq.read_with_poll)
    read_grouped = awaiting_own(pgmq.read_grouped)
    read_grouped_rr = awaiting_own(pgmq.read_grouped_rr)
    pop = awaiting_own(pgmq.pop)
    set_vt = awaiting_own(pgmq.set_vt)
    delete = awaiting_own(pgmq.delete)
    archive = awaiting_own(pgmq.archive)
    metrics = awaiting_own(pgmq.metrics)
    metrics_all = awaiting_own(pgmq.metrics_all)
    bind_topic = awaiting_own(pgmq.bind_topic)
    unbind_topic = awaiting_own(pgmq.unbind_topic)
    send_topic = awaiting_own(pgmq.send_topic)
    enable_notify = awaiting_own(pgmq.enable_notify)
    disable_notify = awaiting_own(pgmq.disable_notify)


class PgmqClient(PgmqClientBase, _Functions):
    """A client of PGMQ: `async with PgmqClient("postgresql://…") as client:`. Each call is a
    transaction; `within(connection)` makes calls part of the caller's."""

    @property
    def session(self) -> AsyncSession:  # type: ignore[override]
        return self._engine.async_session

    async def __aenter__(self) -> Self:
        await self._engine.open_async()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._engine.close_async()

    def within(self, connection: Any) -> PgmqWithin:
        """The same functions inside the caller's own transaction."""
        return PgmqWithin(self._engine.within_async(connection))


class PgmqWithin(_Functions):
    """PGMQ's functions inside a caller's transaction; see `PgmqClient.within`."""

    def __init__(self, session: AsyncSession) -> None:
        self.session = session
