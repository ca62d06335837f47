"""Sessions inside a caller's own transaction: what is sent exists when, and only when, it commits.

Taken are connections of psycopg and asyncpg, and what SQLAlchemy and Django have around them. An op
runs in a savepoint, so that one that fails, for a duplicate, leaves the caller's transaction usable.
Announcements are the server's: it delivers them at the commit, also to this process.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from io import BytesIO
from typing import Any, TypeVar

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from commandbus.engines.postgres.connections import execute
from commandbus.engines.postgres.drivers import AWAITING, BLOCKING, Driver
from commandbus.engines.postgres.failures import sqlstate_of, translate
from commandbus.engines.postgres.pools import adapters
from commandbus.engines.postgres.statements import Coalescing, Copy, bind
from commandbus.engines.postgres.transaction_steps import Steps, in_transactions
from commandbus.errors import ConfigurationError, InvalidOperationError
from commandbus.store.op import Op, Rows, Statement
from commandbus.store.waiting import finishing

T = TypeVar("T")
Performer = Callable[[Statement], Coroutine[Any, Any, Rows]]

UNKNOWN = ""
"""The origin of what is sent here: no process has heard of it before its commit, so all are
notified."""

_ADAPTERS = adapters()
"""Not those of the connection, where a caller may have registered others."""
_SAVE = Statement("savepoint commandbus_op")
_RELEASE = Statement("release savepoint commandbus_op")
_UNDO = Statement("rollback to savepoint commandbus_op")
_COPY = re.compile(r'copy "(\w+)"\.(\w+)\s*\(([^)]*)\)', re.DOTALL)


def caller_session(connection: Any) -> CallerSession:
    """A session on a blocking connection. Raises ConfigurationError for anything else."""
    return CallerSession(_unwrap(connection))


def async_caller_session(connection: Any) -> AsyncCallerSession:
    """A session on an asyncio connection. Raises ConfigurationError for anything else."""
    if isinstance(connection, psycopg.AsyncConnection) or _is_from(connection, "asyncpg"):
        return AsyncCallerSession(connection)
    if _is_from(connection, "sqlalchemy"):
        return AsyncCallerSession(connection)
    raise _unknown(connection, "an asyncio")


class _CallerSession(ABC):
    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def _run(self, op: Op[T], *, read: bool = False) -> T:
        return await self._perform(op, _saved(op))

    async def _run_last(self, op: Op[T]) -> T:
        """Without a savepoint: when it fails, all of the transaction is undone."""
        return await self._perform(op, in_transactions(op, [], own=False))

    async def _perform(self, op: Op[T], steps: Steps[T]) -> T:
        try:
            perform = await self._performer()
            statement = next(steps)
            while True:
                try:
                    rows = await perform(statement)
                except Exception as error:  # only a server's error is the op's concern
                    if not sqlstate_of(error) and not isinstance(error, psycopg.Error):
                        raise
                    statement = steps.throw(translate(error))
                else:
                    statement = steps.send(rows)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
        finally:
            steps.close()
            op.close()

    @abstractmethod
    async def _performer(self) -> Performer:
        """How to execute statements on the connection."""


class CallerSession(_CallerSession):
    run = finishing(_CallerSession._run)
    run_last = finishing(_CallerSession._run_last)

    async def _performer(self) -> Performer:
        return _by_psycopg(BLOCKING, self._connection)


class AsyncCallerSession(_CallerSession):
    run = _CallerSession._run
    run_last = _CallerSession._run_last

    async def _performer(self) -> Performer:
        driver = await _driver_of(self._connection)
        if isinstance(driver, psycopg.AsyncConnection):
            return _by_psycopg(AWAITING, driver)
        return _by_asyncpg(driver)


def _saved(op: Op[T]) -> Steps[T]:
    """An op between a savepoint and its release, or its undoing."""
    yield _SAVE
    try:
        result: T = yield from in_transactions(op, [], own=False)
    except Exception:
        yield _UNDO
        raise
    yield _RELEASE
    return result


def _by_psycopg(driver: Driver, connection: Any) -> Performer:
    """How to execute statements on a connection of psycopg."""
    _check_transaction(connection)
    cursor = driver.cursor(connection, row_factory=tuple_row)
    cursor._adapters = _ADAPTERS
    return lambda statement: execute(driver, cursor, statement, UNKNOWN)


def _by_asyncpg(connection: Any) -> Performer:
    if not connection.is_in_transaction():
        raise _no_transaction()

    async def perform(statement: Statement) -> Rows:
        if isinstance(statement, Copy):
            named = _COPY.match(statement.sql)
            assert named is not None
            await connection.copy_to_table(
                named[2],
                schema_name=named[1],
                columns=[name.strip() for name in named[3].split(",")],
                source=BytesIO(b"".join(statement.blocks())),
                format="binary" if statement.binary else "text",
            )
            return ()
        sql, params = statement.sql, statement.params
        if isinstance(statement, Coalescing):
            sql, params = statement.plain()
        if not params:
            await connection.execute(sql)
            return ()
        return [tuple(row) for row in await connection.fetch(sql, *bind(params, UNKNOWN))]

    return perform


def _check_transaction(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    idle = connection.info.transaction_status is TransactionStatus.IDLE
    if connection.autocommit and idle:
        raise _no_transaction()


def _no_transaction() -> InvalidOperationError:
    return InvalidOperationError(
        "The connection is in autocommit mode and has no transaction open, so there is nothing to be "
        "part of; begin one first, or use the bus itself."
    )


def _unwrap(connection: Any) -> psycopg.Connection[Any]:
    """The psycopg connection inside what the caller has; its transaction is begun where the wrapper
    would not commit it otherwise."""
    if _is_from(connection, "django"):
        connection.ensure_connection()
        connection = connection.connection
    elif _is_from(connection, "sqlalchemy"):
        if callable(connection.connection):
            connection = connection.connection()
        if not connection.in_transaction():
            connection.begin()
        connection = connection.connection.driver_connection
    if isinstance(connection, psycopg.Connection):
        return connection
    raise _unknown(connection, "a blocking")


async def _driver_of(connection: Any) -> Any:
    if not _is_from(connection, "sqlalchemy"):
        return connection
    if not hasattr(connection, "get_raw_connection"):
        connection = await connection.connection()
    if not connection.in_transaction():
        await connection.begin()
    # SQLAlchemy begins on asyncpg with the first statement that it sees.
    await connection.exec_driver_sql("select 1")
    driver = (await connection.get_raw_connection()).driver_connection
    if isinstance(driver, psycopg.AsyncConnection) or _is_from(driver, "asyncpg"):
        return driver
    raise _unknown(driver, "an asyncio")


def _is_from(value: Any, package: str) -> bool:
    return any(base.__module__.partition(".")[0] == package for base in type(value).__mro__)


def _unknown(connection: Any, kind: str) -> ConfigurationError:
    return ConfigurationError(
        f"within() needs {kind} connection to this bus's database, of psycopg, asyncpg, SQLAlchemy or "
        f"Django, not {type(connection).__module__}.{type(connection).__qualname__}."
    )
