"""The PostgreSQL engine: its pools, its listener, and the sessions over them."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Any

from psycopg_pool import AsyncConnectionPool, ConnectionPool

from commandbus.domain.ids import new_id
from commandbus.engines.postgres import connections, location, schema
from commandbus.engines.postgres.callers import (
    AsyncCallerSession,
    CallerSession,
    async_caller_session,
    caller_session,
)
from commandbus.engines.postgres.listener import Listener
from commandbus.engines.postgres.session import AsyncPostgresSession, PostgresSession
from commandbus.engines.postgres.store import PostgresStore
from commandbus.engines.postgres.watch import Watch
from commandbus.errors import InvalidOperationError
from commandbus.store.op import Op, Wake
from commandbus.store.wakeup import WakeHub

THREADS_POOL_SIZE = 2
"""Under asyncio, connections for threads: the lease keeper and `def` handlers."""


class PostgresEngine:
    """One database, shared by any number of processes on any number of machines.

    Its connections: at most `pool_size` for ops, one that listens while a worker is here, and under
    asyncio two more for threads. None is opened before it is needed.
    """

    store_class: type[PostgresStore] = PostgresStore

    def __init__(self, url: str, *, migrate: bool = False) -> None:
        self.url = url
        self.location = location.parse(url)
        self.process = new_id().hex[-12:]
        self.hub = WakeHub()
        self.watch = Watch()
        self.store = self.store_class(self.location, self.hub, self.process)
        self.session = PostgresSession(self)
        self.async_session = AsyncPostgresSession(self)
        self._migrate = migrate
        self._lock = threading.Lock()
        self._pid = 0
        self._blocking: ConnectionPool[Any] | None = None
        self._awaiting: AsyncConnectionPool[Any] | None = None
        self._listener: Listener | None = None

    @property
    def connections_max(self) -> int:
        """How many connections this engine opens at most."""
        return self.location.pool_size + THREADS_POOL_SIZE + (1 if self.location.notify else 0)

    def open(self) -> None:
        with self._lock:
            if self._blocking is not None and self._pid == os.getpid():
                return
            self._check_schema()
            self._start(connections.blocking_pool(self.location, self.location.pool_size))

    async def open_async(self) -> None:
        if self._awaiting is not None and self._pid == os.getpid():
            return
        await asyncio.to_thread(self._check_schema)
        pool = connections.awaiting_pool(self.location, self.location.pool_size)
        await pool.open()
        with self._lock:
            self._awaiting = pool
            self._start(connections.blocking_pool(self.location, THREADS_POOL_SIZE))

    def _check_schema(self) -> None:
        if self._migrate:
            schema.upgrade(self.url)
        else:
            schema.verify(self.url)

    def _start(self, threads: ConnectionPool[Any]) -> None:
        self._pid = os.getpid()
        self._blocking = threads
        self.store.sleepers.forget()
        if self.location.notify:
            self._listener = Listener(self.location, self.hub, self.store.sleepers, self.process)

    def close(self) -> None:
        with self._lock:
            self._stop()

    async def close_async(self) -> None:
        awaiting, self._awaiting = self._awaiting, None
        if awaiting is not None and self._pid == os.getpid():
            await awaiting.close()
        await asyncio.to_thread(self.close)

    def _stop(self) -> None:
        listener, self._listener = self._listener, None
        blocking, self._blocking = self._blocking, None
        if self._pid != os.getpid():
            return  # after a fork, the parent's threads and sockets are not ours to end
        if listener is not None:
            listener.close()
        if blocking is not None:
            blocking.close()

    @property
    def is_awaiting(self) -> bool:
        """Whether the bus was opened for asyncio."""
        return self._awaiting is not None or self._blocking is None

    def blocking_pool(self, op: Op[Any] | None = None) -> ConnectionPool[Any]:
        """The pool for threads, open; refuses, and lets go of `op`, when the bus is not open here."""
        pool = self._blocking
        if pool is None or self._pid != os.getpid():
            raise self._not_open(op)
        if pool.closed:
            with self._lock:
                if pool.closed and pool is self._blocking:
                    pool.open()
        return pool

    def awaiting_pool(self, op: Op[Any] | None = None) -> AsyncConnectionPool[Any]:
        if self._awaiting is None or self._pid != os.getpid():
            raise self._not_open(op)
        return self._awaiting

    def _not_open(self, op: Op[Any] | None) -> InvalidOperationError:
        if op is not None:
            op.close()
        if self._pid not in (0, os.getpid()):
            return InvalidOperationError(
                "This bus was opened before a fork and cannot be used in the child process, because "
                "two processes must not share a connection; open a bus of its own in the child."
            )
        return InvalidOperationError(
            "The bus is not open; use it inside `with bus:` or `async with bus:`."
        )

    def within(self, connection: Any) -> CallerSession:
        """A session on the caller's own connection to this database."""
        return caller_session(connection)

    def within_async(self, connection: Any) -> AsyncCallerSession:
        return async_caller_session(connection)

    def told(self, wakes: list[Wake], read: bool) -> None:
        """Something was committed here: wake who waits in this process."""
        for wake in wakes:
            self.hub.wake(wake.domain, wake.due_in, "notify")
        if not read:
            self.hub.committed()
