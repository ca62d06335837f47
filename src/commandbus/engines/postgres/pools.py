"""Where connections come from: pools that are shared, and reserves of the workers' own.

Senders of many commands and transactional handlers share a pool and wait for each other when it is used
up. Claims, settles, renewals and services do not: each takes a connection from the reserve, which opens
one more when none is free. They are few, so it stays small; and because nothing waits in it, a server
that is away is noticed at once. Single sends travel together, so one connection is enough for them all;
it is kept in a reserve of its own, which has the patience of the pool.

A server that is away is asked again about once a second for as long as patience lasts, so a caller that
waits has its connection soon after the server is back, however long that took.
"""

from __future__ import annotations

import asyncio
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from math import ceil, inf
from typing import Any, Protocol

import msgspec
import psycopg
from psycopg import adapt
from psycopg.conninfo import conninfo_to_dict
from psycopg.types.numeric import Int8Dumper

from commandbus.engines.postgres import wire
from commandbus.engines.postgres.drivers import AWAITING, BLOCKING, Driver
from commandbus.engines.postgres.location import Location
from commandbus.engines.postgres.shortage import Shortage
from commandbus.errors import NotOpen, PoolExhausted, StoreUnavailable

LIFETIME_SECONDS = 3600.0
IDLE_SECONDS = 600.0
CONNECT_SECONDS_MIN = 2
"""Less is not enough for a server that is far away."""
PAUSE_SECONDS_MAX = 1.0
"""Between two attempts to connect to a server that is away."""
RETRY_SECONDS = (0.01, 0.02, 0.04, 0.08)
"""Pauses after an idle connection was closed to make room: the server needs a moment to notice, and
others want its place."""
FOLLOW_SECONDS = 2.0
"""How long a service waits for the connections that come first."""


class Replaced(Exception):  # noqa: N818 - a signal between this module and connections.py
    """A source was closed because another one took its place."""


class Source(Protocol):
    """Gives out connections and takes them back."""

    @property
    def driver(self) -> Driver: ...

    @property
    def successor(self) -> Any:
        """The source that took its place."""
        ...

    async def getconn(self) -> Any: ...
    def putconn(self, connection: Any, /) -> None: ...


def adapters() -> adapt.AdaptersMap:
    """Whole numbers always as bigint: a parameter whose type changed with its value would make the
    server prepare the same statement again."""
    adapted = adapt.AdaptersMap(psycopg.adapters)
    adapted.register_dumper(int, Int8Dumper)
    return adapted


class _Context:
    """What psycopg wants around adapters."""

    connection = None

    def __init__(self) -> None:
        self.adapters = adapters()


class _Idle:
    """Connections that wait to be used again, the last one first; old ones are closed."""

    def __init__(
        self,
        location: Location,
        shortage: Shortage,
        patience: float = 0.0,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.location = location
        self.shortage = shortage
        self.patience = patience
        """For how many seconds to try again while the server is away."""
        self.settings: dict[str, Any] = {
            "autocommit": True,
            "prepare_threshold": 0 if location.prepare else None,
            "context": _Context(),
        }
        given = conninfo_to_dict(location.conninfo).get("connect_timeout")
        self._connect_timeout = float(given or 0) or inf
        self._monotonic = monotonic
        self._idle: deque[tuple[Any, float]] = deque()
        self._old_at: dict[Any, float] = {}
        self.closed = False
        self.successor: Any = None

    @property
    def size(self) -> int:
        """How many connections there are, idle or in use."""
        return len(self._old_at)

    def connecting(self, until: float) -> dict[str, Any]:
        """The arguments of an attempt to connect, which ends with patience, or a little later."""
        left = until - self._monotonic()
        if not self.patience or left >= self._connect_timeout:
            return self.settings
        return self.settings | {"connect_timeout": max(CONNECT_SECONDS_MIN, ceil(left))}

    def pauses(self, until: float) -> Iterator[float]:
        """How long to wait after each failed attempt to connect; ends when patience does."""
        pause = 0.1
        if self._idle:
            yield 0.0  # one came back meanwhile
        if self.shortage.refused():
            yield from RETRY_SECONDS
        while self._monotonic() + pause < until and (not self.closed or self.successor):
            self.shortage.refused()
            yield pause
            pause = min(pause * 2, PAUSE_SECONDS_MAX)

    def pop(self) -> Any:
        try:
            return self._idle.pop()[0]
        except IndexError:
            return None

    def keep(self, connection: Any) -> None:
        """A new connection belongs here from now on."""
        connection._pool = None  # to psycopg: it is one of a pool, so it may end with the program
        self._old_at[connection] = self._monotonic() + LIFETIME_SECONDS

    def putconn(self, connection: Any, /) -> None:
        """Take a connection back, to be used again or closed."""
        now = self._monotonic()
        usable = not connection.closed and not self.closed
        if usable and self._old_at.get(connection, 0.0) > now:
            self._idle.append((connection, now))
            while self.closed and self.close_oldest():
                pass  # closed meanwhile, by another thread
        else:
            self._end(connection)

    def close_unused(self) -> None:
        """Close what has not been used for long."""
        late = self._monotonic() - IDLE_SECONDS
        while self._idle and self._idle[0][1] <= late:
            self.close_oldest()

    def close_oldest(self) -> bool:
        """Close a connection that is not in use, from any thread; False when there is none."""
        try:
            connection, _ = self._idle.popleft()
        except IndexError:
            return False
        self._end(connection)
        return True

    def _end(self, connection: Any) -> None:
        """An idle connection waits for nothing, so it needs neither its thread nor its loop."""
        self._old_at.pop(connection, None)
        connection.pgconn.finish()

    def close(self, successor: Any = None) -> None:
        """Close what is idle now, and what is in use when it comes back; from any thread."""
        self.successor = successor
        self.closed = True
        while self.close_oldest():
            pass
        self._old_at.clear()

    def _gone(self) -> Exception:
        return NotOpen() if self.successor is None else Replaced()

    def _used_up(self, size: int) -> PoolExhausted:
        return PoolExhausted(
            f"All {size} connections of the pool were in use for {self.patience:g} s; nothing was "
            "changed. Raise pool_size in the URL, or lower the concurrency."
        )


class UnboundedPool(_Idle):
    """For threads, or for asyncio and then on one loop only."""

    def __init__(
        self,
        driver: Driver,
        kind: type[Any],
        location: Location,
        shortage: Shortage,
        patience: float = 0.0,
    ) -> None:
        super().__init__(location, shortage, patience)
        self.driver, self._kind = driver, kind

    async def getconn(self, since: float | None = None) -> Any:
        until = (since or self._monotonic()) + self.patience
        pauses = self.pauses(until)
        while True:
            connection = self.pop()
            if connection is not None:
                return connection
            try:
                connection = await self.connect(self.connecting(until))
            except psycopg.OperationalError:
                pause = next(pauses, None)
                if pause is None:
                    raise
                await self.driver.sleep(pause)
            else:
                self.shortage.served()
                return connection

    async def connect(self, settings: dict[str, Any]) -> Any:
        """One more connection, which belongs here from now on."""
        connection = await self.driver.connect(self._kind, self.location.conninfo, **settings)
        self.keep(connection)
        return connection


class Following:
    """A reserve as services use it: they take what is idle, and connect only when the work has its
    connections."""

    def __init__(self, reserve: UnboundedPool) -> None:
        self._reserve = reserve
        self.driver = reserve.driver
        self.successor = None

    async def getconn(self) -> Any:
        reserve = self._reserve
        connection = reserve.pop()
        if connection is not None:
            return connection
        if not reserve.shortage.may_follow(FOLLOW_SECONDS):
            raise StoreUnavailable(
                "PostgreSQL refuses connections that claims need, so none is opened for services; "
                "raise max_connections, or run fewer workers."
            )
        try:
            connection = await reserve.connect(reserve.settings)
        except psycopg.OperationalError:
            reserve.shortage.follower_refused()
            raise
        reserve.shortage.follower_served()
        return connection

    def putconn(self, connection: Any, /) -> None:
        self._reserve.putconn(connection)


class _Pool(UnboundedPool, ABC):
    """At most `size_max` connections; callers get them in the order in which they came."""

    def __init__(
        self, driver: Driver, kind: type[Any], location: Location, shortage: Shortage, size_max: int
    ) -> None:
        super().__init__(driver, kind, location, shortage, location.pool_timeout)
        self.size_max = self._free = size_max

    async def getconn(self, since: float | None = None) -> Any:
        since = since or self._monotonic()
        await self._acquire()
        try:
            if self.closed:
                raise self._gone()
            return await super().getconn(since)
        except BaseException:
            self._release()
            raise

    def putconn(self, connection: Any, /) -> None:
        super().putconn(connection)
        self._release()

    @abstractmethod
    async def _acquire(self) -> None:
        """Wait for one's turn. Raises PoolExhausted when patience ends."""

    @abstractmethod
    def _release(self) -> None:
        """Give one's turn to the next in the queue."""


class Pool(_Pool):
    """For threads."""

    def __init__(self, location: Location, shortage: Shortage, size_max: int) -> None:
        super().__init__(BLOCKING, psycopg.Connection, location, shortage, size_max)
        self._lock = threading.Lock()
        self._queue: deque[threading.Event] = deque()
        self._timer: threading.Timer | None = None

    def grow(self, size_max: int) -> None:
        for _ in range(size_max - self.size_max):
            self._release()
        self.size_max = max(size_max, self.size_max)

    def close(self, successor: Any = None) -> None:
        super().close(successor)
        with self._lock:
            while self._queue:
                self._queue.popleft().set()
            if self._timer is not None:
                self._timer.cancel()

    async def _acquire(self) -> None:
        with self._lock:
            if self._free > 0 or self.closed:
                self._free -= 1
                return
            turn = threading.Event()
            self._queue.append(turn)
        try:
            given = turn.wait(self.patience)
        except BaseException:  # a signal in the main thread
            if not self._left_queue(turn):
                self._release()
            raise
        if not given and self._left_queue(turn):
            raise self._used_up(self.size_max)

    def _left_queue(self, turn: threading.Event) -> bool:
        """Give a turn up; False when it came at this very moment."""
        with self._lock:
            waits = turn in self._queue
            if waits:
                self._queue.remove(turn)
        return waits

    def _release(self) -> None:
        with self._lock:
            if self._queue:
                self._queue.popleft().set()
            else:
                self._free += 1
            self._plan()

    def _plan(self) -> None:
        """Look after idle connections while there are any."""
        if self._idle and self._timer is None and not self.closed:
            self._timer = threading.Timer(IDLE_SECONDS, self._tidy)
            self._timer.daemon = True
            self._timer.start()

    def _tidy(self) -> None:
        self.close_unused()
        with self._lock:
            self._timer = None
            self._plan()


class AsyncPool(_Pool):
    """For one event loop."""

    def __init__(
        self,
        location: Location,
        shortage: Shortage,
        size_max: int,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__(AWAITING, psycopg.AsyncConnection, location, shortage, size_max)
        self._loop = loop
        self._queue: deque[asyncio.Future[None]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def grow(self, size_max: int) -> None:
        """From any thread."""
        more, self.size_max = max(0, size_max - self.size_max), max(size_max, self.size_max)
        for _ in range(more):
            self._call(self._release)

    def close(self, successor: Any = None) -> None:
        super().close(successor)
        self._call(self._let_all_in)

    def _call(self, function: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # its loop has ended, and nothing waits there any more
            self._loop.call_soon_threadsafe(function)

    async def _acquire(self) -> None:
        if self._free > 0 or self.closed:
            self._free -= 1
            return
        turn = self._loop.create_future()
        self._queue.append(turn)
        try:
            async with asyncio.timeout(self.patience):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():
                self._release()
            if isinstance(error, TimeoutError):
                raise self._used_up(self.size_max) from None
            raise

    def _release(self) -> None:
        while self._queue:
            turn = self._queue.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
        self._plan()

    def _plan(self) -> None:
        if self._idle and self._timer is None and not self.closed:
            self._timer = self._loop.call_later(IDLE_SECONDS, self._tidy)

    def _tidy(self) -> None:
        self.close_unused()
        self._timer = None
        self._plan()

    def _let_all_in(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for turn in self._queue:
            if not turn.done():
                turn.set_result(None)
        self._queue.clear()


class Sources(msgspec.Struct, frozen=True, eq=False):
    """Everything that connections come from, for all threads or for one event loop."""

    pool: Any
    reserve: Any
    senders: Any

    @property
    def following(self) -> Following:
        return Following(self.reserve)

    @property
    def all(self) -> tuple[Any, Any, Any]:
        return self.pool, self.reserve, self.senders

    def close(self, successors: Sources | None = None) -> None:
        for old, new in zip(self.all, successors.all if successors else (None,) * 3, strict=True):
            old.close(new)


def blocking_sources(own: Location, workers: Location, size: int, shortage: Shortage) -> Sources:
    """For threads; `workers` is the location with the statement timeout that workers ask for."""
    return Sources(
        Pool(own, shortage, size),
        UnboundedPool(BLOCKING, wire.Connection, workers, shortage),
        UnboundedPool(BLOCKING, wire.Connection, own, shortage, own.pool_timeout),
    )


def awaiting_sources(
    own: Location, workers: Location, size: int, shortage: Shortage, loop: asyncio.AbstractEventLoop
) -> Sources:
    """For one event loop."""
    return Sources(
        AsyncPool(own, shortage, size, loop),
        UnboundedPool(AWAITING, wire.AsyncConnection, workers, shortage),
        UnboundedPool(AWAITING, wire.AsyncConnection, own, shortage, own.pool_timeout),
    )
