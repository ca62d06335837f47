"""Connections: how they are made, what runs on them, and when they are thrown away."""

from __future__ import annotations

import select
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import AsyncRawCursor, RawCursor, adapt
from psycopg.pq import TransactionStatus
from psycopg.types.numeric import Int8Dumper
from psycopg_pool import AsyncConnectionPool, ConnectionPool, PoolClosed, PoolTimeout

from commandbus.engines.postgres.conduct import ROLLBACK
from commandbus.engines.postgres.failures import is_fatal, sqlstate_of, translate
from commandbus.engines.postgres.location import Location
from commandbus.engines.postgres.statements import Copy, Shared, bind
from commandbus.errors import CommandBusError, InvalidOperationError, StoreUnavailable
from commandbus.store.op import Rows, Statement

if TYPE_CHECKING:
    from commandbus.engines.postgres.engine import PostgresEngine

POOL_SECONDS = 30.0
"""How long an op waits for a connection, and so for a server that is away."""
LIFETIME_SECONDS = 3600.0
REPEATS_MAX = 3
REPEATED = ("40001", "40P01", "0A000")
"""Serialization failure, deadlock, and a cached plan whose result has changed its type."""
RECONNECT_SECONDS = 4.0
"""Tries to reconnect grow apart; after so long they begin anew, so none waits for many seconds."""


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


def blocking_pool(location: Location, size: int) -> ConnectionPool[Any]:
    return ConnectionPool(
        location.conninfo,
        kwargs=_settings(location) | {"cursor_factory": RawCursor},
        min_size=0,
        max_size=size,
        open=False,
        name="commandbus",
        timeout=POOL_SECONDS,
        max_lifetime=LIFETIME_SECONDS,
        reconnect_timeout=RECONNECT_SECONDS,
        num_workers=1,
    )


def awaiting_pool(location: Location, size: int) -> AsyncConnectionPool[Any]:
    return AsyncConnectionPool(
        location.conninfo,
        kwargs=_settings(location) | {"cursor_factory": AsyncRawCursor},
        min_size=0,
        max_size=size,
        open=False,
        name="commandbus",
        timeout=POOL_SECONDS,
        max_lifetime=LIFETIME_SECONDS,
        reconnect_timeout=RECONNECT_SECONDS,
        num_workers=1,
    )


class Line:
    """A connection for one op: taken from the pool when first needed, given back at the end."""

    def __init__(self, pool: ConnectionPool[Any], engine: PostgresEngine) -> None:
        self._pool = pool
        self._origin, self._watch = engine.process, engine.watch
        self._connection: psycopg.Connection[Any] | None = None
        self._broken = False

    @property
    def in_use(self) -> bool:
        return self._connection is not None

    def execute(self, statement: Statement) -> Rows:
        if self._broken:
            if statement is ROLLBACK:
                return ()
            self.release()
        failures = 0
        while True:
            try:
                return self._execute_once(statement)
            except psycopg.Error as error:
                failures += 1
                if not _may_repeat(error, self._connection, failures):
                    raise _as_ours(error) from error
                self.release()

    def _execute_once(self, statement: Statement) -> Rows:
        connection = self._connection
        try:
            if connection is None:
                connection = self._connection = self._take()
            self._watch.begin(connection, statement)
            return run_blocking(connection.cursor(), statement, self._origin)
        except CommandBusError:
            raise
        except BaseException as error:  # also a cancellation: is the connection still good?
            self._broken = _breaks(error)
            raise
        finally:
            self._watch.end(connection)

    def _take(self) -> psycopg.Connection[Any]:
        while True:
            connection: psycopg.Connection[Any] = self._pool.getconn()
            if is_alive(connection):
                return connection
            connection.close()
            self._pool.putconn(connection)

    def release(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            if self._broken or not is_idle(connection):
                connection.close()
            self._broken = False
            self._pool.putconn(connection)


class AsyncLine:
    """The same for asyncio."""

    def __init__(self, pool: AsyncConnectionPool[Any], engine: PostgresEngine) -> None:
        self._pool = pool
        self._origin, self._watch = engine.process, engine.watch
        self._connection: psycopg.AsyncConnection[Any] | None = None
        self._broken = False

    @property
    def in_use(self) -> bool:
        return self._connection is not None

    async def execute(self, statement: Statement) -> Rows:
        if self._broken:
            if statement is ROLLBACK:
                return ()
            await self.release()
        failures = 0
        while True:
            try:
                return await self._execute_once(statement)
            except psycopg.Error as error:
                failures += 1
                if not _may_repeat(error, self._connection, failures):
                    raise _as_ours(error) from error
                await self.release()

    async def _execute_once(self, statement: Statement) -> Rows:
        connection = self._connection
        try:
            if connection is None:
                connection = self._connection = await self._take()
            self._watch.begin(connection, statement)
            return await run_awaiting(connection.cursor(), statement, self._origin)
        except CommandBusError:
            raise
        except BaseException as error:  # also a cancellation: is the connection still good?
            self._broken = _breaks(error)
            raise
        finally:
            self._watch.end(connection)

    async def _take(self) -> psycopg.AsyncConnection[Any]:
        while True:
            connection: psycopg.AsyncConnection[Any] = await self._pool.getconn()
            if is_alive(connection):
                return connection
            await connection.close()
            await self._pool.putconn(connection)

    async def release(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            if self._broken or not is_idle(connection):
                await connection.close()
            self._broken = False
            await self._pool.putconn(connection)


def run_blocking(cursor: psycopg.Cursor[Any], statement: Statement, origin: str) -> Rows:
    """Execute one statement; rows come as tuples."""
    if isinstance(statement, Copy):
        with cursor.copy(statement.sql.encode()) as copy:
            for block in statement.blocks():
                copy.write(block)
        return ()
    cursor.execute(*bound(statement, origin))
    return cursor.fetchall() if cursor.description else ()


async def run_awaiting(cursor: psycopg.AsyncCursor[Any], statement: Statement, origin: str) -> Rows:
    if isinstance(statement, Copy):
        async with cursor.copy(statement.sql.encode()) as copy:
            for block in statement.blocks():
                await copy.write(block)
        return ()
    await cursor.execute(*bound(statement, origin))
    return await cursor.fetchall() if cursor.description else ()


def bound(statement: Statement, origin: str) -> tuple[bytes, list[Any] | None]:
    """What goes to psycopg."""
    sql, params = statement.sql, statement.params
    if isinstance(statement, Shared):
        sql, params = statement.plain()
    return sql.encode(), bind(params, origin) or None


def is_alive(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    """Whether nothing has arrived on an idle connection: a server that closes it says so before, and
    that is seen without asking."""
    if connection.closed:
        return False
    watch = select.poll()
    watch.register(connection.pgconn.socket, select.POLLIN)
    return not watch.poll(0)


def is_idle(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    return connection.info.transaction_status is TransactionStatus.IDLE


def _breaks(error: BaseException) -> bool:
    """Whether the connection is unusable: it is lost, or nobody knows what it is doing."""
    if isinstance(error, psycopg.Error):
        return is_fatal(error)
    return not isinstance(error, PoolTimeout | PoolClosed)


def _may_repeat(error: psycopg.Error, connection: Any, failures: int) -> bool:
    """Whether a statement that failed did nothing, and may succeed now: another transaction was in its
    way, or its plan was stale. Inside a transaction what came before it is undone, too, so its op
    has to begin anew."""
    if failures > REPEATS_MAX or connection is None or connection.closed:
        return False
    return sqlstate_of(error) in REPEATED and is_idle(connection)


def _as_ours(error: BaseException) -> BaseException:
    if isinstance(error, PoolTimeout):
        return StoreUnavailable(
            f"No connection to PostgreSQL within {POOL_SECONDS:g} s: the server is away, or all "
            "connections of the pool are in use (raise pool_size in the URL). Nothing was changed."
        )
    if isinstance(error, PoolClosed):
        return InvalidOperationError("The bus is closed; open it again before using it.")
    return translate(error) if isinstance(error, psycopg.Error) else error
