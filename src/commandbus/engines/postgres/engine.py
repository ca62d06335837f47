"""The PostgreSQL engine: its connections, its listener, and the sessions over them."""

from __future__ import annotations

import asyncio
import os
import threading
from math import inf
from typing import Any

from commandbus.domain.ids import new_id
from commandbus.engines.postgres import location, pools, schema
from commandbus.engines.postgres.callers import (
    AsyncCallerSession,
    CallerSession,
    async_caller_session,
    caller_session,
)
from commandbus.engines.postgres.connections import Checkout, OpenCheckouts
from commandbus.engines.postgres.event_loops import check_loop
from commandbus.engines.postgres.listener import Listener
from commandbus.engines.postgres.pools import (
    Sources,
)
from commandbus.engines.postgres.session import AsyncPostgresSession, PostgresSession
from commandbus.engines.postgres.shortage import Shortage
from commandbus.engines.postgres.store import PostgresStore
from commandbus.engines.postgres.transactions import AwaitingTransaction, BlockingTransaction
from commandbus.engines.postgres.watch import AnswerTimeout
from commandbus.errors import ConfigurationError, InvalidOperationError, NotOpen
from commandbus.store.op import Op
from commandbus.store.session import ConnectionUse, Demand
from commandbus.store.wakeup import WakeHub

POOL_SIZE = 10
"""Unless the URL says otherwise or a worker has more slots."""
WAITED_SECONDS = 1.0
"""Statements of a worker that ends are given up when they have been waiting for so long."""


class PostgresEngine:
    """One database, shared by any number of processes on any number of machines.

    Its connections: at most `pool_size` for senders of many and transactional handlers (for `def` and
    for `async def` ones, so twice that where both are), one that single sends share, the workers' own
    four (claims, settles, renewals, services), and one that listens while a worker is here. None is
    opened before it is needed. Each event loop that uses the bus has connections of its own, which are
    closed when another loop comes after its end.
    """

    store_class: type[PostgresStore] = PostgresStore

    def __init__(self, url: str, *, migrate: bool = False, listen_url: str | None = None) -> None:
        self.url = url
        self.location = location.parse(url, listen_url)
        self.identity = f"{self.store_class.__name__} {location.place_of(self.location)}"
        self.process = new_id().hex[-12:]
        self.hub = WakeHub()
        self.store = self.store_class(self.location, self.hub, self.process)
        self.checkouts, self.watch = OpenCheckouts(), AnswerTimeout()
        self.session = PostgresSession(self, "pool")
        self.async_session = AsyncPostgresSession(self, "pool")
        self.reserved_session = PostgresSession(self, "reserve")
        self.reserved_async_session = AsyncPostgresSession(self, "reserve")
        self.service_session = PostgresSession(self, "following")
        self._migrate = migrate
        self._lock = threading.Lock()
        self._pid = 0
        self._awaits = False
        """Whether the bus was opened for asyncio."""
        self._size = self.location.pool_size or POOL_SIZE
        self._workers_location, self._statement_timeout = self.location, inf
        """The shortest timeout that any worker asks for counts, for connections made from then on."""
        self._shortage = Shortage(self._make_room)
        self._threads: Sources | None = None
        """None while the bus is closed."""
        self._loops: dict[asyncio.AbstractEventLoop, Sources] = {}
        self._listener: Listener | None = None

    def open(self) -> None:
        with self._lock:
            if not self._is_open:
                self._check_schema()
                self._start()

    async def open_async(self) -> None:
        if self._is_open and self._awaits:
            return
        check_loop(asyncio.get_running_loop())
        await asyncio.to_thread(self._check_schema)
        with self._lock:
            self._awaits = True
            self._start()

    @property
    def _is_open(self) -> bool:
        return self._threads is not None and self._pid == os.getpid()

    def _check_schema(self) -> None:
        if self._migrate:
            schema.upgrade(self.url)
        else:
            self.store.limit(not schema.verify_rights(self.url))

    def _start(self) -> None:
        self._pid = os.getpid()
        self._workers_location, self._statement_timeout = self.location, inf
        self._threads, self._loops = self._blocking_sources(), {}
        self.store.sleepers.forget()
        if self.location.notify:
            self._listener = Listener(
                self.location, self.hub, self.store.sleepers, self.process, self.watch,
                self._shortage,
            )  # fmt: skip

    def _blocking_sources(self) -> Sources:
        return pools.blocking_sources(self.location, self._workers_location, self._size, self._shortage)

    def _awaiting_sources(self, loop: asyncio.AbstractEventLoop) -> Sources:
        return pools.awaiting_sources(
            self.location, self._workers_location, self._size, self._shortage, loop
        )

    def close(self) -> None:
        with self._lock:
            self._stop()

    async def close_async(self) -> None:
        await asyncio.to_thread(self.close)

    def _stop(self) -> None:
        listener, self._listener = self._listener, None
        open_ones = self._all_sources()
        self._threads, self._loops, self._awaits = None, {}, False
        if self._pid != os.getpid():
            return  # after a fork, the parent's threads and sockets are not ours to end
        self._shortage.end()
        if listener is not None:
            listener.close()
        for sources in open_ones:
            sources.close()

    def _all_sources(self) -> list[Sources]:
        return [*filter(None, [self._threads]), *self._loops.values()]

    def _make_room(self) -> bool:
        """The server refuses a connection: close one that is needed less, if there is any."""
        every, listener = self._all_sources(), self._listener
        return (
            any(sources.pool.close_oldest() for sources in every)
            or any(sources.senders.close_oldest() for sources in every)
            or (listener is not None and listener.let_go())
            or any(sources.reserve.close_oldest() for sources in every)
        )

    # What workers need.

    @property
    def slots_max(self) -> int | None:
        return self.location.pool_size

    def check_demand(self, demand: Demand) -> None:
        given = self.slots_max
        if given is not None and given < demand.concurrency:
            raise ConfigurationError(
                f"pool_size={given} in the URL is less than concurrency={demand.concurrency}: every "
                "slot may need a connection. Raise the one, lower the other (max_concurrency where it "
                "is given), or leave pool_size out."
            )

    def meet(self, demand: Demand) -> None:
        self.check_demand(demand)
        with self._lock:
            self._size = max(self._size, demand.concurrency)
            self._statement_timeout = min(self._statement_timeout, demand.statement_timeout)
            self._workers_location = location.with_statement_timeout(
                self.location, self._statement_timeout
            )
            for sources in self._all_sources():
                sources.reserve.location = self._workers_location
                sources.pool.grow(self._size)

    def check_open(self) -> None:
        self.sources_of_threads()

    def cut(self, seconds: float) -> int:
        return self.checkouts.cut(seconds)

    def replace(self) -> None:
        with self._lock:
            if self._threads is None:
                return
            threads, loops = self._blocking_sources(), self._loops
            moves = [(self._threads, threads)]
            self._threads = threads
            self._loops = {loop: self._awaiting_sources(loop) for loop in loops}
            moves += [(loops[loop], new) for loop, new in self._loops.items()]
        for old, new in moves:
            old.close(new)

    def leave_behind(self, worker: str) -> None:
        self.checkouts.cut_transactions(worker)
        self.checkouts.cut(WAITED_SECONDS)

    def loop_ended(self) -> None:
        with self._lock:
            self._forget_ended_loops()

    def _forget_ended_loops(self) -> None:
        ended = {loop: sources for loop, sources in self._loops.items() if loop.is_closed()}
        self._loops = {loop: found for loop, found in self._loops.items() if loop not in ended}
        for sources in ended.values():
            sources.close()

    @property
    def connections(self) -> ConnectionUse:
        every, listener = self._all_sources(), self._listener
        return ConnectionUse(
            busy=sum(self.checkouts.count(sources.pool) for sources in every),
            busy_max=self._size * max(len(every), 2 if self._awaits else 1),
            reserved=sum(sources.reserve.size + sources.senders.size for sources in every),
            listening=int(self.store.sleepers.listening.is_set()),
            listener_failures=0 if listener is None else listener.failures,
            deaf=None if listener is None else listener.deaf,
        )

    def begin(self, demand: Demand) -> BlockingTransaction:
        checkout = Checkout(self.sources_of_threads().pool, self, worker=demand.worker)
        return BlockingTransaction.begin(checkout, self, demand.statement_timeout)

    async def begin_async(self, demand: Demand) -> AwaitingTransaction:
        checkout = Checkout(self.sources_of_loop().pool, self, worker=demand.worker)
        return await AwaitingTransaction.begin(checkout, self, demand.statement_timeout)

    # Where sessions get their connections.

    @property
    def is_awaiting(self) -> bool:
        """Whether the bus was opened for asyncio."""
        return self._awaits or self._threads is None

    def sources_of_threads(self, op: Op[Any] | None = None) -> Sources:
        """Refuses, and closes `op`, when the bus is not open here."""
        sources = self._threads
        if sources is None or self._pid != os.getpid():
            raise self._not_open(op)
        return sources

    def sources_of_loop(self, op: Op[Any] | None = None) -> Sources:
        """Those of the running event loop."""
        loop = asyncio.get_running_loop()
        sources = self._loops.get(loop)
        if sources is not None and self._pid == os.getpid():
            return sources
        if not self._is_open:
            raise self._not_open(op)
        with self._lock:
            self._forget_ended_loops()
            sources = self._awaiting_sources(loop)
            self._loops = {**self._loops, loop: sources}  # others may be reading it
        return sources

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
