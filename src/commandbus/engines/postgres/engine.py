"""The PostgreSQL engine: its connections, its listener, and the sessions over them."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Any

from psycopg_pool import AsyncConnectionPool, ConnectionPool

from commandbus.domain.ids import new_id
from commandbus.engines.postgres import location, pools, schema
from commandbus.engines.postgres.callers import (
    AsyncCallerSession,
    CallerSession,
    async_caller_session,
    caller_session,
)
from commandbus.engines.postgres.connections import AsyncLine, Line, Traffic
from commandbus.engines.postgres.listener import Listener
from commandbus.engines.postgres.pools import AsyncReserve, Reserve
from commandbus.engines.postgres.session import AsyncPostgresSession, PostgresSession
from commandbus.engines.postgres.store import PostgresStore
from commandbus.engines.postgres.transactions import AwaitingTransaction, BlockingTransaction
from commandbus.engines.postgres.watch import Watch
from commandbus.errors import ConfigurationError, InvalidOperationError
from commandbus.store.op import Op, Wake
from commandbus.store.session import ConnectionUse, Demand, NotOpen
from commandbus.store.wakeup import WakeHub

POOL_SIZE = 10
"""Unless the URL says otherwise or a worker has more slots."""


class PostgresEngine:
    """One database, shared by any number of processes on any number of machines.

    Its connections: at most `pool_size` for senders of many and transactional handlers (for `def` and
    for `async def` ones, so twice that where both are), one that single sends share, the workers' own
    four (claims, settles, renewals, services), and one that listens while a worker is here. None is
    opened before it is needed.
    """

    store_class: type[PostgresStore] = PostgresStore

    def __init__(self, url: str, *, migrate: bool = False) -> None:
        self.url = url
        self.location = location.parse(url)
        self.process = new_id().hex[-12:]
        self.hub = WakeHub()
        self.store = self.store_class(self.location, self.hub, self.process)
        self.traffic, self.watch = Traffic(), Watch()
        self.session = PostgresSession(self, self.blocking_pool, self._senders_of)
        self.async_session = AsyncPostgresSession(self, self.awaiting_pool, self._async_senders_of)
        self.reserved_session = PostgresSession(self, self._reserve_of, self._reserve_of)
        self.reserved_async_session = AsyncPostgresSession(
            self, self._async_reserve_of, self._async_reserve_of
        )
        self._migrate = migrate
        self._lock = threading.Lock()
        self._pid = 0
        self._size = self.location.pool_size or POOL_SIZE
        self._blocking: ConnectionPool[Any] | None = None
        self._awaiting: AsyncConnectionPool[Any] | None = None
        self._make_reserves(self.location)
        self._listener: Listener | None = None

    def open(self) -> None:
        with self._lock:
            if self._blocking is not None and self._pid == os.getpid():
                return
            self._check_schema()
            self._start()

    async def open_async(self) -> None:
        if self._awaiting is not None and self._pid == os.getpid():
            return
        await asyncio.to_thread(self._check_schema)
        pool = pools.awaiting_pool(self.location, self._size)
        await pool.open()
        with self._lock:
            self._awaiting = pool
            self._start()

    def _check_schema(self) -> None:
        if self._migrate:
            schema.upgrade(self.url)
        else:
            self.store.limit(not schema.verify_rights(self.url))

    def _start(self) -> None:
        self._pid = os.getpid()
        self._blocking = pools.blocking_pool(self.location, self._size)
        self._make_reserves(self.location)
        self.store.sleepers.forget()
        if self.location.notify:
            self._listener = Listener(
                self.location, self.hub, self.store.sleepers, self.process, self.watch
            )

    def _make_reserves(self, workers: location.Location) -> None:
        self._reserve, self._async_reserve = Reserve(workers), AsyncReserve(workers)
        patience = self.location.pool_timeout
        self._senders = Reserve(self.location, patience)
        self._async_senders = AsyncReserve(self.location, patience)

    def close(self) -> None:
        with self._lock:
            self._stop()

    async def close_async(self) -> None:
        awaiting, self._awaiting = self._awaiting, None
        if awaiting is not None and self._pid == os.getpid():
            await awaiting.close()
            await self._async_reserve.close()
            await self._async_senders.close()
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
        self._reserve.close()
        self._senders.close()
        self._async_reserve.drop()
        self._async_senders.drop()

    # What workers need.

    def check_demand(self, demand: Demand) -> None:
        given = self.location.pool_size
        if given is not None and given < demand.concurrency:
            raise ConfigurationError(
                f"pool_size={given} in the URL is less than concurrency={demand.concurrency}: every "
                "slot may need a connection. Raise the one, lower the other, or leave pool_size out."
            )

    def meet(self, demand: Demand) -> None:
        self.check_demand(demand)
        self._reserve.lower_statement_timeout(demand.statement_timeout)
        self._async_reserve.lower_statement_timeout(demand.statement_timeout)
        if demand.concurrency > self._size:
            self._size = demand.concurrency
            if self._blocking is not None:
                self._blocking.resize(0, self._size)

    async def meet_async(self, demand: Demand) -> None:
        self.meet(demand)
        if self._awaiting is not None:
            await self._awaiting.resize(0, self._size)

    def cut(self, seconds: float) -> int:
        return self.traffic.cut(seconds)

    def replace(self) -> None:
        with self._lock:
            if self._blocking is None:
                return
            old, self._blocking = self._blocking, pools.blocking_pool(self.location, self._size)
            reserves = (self._reserve, self._senders)
            waiting = (self._async_reserve, self._async_senders)
            self._make_reserves(self._reserve.location)
        for reserve in reserves:
            reserve.close()
        for other in waiting:
            other.drop()
        self.traffic.replaced.add(old)
        old.close(timeout=1.0)

    async def replace_async(self) -> None:
        old = self._awaiting
        if old is not None:
            self._awaiting = pools.awaiting_pool(self.location, self._size)
            await self._awaiting.open()
            self.traffic.replaced.add(old)
            await old.close(timeout=1.0)

    def leave_behind(self) -> None:
        self.traffic.cut_all_but(
            self._blocking, self._awaiting, self._reserve, self._async_reserve,
            self._senders, self._async_senders,
        )  # fmt: skip

    def loop_ended(self) -> None:
        if not self.is_awaiting:
            old, self._async_reserve = self._async_reserve, AsyncReserve(self._async_reserve.location)
            old.drop()

    @property
    def connections(self) -> ConnectionUse:
        sources, listener = (self._blocking, self._awaiting), self._listener
        return ConnectionUse(
            busy=sum(self.traffic.count(source) for source in sources if source is not None),
            busy_max=self._size * (2 if self._awaiting is not None else 1),
            reserved=sum(
                reserve.size
                for reserve in (self._reserve, self._async_reserve, self._senders, self._async_senders)
            ),
            listening=int(self.store.sleepers.listening.is_set()),
            listener_failures=0 if listener is None else listener.failures,
            deaf=None if listener is None else listener.deaf,
        )

    def begin(self, demand: Demand) -> BlockingTransaction:
        line = Line(self.blocking_pool(), self)
        return BlockingTransaction.begin(line, self, demand.statement_timeout)

    async def begin_async(self, demand: Demand) -> AwaitingTransaction:
        line = AsyncLine(self._transaction_source(), self)
        return await AwaitingTransaction.begin(line, self, demand.statement_timeout)

    def _transaction_source(self) -> Any:
        """Under the thread runtime, `async def` handlers have a loop that no pool belongs to."""
        return self.awaiting_pool() if self.is_awaiting else self._async_reserve_of()

    # Where sessions get their connections.

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

    def _reserve_of(self, op: Op[Any] | None = None) -> Reserve:
        if self._blocking is None or self._pid != os.getpid():
            raise self._not_open(op)
        return self._reserve

    def _async_reserve_of(self, op: Op[Any] | None = None) -> AsyncReserve:
        if self._blocking is None or self._pid != os.getpid():
            raise self._not_open(op)
        return self._async_reserve

    def _senders_of(self) -> Reserve:
        if self._blocking is None or self._pid != os.getpid():
            raise self._not_open(None)
        return self._senders

    def _async_senders_of(self) -> AsyncReserve:
        if self._blocking is None or self._pid != os.getpid():
            raise self._not_open(None)
        return self._async_senders

    def _not_open(self, op: Op[Any] | None) -> InvalidOperationError:
        if op is not None:
            op.close()
        if self._pid not in (0, os.getpid()):
            return InvalidOperationError(
                "This bus was opened before a fork and cannot be used in the child process, because "
                "two processes must not share a connection; open a bus of its own in the child."
            )
        return NotOpen()

    def within(self, connection: Any) -> CallerSession:
        """A session on the caller's own connection to this database."""
        return caller_session(connection)

    def within_async(self, connection: Any) -> AsyncCallerSession:
        return async_caller_session(connection)

    def told(self, wakes: list[Wake], read: bool) -> None:
        """Something was committed here: wake who waits in this process."""
        for wake in wakes:
            self.hub.wake(wake.domain, wake.due_in, "notify", everyone=wake.everyone)
        if not read:
            self.hub.committed()
