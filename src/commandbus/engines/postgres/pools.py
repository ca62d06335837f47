"""Where connections come from: pools that are shared, and a reserve of the workers' own.

Senders of many commands and transactional handlers share a pool and wait for each other when it is used
up. Claims, settles, renewals and services do not: each takes a connection from the reserve, which opens
one more when none is free. They are few, so it stays small; and because nobody waits in it, a server
that is away is noticed at once. Single sends travel together, so one connection is enough for them all;
it is kept in a reserve of its own, which has the patience of the pool.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import psycopg
from psycopg import AsyncRawCursor, RawCursor, adapt
from psycopg.types.numeric import Int8Dumper
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from commandbus.engines.postgres import wire
from commandbus.engines.postgres.location import Location, with_statement_timeout

LIFETIME_SECONDS = 3600.0
RECONNECT_SECONDS = 4.0
"""Tries to reconnect grow apart; after so long they begin anew, so none waits for many seconds."""


class Source(Protocol):
    """Gives out connections and takes them back."""

    def getconn(self) -> psycopg.Connection[Any]: ...
    def putconn(self, connection: psycopg.Connection[Any], /) -> None: ...


class AsyncSource(Protocol):
    async def getconn(self) -> psycopg.AsyncConnection[Any]: ...
    async def putconn(self, connection: psycopg.AsyncConnection[Any], /) -> None: ...


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


def _settings(location: Location) -> dict[str, Any]:
    return {
        "autocommit": True,
        "prepare_threshold": 0 if location.prepare else None,
        "context": _Context(),
    }


def _pool_settings(location: Location, size: int) -> dict[str, Any]:
    return {
        "min_size": 0,
        "max_size": size,
        "open": False,
        "name": "commandbus",
        "timeout": location.pool_timeout,
        "max_lifetime": LIFETIME_SECONDS,
        "reconnect_timeout": RECONNECT_SECONDS,
        "num_workers": 1,
    }


def blocking_pool(location: Location, size: int) -> ConnectionPool[Any]:
    return ConnectionPool(
        location.conninfo,
        kwargs=_settings(location) | {"cursor_factory": RawCursor},
        **_pool_settings(location, size),
    )


def awaiting_pool(location: Location, size: int) -> AsyncConnectionPool[Any]:
    return AsyncConnectionPool(
        location.conninfo,
        kwargs=_settings(location) | {"cursor_factory": AsyncRawCursor},
        **_pool_settings(location, size),
    )


class _Idle:
    """Connections that wait to be used again, the last one first; old ones are let go."""

    def __init__(
        self,
        location: Location,
        patience: float = 0.0,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.location = location
        self.patience = patience
        """For how many seconds to try again while the server is away."""
        self.settings = _settings(location)
        self._monotonic = monotonic
        self._idle: deque[Any] = deque()
        self._old_at: dict[Any, float] = {}
        self.closed = False

    @property
    def size(self) -> int:
        """How many connections there are, idle or in use."""
        return len(self._old_at)

    def lower_statement_timeout(self, seconds: float) -> None:
        """The shortest that any worker asks for counts, for connections made from now on."""
        self.location = with_statement_timeout(self.location, seconds)

    def pauses(self) -> Iterator[float]:
        """How long to wait before each new try to connect; ends when patience does."""
        until, pause = self._monotonic() + self.patience, 0.1
        while self._monotonic() + pause < until and not self.closed:
            yield pause
            pause = min(pause * 2, 1.0)

    def pop(self) -> Any:
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def add(self, connection: Any) -> Any:
        self._old_at[connection] = self._monotonic() + LIFETIME_SECONDS
        return connection

    def keeps(self, connection: Any) -> bool:
        """Take a connection back; False when it is to be closed."""
        usable = not connection.closed and not self.closed
        if usable and self._old_at.get(connection, 0.0) > self._monotonic():
            self._idle.append(connection)
            return True
        self._old_at.pop(connection, None)
        return False

    def drain(self) -> list[Any]:
        self.closed = True
        idle, self._idle = list(self._idle), deque()
        self._old_at.clear()
        return idle


class Reserve(_Idle):
    """For threads."""

    def getconn(self) -> psycopg.Connection[Any]:
        connection: psycopg.Connection[Any] = self.pop() or self.add(self._connect())
        return connection

    def _connect(self) -> psycopg.Connection[Any]:
        pauses = self.pauses()
        while True:
            try:
                return wire.Connection.connect(
                    self.location.conninfo, cursor_factory=RawCursor, **self.settings
                )
            except psycopg.OperationalError:
                pause = next(pauses, None)
                if pause is None:
                    raise
                time.sleep(pause)

    def putconn(self, connection: psycopg.Connection[Any], /) -> None:
        if not self.keeps(connection):
            connection.close()

    def close(self) -> None:
        for connection in self.drain():
            connection.close()


class AsyncReserve(_Idle):
    """For asyncio; used on one loop only."""

    async def getconn(self) -> psycopg.AsyncConnection[Any]:
        connection: psycopg.AsyncConnection[Any] = self.pop() or self.add(await self._connect())
        return connection

    async def _connect(self) -> psycopg.AsyncConnection[Any]:
        pauses = self.pauses()
        while True:
            try:
                return await wire.AsyncConnection.connect(
                    self.location.conninfo, cursor_factory=AsyncRawCursor, **self.settings
                )
            except psycopg.OperationalError:
                pause = next(pauses, None)
                if pause is None:
                    raise
                await asyncio.sleep(pause)

    async def putconn(self, connection: psycopg.AsyncConnection[Any], /) -> None:
        if not self.keeps(connection):
            await connection.close()

    async def close(self) -> None:
        for connection in self.drain():
            await connection.close()

    def drop(self) -> None:
        """Close what is left when the loop is gone and nothing can be awaited any more."""
        for connection in self.drain():
            connection.pgconn.finish()
