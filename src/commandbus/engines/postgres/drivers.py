"""The parts of psycopg that differ between threads and asyncio; the rest is written once.

The methods are coroutines in both. Those for threads block and never suspend (`store.waiting`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterable
from typing import Any, Protocol, cast

import psycopg
from psycopg import AsyncRawCursor, RawCursor
from psycopg.generators import execute
from psycopg.pq.abc import PGconn, PGresult

Results = list[PGresult]


class Driver(Protocol):
    """The blocking or the awaiting half of psycopg."""

    cursor: type[Any]
    """The cursors of the bus; placeholders are `$1`."""

    def connect(self, kind: type[Any], conninfo: str, **settings: Any) -> Coroutine[Any, Any, Any]: ...
    def sleep(self, seconds: float) -> Coroutine[Any, Any, None]: ...
    def execute(self, cursor: Any, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]: ...
    def rows(self, cursor: Any) -> Coroutine[Any, Any, list[Any]]: ...
    def copy(self, cursor: Any, sql: bytes, blocks: Iterable[bytes]) -> Coroutine[Any, Any, None]: ...

    def query(self, connection: Any, sql: bytes) -> Coroutine[Any, Any, Results]:
        """Send a text of several statements, without a cursor."""
        ...

    def answer(self, connection: Any) -> Coroutine[Any, Any, Results]:
        """The answer to what was sent through libpq."""
        ...


class Blocking:
    """For threads."""

    cursor = RawCursor

    async def connect(self, kind: type[psycopg.Connection[Any]], conninfo: str, **settings: Any) -> Any:
        return kind.connect(conninfo, cursor_factory=self.cursor, **settings)

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - it blocks a thread, as it should

    async def execute(self, cursor: psycopg.Cursor[Any], *args: Any, **kwargs: Any) -> None:
        cursor.execute(*args, **kwargs)

    async def rows(self, cursor: psycopg.Cursor[Any]) -> list[Any]:
        return cursor.fetchall()

    async def copy(self, cursor: psycopg.Cursor[Any], sql: bytes, blocks: Iterable[bytes]) -> None:
        with cursor.copy(sql) as copy:
            for block in blocks:
                copy.write(block)

    async def query(self, connection: psycopg.Connection[Any], sql: bytes) -> Results:
        with connection.lock:
            connection.pgconn.send_query(sql)
            return connection.wait(execute(connection.pgconn))

    async def answer(self, connection: psycopg.Connection[Any]) -> Results:
        return connection.wait(execute(connection.pgconn))


class Awaiting:
    """For asyncio."""

    cursor = AsyncRawCursor
    execute = staticmethod(psycopg.AsyncCursor.execute)
    rows = staticmethod(psycopg.AsyncCursor.fetchall)
    sleep = staticmethod(asyncio.sleep)

    async def connect(
        self, kind: type[psycopg.AsyncConnection[Any]], conninfo: str, **settings: Any
    ) -> Any:
        return await kind.connect(conninfo, cursor_factory=self.cursor, **settings)

    async def copy(self, cursor: psycopg.AsyncCursor[Any], sql: bytes, blocks: Iterable[bytes]) -> None:
        async with cursor.copy(sql) as copy:
            for block in blocks:
                await copy.write(block)

    async def query(self, connection: psycopg.AsyncConnection[Any], sql: bytes) -> Results:
        async with connection.lock:
            connection.pgconn.send_query(sql)
            return await connection.wait(execute(connection.pgconn))

    async def answer(self, connection: psycopg.AsyncConnection[Any]) -> Results:
        pgconn = connection.pgconn
        if pgconn.flush():  # it is long, and the server has to take some of it first
            return await connection.wait(execute(pgconn))
        return await _answer(pgconn)


BLOCKING: Driver = Blocking()
AWAITING = cast("Driver", Awaiting())


async def _answer(pgconn: PGconn) -> Results:
    """Wait for an answer with nothing but a future: the driver sets a timer for each wait, too."""
    loop, socket = asyncio.get_running_loop(), pgconn.socket
    results: Results = []
    while True:
        while pgconn.is_busy():
            arrived: asyncio.Future[None] = loop.create_future()
            loop.add_reader(socket, _set, arrived)
            try:
                await arrived
            finally:
                loop.remove_reader(socket)
            pgconn.consume_input()
        result = pgconn.get_result()
        if result is None:
            return results
        results.append(result)


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
