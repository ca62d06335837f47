"""Sessions inside a caller's own transaction: what is sent exists when, and only when, it commits.

Taken are connections of psycopg and asyncpg, and what SQLAlchemy and Django have around them. An op
runs in a savepoint, so that one that fails, for a duplicate, leaves the caller's transaction usable.
Announcements are the server's: it delivers them at the commit, also to this process.
"""

from __future__ import annotations

import re
from io import BytesIO
from typing import Any, TypeVar

import psycopg
from psycopg import AsyncRawCursor, RawCursor
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row
from psycopg.types.numeric import Int8Dumper

from commandbus.engines.postgres.conduct import Steps, conduct
from commandbus.engines.postgres.connections import execute_awaiting, execute_blocking
from commandbus.engines.postgres.failures import sqlstate_of, translate
from commandbus.engines.postgres.statements import Copy, Shared, bind
from commandbus.errors import ConfigurationError, InvalidOperationError
from commandbus.store.op import Op, Rows, Statement

T = TypeVar("T")

NOBODY = ""
"""The origin of what is sent here: nobody knows yet, so everybody is told."""

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


class CallerSession:
    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def run(self, op: Op[T], *, read: bool = False) -> T:
        return self._run(op, _saved(op))

    def run_last(self, op: Op[T]) -> T:
        """Without a savepoint: whoever began the transaction undoes all of it when this fails."""
        return self._run(op, conduct(op, [], own=False))

    def _run(self, op: Op[T], steps: Steps[T]) -> T:
        try:
            _check_transaction(self._connection)
        except BaseException:
            op.close()
            raise
        cursor = RawCursor(self._connection, row_factory=tuple_row)
        cursor.adapters.register_dumper(int, Int8Dumper)
        try:
            statement = next(steps)
            while True:
                try:
                    rows = execute_blocking(cursor, statement, NOBODY)
                except psycopg.Error as error:
                    statement = steps.throw(translate(error))
                else:
                    statement = steps.send(rows)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
        finally:
            steps.close()


class AsyncCallerSession:
    def __init__(self, connection: Any) -> None:
        self._given = connection

    async def run(self, op: Op[T], *, read: bool = False) -> T:
        return await self._run(op, _saved(op))

    async def run_last(self, op: Op[T]) -> T:
        return await self._run(op, conduct(op, [], own=False))

    async def _run(self, op: Op[T], steps: Steps[T]) -> T:
        try:
            perform = _performer(await _driver_of(self._given))
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


def _saved(op: Op[T]) -> Steps[T]:
    """An op between a savepoint and its release, or its undoing."""
    yield _SAVE
    try:
        result: T = yield from conduct(op, [], own=False)
    except Exception:
        yield _UNDO
        raise
    yield _RELEASE
    return result


def _performer(connection: Any) -> Any:
    """How to execute a statement on a driver's asyncio connection."""
    if isinstance(connection, psycopg.AsyncConnection):
        _check_transaction(connection)
        cursor = AsyncRawCursor(connection, row_factory=tuple_row)
        cursor.adapters.register_dumper(int, Int8Dumper)

        async def by_psycopg(statement: Statement) -> Rows:
            return await execute_awaiting(cursor, statement, NOBODY)

        return by_psycopg
    if not connection.is_in_transaction():
        raise _no_transaction()

    async def by_asyncpg(statement: Statement) -> Rows:
        if isinstance(statement, Copy):
            named = _COPY.match(statement.sql)
            assert named is not None
            await connection.copy_to_table(
                named[2],
                schema_name=named[1],
                columns=[name.strip() for name in named[3].split(",")],
                source=BytesIO(b"".join(statement.blocks())),
            )
            return ()
        sql, params = statement.sql, statement.params
        if isinstance(statement, Shared):
            sql, params = statement.plain()
        if not params:
            await connection.execute(sql)
            return ()
        return [tuple(row) for row in await connection.fetch(sql, *bind(params, NOBODY))]

    return by_asyncpg


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
