"""Transactions of handlers: their effects, their follow-ups and their outcome commit together.

The connection is the driver's own, as a user knows it: placeholders are `%s`, rows are tuples. Ops run
on it through the session of a caller's transaction, in savepoints.

A handler may leave anything behind in its session, so the message that ends the transaction resets the
session, too: one round trip, and behind a pooler in transaction mode the same server connection.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, Self, TypeVar

import psycopg
from psycopg import AsyncRawCursor, RawCursor
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row
from psycopg.types.numeric import IntDumper

from commandbus.engines.postgres.callers import AsyncCallerSession, CallerSession
from commandbus.engines.postgres.conduct import BEGIN, COMMIT, ROLLBACK
from commandbus.engines.postgres.connections import AsyncLine, Line
from commandbus.engines.postgres.statements import Ending, Script
from commandbus.store.op import Op, Rows, scalar
from commandbus.store.session import TransactionEnded

if TYPE_CHECKING:
    from commandbus.engines.postgres.engine import PostgresEngine

T = TypeVar("T")

# A user's statements are not ours: the planner may choose. The timeout is the worker's. All of that is
# local to the transaction. The mark is not: it lasts if the handler commits, and so tells of it.
_BEGIN = (
    "{begin}; select {now}, set_config('statement_timeout', '{milliseconds}', true),"
    " set_config('enable_seqscan', 'on', true), set_config('enable_bitmapscan', 'on', true),"
    " set_config('plan_cache_mode', 'auto', true), set_config('commandbus.handler', '{mark}', false)"
)
_NOW = "extract(epoch from now())::text"
"""The same in all of a transaction, and another one in the next."""
_STATE = (
    "select current_setting('commandbus.handler', true),"
    " exists (select from pg_catalog.pg_prepared_statements where from_sql)"
    " or exists (select from pg_catalog.pg_listening_channels())"
)
"""The mark, and whether there is anything that only a new connection is free of: statements that the
handler prepared by SQL, beside those of the driver; channels, whose notifications the driver keeps."""
_RESET = (
    _STATE,
    "reset session authorization",
    "reset role",
    "reset all",
    "close all",
    "discard temp",
    "discard sequences",
    "select pg_advisory_unlock_all()",
)
_COMMIT = Ending("; ".join([COMMIT.sql, *_RESET]))
_ROLLBACK = Script("; ".join([ROLLBACK.sql, *_RESET]))
_LOOK = Script(f"select {_NOW}")


def _begin(seconds: float, mark: str) -> Script:
    milliseconds = max(1, int(seconds * 1000))
    return Script(_BEGIN.format(begin=BEGIN.sql, now=_NOW, milliseconds=milliseconds, mark=mark))


class _Cursor(psycopg.Cursor[Any]):
    """As psycopg makes them; the connections of the bus send all whole numbers as bigint."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.adapters.register_dumper(int, IntDumper)


class _AsyncCursor(psycopg.AsyncCursor[Any]):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.adapters.register_dumper(int, IntDumper)


class _Transaction:
    """What is the same in both runtimes: `line` has just begun it."""

    _cursors: tuple[type[Any], type[Any]]
    """Those that the handler gets, and those of the bus."""

    def __init__(self, connection: Any, line: Line | AsyncLine, mark: str, begun: Rows) -> None:
        self._mark = mark
        ((self._began, *_),) = begun
        self._open = True
        self._committing = False
        """From then on, a transaction that is not open any more was not ended by the handler."""
        self._prepare_threshold = connection.prepare_threshold
        connection.cursor_factory = self._cursors[0]

    def _is_idle(self, connection: Any) -> bool:
        return bool(connection.pgconn.transaction_status == TransactionStatus.IDLE)

    def _restore(self, connection: Any, state: Rows, left: bool) -> bool:
        """Make the connection as it was, or close it; whether the handler ended the transaction."""
        self._open = False
        mark, tainted = next(iter(state), (None, None))
        ended = not self._committing and (left or mark == self._mark)
        if ended or tainted != "f":
            connection.pgconn.finish()
        else:
            connection.cursor_factory, connection.row_factory = self._cursors[1], tuple_row
            connection.prepare_threshold = self._prepare_threshold
        return ended


class BlockingTransaction(_Transaction):
    """For `def` handlers."""

    _cursors = (_Cursor, RawCursor)

    def __init__(self, line: Line, engine: PostgresEngine, mark: str, begun: Rows) -> None:
        self._line, self._engine = line, engine
        self.connection: psycopg.Connection[Any] = line.connection
        super().__init__(self.connection, line, mark, begun)
        self.session = CallerSession(self.connection)

    @classmethod
    def begin(cls, line: Line, engine: PostgresEngine, seconds: float) -> Self:
        mark = secrets.token_hex(8)
        try:
            return cls(line, engine, mark, line.execute(_begin(seconds, mark)))
        except BaseException:
            line.release()
            raise

    def record(self, op: Op[T]) -> T:
        if self._is_idle(self.connection) or scalar(self._line.execute(_LOOK)) != self._began:
            op.close()
            raise TransactionEnded
        return self.session.run_last(op)

    def commit(self) -> None:
        self._committing = True
        self._end(self._line.execute(_COMMIT))
        self._engine.told([], read=False)

    def rollback(self) -> None:
        if not self._open:
            return
        left = self._is_idle(self.connection)
        state: Rows = ()
        try:
            state = self._line.execute(_ROLLBACK)
        finally:
            ended = self._end(state, left)
        if ended:
            raise TransactionEnded

    def _end(self, state: Rows, left: bool = False) -> bool:
        ended = self._restore(self.connection, state, left)
        self._line.release()
        return ended


class AwaitingTransaction(_Transaction):
    """For `async def` handlers."""

    _cursors = (_AsyncCursor, AsyncRawCursor)

    def __init__(self, line: AsyncLine, engine: PostgresEngine, mark: str, begun: Rows) -> None:
        self._line, self._engine = line, engine
        self.connection: psycopg.AsyncConnection[Any] = line.connection
        super().__init__(self.connection, line, mark, begun)
        self.session = AsyncCallerSession(self.connection)

    @classmethod
    async def begin(cls, line: AsyncLine, engine: PostgresEngine, seconds: float) -> Self:
        mark = secrets.token_hex(8)
        try:
            return cls(line, engine, mark, await line.execute(_begin(seconds, mark)))
        except BaseException:
            await line.release()
            raise

    async def record(self, op: Op[T]) -> T:
        if self._is_idle(self.connection) or scalar(await self._line.execute(_LOOK)) != self._began:
            op.close()
            raise TransactionEnded
        return await self.session.run_last(op)

    async def commit(self) -> None:
        self._committing = True
        await self._end(await self._line.execute(_COMMIT))
        self._engine.told([], read=False)

    async def rollback(self) -> None:
        if not self._open:
            return
        left = self._is_idle(self.connection)
        state: Rows = ()
        try:
            state = await self._line.execute(_ROLLBACK)
        finally:
            ended = await self._end(state, left)
        if ended:
            raise TransactionEnded

    async def _end(self, state: Rows, left: bool = False) -> bool:
        # A canceled handler must not leave its connection behind.
        ended = self._restore(self.connection, state, left)
        await self._line.release()
        return ended
