"""`SyncPgmqClient`: PGMQ's functions for programs without an event loop."""

from __future__ import annotations

from typing import Any, Self

from commandbus.operations import pgmq
from commandbus.runtimes.base import PgmqClientBase
from commandbus.runtimes.threads.facade import blocking_own
from commandbus.store.session import Session


class _Functions:
    session: Session

    create = blocking_own(pgmq.create)
    create_unlogged = blocking_own(pgmq.create_unlogged)
    create_partitioned = blocking_own(pgmq.create_partitioned)
    drop = blocking_own(pgmq.drop)
    purge = blocking_own(pgmq.purge)
    list_queues = blocking_own(pgmq.list_queues)
    send = blocking_own(pgmq.send)
    send_batch = blocking_own(pgmq.send_batch)
    read = blocking_own(pgmq.read)
    read_with_poll = blocking_own(pgmq.read_with_poll)
    read_grouped = blocking_own(pgmq.read_grouped)
    read_grouped_rr = blocking_own(pgmq.read_grouped_rr)
    pop = blocking_own(pgmq.pop)
    set_vt = blocking_own(pgmq.set_vt)
    delete = blocking_own(pgmq.delete)
    archive = blocking_own(pgmq.archive)
    metrics = blocking_own(pgmq.metrics)
    metrics_all = blocking_own(pgmq.metrics_all)
    bind_topic = blocking_own(pgmq.bind_topic)
    unbind_topic = blocking_own(pgmq.unbind_topic)
    send_topic = blocking_own(pgmq.send_topic)
    enable_notify = blocking_own(pgmq.enable_notify)
    disable_notify = blocking_own(pgmq.disable_notify)


class SyncPgmqClient(PgmqClientBase, _Functions):
    """A client of PGMQ: `with SyncPgmqClient("postgresql://…") as client:`. Each call is a
    transaction; `within(connection)` makes calls part of the caller's. Threads may share one."""

    @property
    def session(self) -> Session:  # type: ignore[override]
        return self._engine.session

    def __enter__(self) -> Self:
        self._engine.open()
        return self

    def __exit__(self, *_: object) -> None:
        self._engine.close()

    def within(self, connection: Any) -> SyncPgmqWithin:
        """The same functions inside the caller's own transaction."""
        return SyncPgmqWithin(self._engine.within(connection))


class SyncPgmqWithin(_Functions):
    """PGMQ's functions inside a caller's transaction; see `SyncPgmqClient.within`."""

    def __init__(self, session: Session) -> None:
        self.session = session
