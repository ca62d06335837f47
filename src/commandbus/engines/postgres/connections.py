"""Connections at work: what runs on them, and when they are thrown away."""

from __future__ import annotations

import asyncio
import select
import threading
import time
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import psycopg
from psycopg.pq import TransactionStatus
from psycopg_pool import PoolClosed, PoolTimeout
from psycopg_pool.base import BasePool

from commandbus.engines.postgres import wire
from commandbus.engines.postgres.conduct import COMMIT, ROLLBACK
from commandbus.engines.postgres.failures import is_fatal, sqlstate_of, translate
from commandbus.engines.postgres.pools import AsyncReserve, AsyncSource, Source
from commandbus.engines.postgres.statements import Copy, Ending, Script, Shared, bind
from commandbus.engines.postgres.watch import shut_down
from commandbus.errors import (
    CommandBusError,
    InvalidOperationError,
    PoolExhausted,
    StoreUnavailable,
)
from commandbus.store.op import Rows, Statement

if TYPE_CHECKING:
    from commandbus.engines.postgres.engine import PostgresEngine

REPEATS_MAX = 3
REPEATED = ("40001", "40P01", "0A000", "26000")
"""Serialization failure, deadlock, a cached plan whose result has changed its type, and a prepared
statement that is gone."""


class Traffic:
    """The connections that are in use, so that those without an answer can be broken."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lines: set[_Line] = set()
        self.replaced: WeakSet[Any] = WeakSet()
        """Sources that were closed because others took their place."""

    def enter(self, line: _Line, connection: Any) -> None:
        with self._lock:
            line.connection = connection
            self._lines.add(line)

    def leave(self, line: _Line) -> Any:
        """From here on the connection may be closed, and its number given to another one."""
        with self._lock:
            self._lines.discard(line)
            connection, line.connection = line.connection, None
            return connection

    def count(self, source: Any) -> int:
        with self._lock:
            return sum(line.source is source for line in self._lines)

    def cut_all_but(self, *current: Any) -> None:
        """Break what is held or waits on connections of sources that are no longer used."""
        with self._lock:
            for line in self._lines:
                busy = line.held or line.asked_at is not None
                if busy and not any(line.source is source for source in current):
                    shut_down(line.connection)

    def cut(self, seconds: float) -> int:
        """Shut the sockets of those that have been waiting for so long: whoever waits is told then
        that the connection is lost, in whichever thread or loop it is."""
        late, lost = time.monotonic() - seconds, 0
        with self._lock:
            for line in self._lines:
                if line.asked_at is not None and line.asked_at <= late:
                    lost += 1
                    shut_down(line.connection)
        return lost


class _Line:
    """A connection for one op or transaction."""

    __slots__ = ("_broken", "_origin", "_traffic", "_watch", "asked_at", "connection", "held", "source")

    def __init__(self, source: Any, engine: PostgresEngine) -> None:
        self.source = source
        self._origin = engine.process
        self._traffic, self._watch = engine.traffic, engine.watch
        self.connection: Any = None
        self.asked_at: float | None = None
        self.held = False
        """A handler has it, for a transaction."""
        self._broken = False

    @property
    def in_use(self) -> bool:
        return self.connection is not None

    def _ours(self, error: BaseException) -> BaseException:
        if isinstance(error, PoolTimeout):
            return self._no_connection()
        if isinstance(error, PoolClosed) and self.source in self._traffic.replaced:
            return StoreUnavailable(
                "The connections of this process were replaced meanwhile. Trying again is safe."
            )
        if isinstance(error, PoolClosed):
            return InvalidOperationError("The bus is closed; open it again before using it.")
        return translate(error) if isinstance(error, psycopg.Error) else error

    def _no_connection(self) -> StoreUnavailable:
        pool: BasePool = self.source
        busy = self._traffic.count(pool)
        if busy >= pool.max_size:
            return PoolExhausted(
                f"All {pool.max_size} connections of the pool were in use for {pool.timeout:g} s; "
                "nothing was changed. Raise pool_size in the URL, or lower the concurrency."
            )
        return StoreUnavailable(
            f"No connection to PostgreSQL within {pool.timeout:g} s, though only {busy} of "
            f"{pool.max_size} are in use: the server is away. Nothing was changed."
        )

    def _is_clean(self, connection: Any) -> bool:
        return not self._broken and is_idle(connection)


class Line(_Line):
    """For threads: taken from its source when first needed, given back at the end."""

    __slots__ = ()
    source: Source

    def execute(self, statement: Statement) -> Rows:
        if self._broken:
            if statement.sql.startswith(ROLLBACK.sql):
                return ()
            self.release()
        failures = 0
        while True:
            try:
                return self._execute_once(statement)
            except psycopg.Error as error:
                failures += 1
                if not _may_repeat(error, statement, self.connection, failures):
                    raise self._ours(error) from error
                self.release()

    def _execute_once(self, statement: Statement) -> Rows:
        try:
            self.asked_at = time.monotonic()
            if self.connection is None:
                self.take()
            connection: Any = self.connection
            self._watch.begin(connection, statement)
            return run_blocking(connection, statement, self._origin)
        except CommandBusError:
            raise
        except BaseException as error:  # also a cancellation: is the connection still good?
            self._broken = _breaks(error)
            raise
        finally:
            self.asked_at = None
            self._watch.end(self.connection)

    def take(self) -> None:
        while True:
            connection = self.source.getconn()
            if is_alive(connection):
                return self._traffic.enter(self, connection)
            connection.close()
            self.source.putconn(connection)

    def release(self) -> None:
        connection = self._traffic.leave(self)
        if connection is not None:
            if not self._is_clean(connection):
                connection.close()
            self._broken = False
            self.source.putconn(connection)


class AsyncLine(_Line):
    """The same for asyncio."""

    __slots__ = ()
    source: AsyncSource

    async def execute(self, statement: Statement) -> Rows:
        if self._broken:
            if statement.sql.startswith(ROLLBACK.sql):
                return ()
            await self.release()
        failures = 0
        while True:
            try:
                return await self._execute_once(statement)
            except psycopg.Error as error:
                failures += 1
                if not _may_repeat(error, statement, self.connection, failures):
                    raise self._ours(error) from error
                await self.release()

    async def _execute_once(self, statement: Statement) -> Rows:
        try:
            self.asked_at = time.monotonic()
            if self.connection is None:
                await self.take()
            connection: Any = self.connection
            self._watch.begin(connection, statement)
            return await run_awaiting(connection, statement, self._origin)
        except CommandBusError:
            raise
        except BaseException as error:  # also a cancellation: is the connection still good?
            self._broken = _breaks(error)
            raise
        finally:
            self.asked_at = None
            self._watch.end(self.connection)

    async def take(self) -> None:
        while True:
            connection = await self.source.getconn()
            if is_alive(connection):
                return self._traffic.enter(self, connection)
            await connection.close()
            await self.source.putconn(connection)

    async def release(self) -> None:
        connection = self._traffic.leave(self)
        if connection is not None:
            if not self._is_clean(connection):
                await connection.close()
            self._broken = False
            if isinstance(self.source, AsyncReserve):
                await self.source.putconn(connection)  # never waits, so it cannot be cancelled
            else:
                # A cancelled caller must not leave its connection behind.
                await asyncio.shield(self.source.putconn(connection))


def run_blocking(connection: psycopg.Connection[Any], statement: Statement, origin: str) -> Rows:
    """Execute one statement; rows come as tuples."""
    if isinstance(statement, Shared) and isinstance(connection, wire.Connection):
        sql, params = statement.plain()
        if sql in connection.names or connection.takes_more:
            return connection.ask(sql, params, origin)
    if isinstance(statement, Ending):
        return wire.end(connection, statement.sql)
    return execute_blocking(connection.cursor(), statement, origin)


async def run_awaiting(
    connection: psycopg.AsyncConnection[Any], statement: Statement, origin: str
) -> Rows:
    if isinstance(statement, Shared) and isinstance(connection, wire.AsyncConnection):
        sql, params = statement.plain()
        if sql in connection.names or connection.takes_more:
            return await connection.ask(sql, params, origin)
    if isinstance(statement, Ending):
        return await wire.end_async(connection, statement.sql)
    return await execute_awaiting(connection.cursor(), statement, origin)


def execute_blocking(cursor: psycopg.Cursor[Any], statement: Statement, origin: str) -> Rows:
    if isinstance(statement, Copy):
        with cursor.copy(statement.sql.encode()) as copy:
            for block in statement.blocks():
                copy.write(block)
        return ()
    if isinstance(statement, Script):
        cursor.execute(statement.sql.encode(), prepare=False)
        return _texts(cursor)
    cursor.execute(*bound(statement, origin))
    return cursor.fetchall() if _has_rows(cursor) else ()


async def execute_awaiting(cursor: psycopg.AsyncCursor[Any], statement: Statement, origin: str) -> Rows:
    if isinstance(statement, Copy):
        async with cursor.copy(statement.sql.encode()) as copy:
            for block in statement.blocks():
                await copy.write(block)
        return ()
    if isinstance(statement, Script):
        await cursor.execute(statement.sql.encode(), prepare=False)
        return _texts(cursor)
    await cursor.execute(*bound(statement, origin))
    return await cursor.fetchall() if _has_rows(cursor) else ()


def _has_rows(cursor: psycopg.Cursor[Any] | psycopg.AsyncCursor[Any]) -> bool:
    """The same as having a description, which takes as long to make as the rows of a small answer."""
    return cursor.pgresult is not None and cursor.pgresult.nfields > 0


def _texts(cursor: psycopg.Cursor[Any] | psycopg.AsyncCursor[Any]) -> Rows:
    """The rows of all results that a script has."""
    rows: list[tuple[str | None, ...]] = []
    while True:
        if cursor.pgresult is not None:
            rows += wire.texts(cursor.pgresult)
        if not cursor.nextset():
            return rows


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
    return connection.pgconn.transaction_status == TransactionStatus.IDLE


def _breaks(error: BaseException) -> bool:
    """Whether the connection is unusable: it is lost, or nobody knows what it is doing."""
    if isinstance(error, psycopg.Error):
        return is_fatal(error)
    return not isinstance(error, PoolTimeout | PoolClosed)


def _may_repeat(error: psycopg.Error, statement: Statement, connection: Any, failures: int) -> bool:
    """Whether a statement that failed did nothing, and may succeed now: another transaction was in its
    way, or its plan was stale. Inside a transaction what came before it is undone, too, so its op
    has to begin anew; and a commit that failed has nothing left to commit."""
    if failures > REPEATS_MAX or connection is None or connection.closed:
        return False
    if statement is COMMIT or isinstance(statement, Script):
        return False
    return sqlstate_of(error) in REPEATED and is_idle(connection)
