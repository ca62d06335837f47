"""Connections that outlive a bus, for suites that open one on the same database in each of many tests.

A new backend reads the catalogs, and plans each statement before its first use: a send, a claim and an
outcome take 40 ms of the server on new connections, and 2 ms on used ones. The pools of the bus lend
connections to one caller after another anyway; here, those of one test go to the bus of the next.
"""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import chain
from typing import Any

import psycopg
import pytest
from psycopg.pq import ConnStatus, TransactionStatus

from commandbus.engines.postgres import schema
from commandbus.engines.postgres.connections import is_alive
from commandbus.engines.postgres.listener import Listener
from commandbus.engines.postgres.location import Location
from commandbus.engines.postgres.pools import UnboundedPool

KEPT_MAX = 4
"""Of one kind; few tests need more."""

CLEAN = (
    b"unlisten *; reset all; reset role; close all; discard temp; discard sequences;"
    b" select pg_advisory_unlock_all()"
)
"""What the end of a connection would undo. Prepared statements stay, because the driver knows them."""


class Keeper:
    """Connections by what they were opened for."""

    def __init__(self, kept_max: int = KEPT_MAX) -> None:
        self._kept_max = kept_max
        self._lock = threading.Lock()
        self._free: defaultdict[Hashable, list[Any]] = defaultdict(list)

    def take(self, key: Hashable) -> Any:
        """A connection that works, or None."""
        while True:
            with self._lock:
                free = self._free[key]
                connection = free.pop() if free else None
            if connection is None or is_alive(connection):
                return connection
            connection.pgconn.finish()

    def give(self, key: Hashable, connection: Any) -> None:
        """Keep a connection that nobody uses any more, or end it."""
        if self._kept_max and _clean(connection):
            with self._lock:
                if len(self._free[key]) < self._kept_max:
                    self._free[key].append(connection)
                    return
        connection.pgconn.finish()

    @contextmanager
    def lend(self, key: Hashable, connect: Callable[[], Any]) -> Iterator[Any]:
        """A connection until the end of the block, where it would be closed."""
        connection = self.take(key) or connect()
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        self.give(key, connection)

    def close(self) -> None:
        with self._lock:
            for connection in chain.from_iterable(self._free.values()):
                connection.pgconn.finish()
            self._free.clear()


def _clean(connection: Any) -> bool:
    """Whether a connection is as if it were new; its thread or loop may be gone."""
    pgconn = connection.pgconn
    if pgconn.status != ConnStatus.OK or pgconn.transaction_status != TransactionStatus.IDLE:
        return False
    pgconn.notify_handler = None
    pgconn.exec_(CLEAN)
    while pgconn.status == ConnStatus.OK and pgconn.notifies() is not None:
        pass
    if isinstance(connection, psycopg.AsyncConnection):
        connection.lock = asyncio.Lock()  # the next loop is another one
    return bool(pgconn.status == ConnStatus.OK and pgconn.transaction_status == TransactionStatus.IDLE)


_keeper: Keeper | None = None


def is_keeping() -> bool:
    return _keeper is not None


@contextmanager
def keeping() -> Iterator[None]:
    """Keep connections of buses and of `session` until the end of the block."""
    global _keeper
    keeper = _keeper = Keeper()
    with pytest.MonkeyPatch.context() as patch:
        _keep_of_pools(keeper, patch)
        _keep_of_others(keeper, patch)
        try:
            yield
        finally:
            _keeper = None
            keeper.close()


def _keep_of_pools(keeper: Keeper, patch: pytest.MonkeyPatch) -> None:
    connect = UnboundedPool.connect

    def key(pool: Any) -> Hashable:
        return pool._kind, pool.location.conninfo, pool.location.prepare

    async def take_or_connect(pool: Any, settings: dict[str, Any]) -> Any:
        connection = keeper.take(key(pool))
        if connection is None:
            return await connect(pool, settings)
        pool.keep(connection)
        return connection

    def end(pool: Any, connection: Any) -> None:
        pool._old_at.pop(connection, None)
        keeper.give(key(pool), connection)

    patch.setattr(UnboundedPool, "connect", take_or_connect)
    patch.setattr(UnboundedPool, "_end", end)


def _keep_of_others(keeper: Keeper, patch: pytest.MonkeyPatch) -> None:
    """Those of listeners, and those that look at the schema when a bus opens."""
    listen, administer = Listener._connect, schema.connect

    def listening(listener: Any) -> AbstractContextManager[Any]:
        key = Listener, listener._location.listen_conninfo, listener._location.conninfo
        return keeper.lend(key, lambda: listen(listener))

    def administering(place: Location) -> AbstractContextManager[Any]:
        return keeper.lend((schema, place.conninfo), lambda: administer(place))

    patch.setattr(Listener, "_connect", listening)
    patch.setattr(schema, "connect", administering)


def session(url: str) -> AbstractContextManager[psycopg.Connection[Any]]:
    """A connection of a test's own, which commits by itself."""
    keeper = _keeper or Keeper(kept_max=0)
    return keeper.lend(url, lambda: psycopg.connect(url, autocommit=True))
