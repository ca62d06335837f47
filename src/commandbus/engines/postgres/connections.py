"""Connections at work: what runs on them, and when they are thrown away."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.pq import TransactionStatus

from commandbus.engines.postgres import wire
from commandbus.engines.postgres.drivers import Driver
from commandbus.engines.postgres.failures import is_fatal, sqlstate_of, translate
from commandbus.engines.postgres.pools import Replaced, Source
from commandbus.engines.postgres.statements import Coalescing, Copy, Ending, Script, bind
from commandbus.engines.postgres.transaction_steps import COMMIT, ROLLBACK
from commandbus.engines.postgres.watch import has_arrived, shut_down
from commandbus.errors import CommandBusError
from commandbus.store.op import Rows, Statement

if TYPE_CHECKING:
    from commandbus.engines.postgres.engine import PostgresEngine

REPEATS_MAX = 3
SENDING = (wire.Connection, wire.AsyncConnection)
REPEATED = ("40001", "40P01", "0A000", "26000")
"""Serialization failure, deadlock, a cached plan whose result has changed its type, and a prepared
statement that is gone."""


class OpenCheckouts:
    """The connections that are in use, so that those without an answer can be broken."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: set[Checkout] = set()

    def enter(self, checkout: Checkout, connection: Any) -> None:
        with self._lock:
            checkout.connection = connection
            self._open.add(checkout)

    def leave(self, checkout: Checkout) -> Any:
        """From here on the connection may be closed, and its number given to another one."""
        with self._lock:
            self._open.discard(checkout)
            connection, checkout.connection = checkout.connection, None
            return connection

    def count(self, source: Any) -> int:
        with self._lock:
            return sum(checkout.source is source for checkout in self._open)

    def cut_transactions(self, worker: str) -> None:
        """Break the transactions of a worker's handlers that were left behind."""
        self._cut(lambda checkout: checkout.worker == worker)

    def cut(self, seconds: float) -> int:
        """Break those of the workers' own that have been waiting for so long; what calls of others wait
        for is left alone."""
        late = time.monotonic() - seconds
        return self._cut(
            lambda checkout: (
                checkout.own and checkout.asked_at is not None and checkout.asked_at <= late
            )
        )

    def _cut(self, applies: Callable[[Checkout], bool]) -> int:
        """Shut the sockets: the end of the connection is seen by what waits for it, in whichever
        thread or loop that is."""
        with self._lock:
            chosen = [checkout for checkout in self._open if applies(checkout)]
            for checkout in chosen:
                shut_down(checkout.connection)
        return len(chosen)


class Checkout:
    """A connection for one op or transaction: taken from its source when first needed, given back at
    the end."""

    __slots__ = (
        "_broken", "_checkouts", "_origin", "_watch", "asked_at", "connection", "own", "source",
        "worker",
    )  # fmt: skip

    def __init__(
        self, source: Source, engine: PostgresEngine, *, own: bool = False, worker: str = ""
    ) -> None:
        self.source = source
        self.own, self.worker = own, worker
        """Whether it serves the workers' own statements; and the worker whose handler has it."""
        self._origin = engine.process
        self._checkouts, self._watch = engine.checkouts, engine.watch
        self.connection: Any = None
        self.asked_at: float | None = None
        self._broken = False

    @property
    def in_use(self) -> bool:
        return self.connection is not None

    async def execute(self, statement: Statement) -> Rows:
        if self._broken:
            if statement.sql.startswith(ROLLBACK.sql):
                return ()
            self.release()
        failures = 0
        while True:
            try:
                self.asked_at = time.monotonic()
                if self.connection is None:
                    await self.take()
                connection: Any = self.connection
                self._watch.begin(connection, statement)
                return await run(self.source.driver, connection, statement, self._origin)
            except CommandBusError:
                raise
            except BaseException as error:  # also a cancellation: is the connection still good?
                # It is unusable when it is lost, or when its state is unknown.
                self._broken = not isinstance(error, psycopg.Error) or is_fatal(error)
                if not isinstance(error, psycopg.Error):
                    raise
                failures += 1
                if not _may_repeat(error, statement, self.connection, failures):
                    raise translate(error) from error
            finally:
                self.asked_at = None
                self._watch.end(self.connection)
            self.release()

    async def take(self) -> None:
        while True:
            self.source = newest(self.source)
            try:
                connection = await self.source.getconn()
            except Replaced:
                continue
            if is_alive(connection):
                return self._checkouts.enter(self, connection)
            connection.pgconn.finish()
            self.source.putconn(connection)

    def release(self) -> None:
        """Nothing is awaited, so nothing can be canceled."""
        connection = self._checkouts.leave(self)
        if connection is not None:
            if self._broken or not is_idle(connection):
                connection.pgconn.finish()
            self._broken = False
            self.source.putconn(connection)


def newest(source: Any) -> Any:
    """The source itself, or the one that took its place."""
    while source.successor is not None:
        source = source.successor
    return source


async def run(driver: Driver, connection: Any, statement: Statement, origin: str) -> Rows:
    """Execute one statement; rows come as tuples."""
    if isinstance(statement, Coalescing) and isinstance(connection, SENDING):
        sql, params = statement.plain()
        if sql in connection.names or connection.takes_more:
            return await wire.ask(driver, connection, sql, params, origin)
    if isinstance(statement, Ending):
        return await wire.end(driver, connection, statement.sql)
    return await execute(driver, connection.cursor(), statement, origin)


async def execute(driver: Driver, cursor: Any, statement: Statement, origin: str) -> Rows:
    if isinstance(statement, Copy):
        await driver.copy(cursor, statement.sql.encode(), statement.blocks())
        return ()
    if isinstance(statement, Script):
        await driver.execute(cursor, statement.sql.encode(), prepare=False)
        return _texts(cursor)
    sql, params = statement.sql, statement.params
    if isinstance(statement, Coalescing):
        sql, params = statement.plain()
    await driver.execute(cursor, sql.encode(), bind(params, origin) or None)
    return await driver.rows(cursor) if _has_rows(cursor) else ()


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


def is_alive(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    """Whether nothing has arrived on an idle connection: a server that closes it says so before, and
    that is seen without asking."""
    if connection.closed:
        return False
    return not has_arrived(0, connection.pgconn.socket)


def is_idle(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    return connection.pgconn.transaction_status == TransactionStatus.IDLE


def _may_repeat(error: psycopg.Error, statement: Statement, connection: Any, failures: int) -> bool:
    """Whether a statement that failed did nothing, and may succeed now: another transaction was in its
    way, or its plan was stale. Inside a transaction what came before it is undone, too, so its op
    has to be repeated from its beginning; and a commit that failed has nothing left to commit."""
    if failures > REPEATS_MAX or connection is None or connection.closed:
        return False
    if statement is COMMIT or isinstance(statement, Script):
        return False
    return sqlstate_of(error) in REPEATED and is_idle(connection)
