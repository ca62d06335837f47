"""Transactions of handlers: their effects, their follow-ups and their outcome commit together.

The connection is the driver's own, as a user knows it: placeholders are `%s`, rows are tuples. Ops run
on it through the session of a caller's transaction, in savepoints.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import psycopg
from psycopg import AsyncRawCursor, RawCursor
from psycopg.types.numeric import IntDumper

from commandbus.engines.postgres.callers import async_caller_session, caller_session
from commandbus.engines.postgres.conduct import BEGIN, COMMIT, ROLLBACK
from commandbus.engines.postgres.connections import AsyncLine, Line
from commandbus.store.op import Statement
from commandbus.store.session import AsyncSession, Session

if TYPE_CHECKING:
    from commandbus.engines.postgres.engine import PostgresEngine


# A user's statements are not ours: the planner may choose. The timeout is the worker's. All of it is
# local to the transaction, so nothing leaks into the pool.
_SET = (
    "select set_config('statement_timeout', $1::text, true), set_config('enable_seqscan', 'on', true),"
    " set_config('enable_bitmapscan', 'on', true), set_config('plan_cache_mode', 'auto', true)"
)


def _begin(seconds: float) -> list[Statement]:
    return [BEGIN, Statement(_SET, (f"{max(1, int(seconds * 1000))}ms",))]


class _Cursor(psycopg.Cursor[Any]):
    """As psycopg makes them; the connections of the bus send all whole numbers as bigint."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.adapters.register_dumper(int, IntDumper)


class _AsyncCursor(psycopg.AsyncCursor[Any]):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.adapters.register_dumper(int, IntDumper)


class BlockingTransaction:
    """For `def` handlers."""

    def __init__(self, line: Line, engine: PostgresEngine) -> None:
        self._line = line
        self._engine = engine
        self.connection: psycopg.Connection[Any] = line.connection
        self.connection.cursor_factory = _Cursor
        self.session: Session = caller_session(self.connection)
        self._open = True

    @classmethod
    def begin(cls, line: Line, engine: PostgresEngine, seconds: float) -> Self:
        try:
            for statement in _begin(seconds):
                line.execute(statement)
            return cls(line, engine)
        except BaseException:
            line.release()
            raise

    def commit(self) -> None:
        self._line.execute(COMMIT)
        self._end()
        self._engine.told([], read=False)

    def rollback(self) -> None:
        if self._open:
            try:
                self._line.execute(ROLLBACK)
            finally:
                self._end()

    def _end(self) -> None:
        self._open = False
        self.connection.cursor_factory = RawCursor
        self._line.release()


class AwaitingTransaction:
    """For `async def` handlers."""

    def __init__(self, line: AsyncLine, engine: PostgresEngine) -> None:
        self._line = line
        self._engine = engine
        self.connection: psycopg.AsyncConnection[Any] = line.connection
        self.connection.cursor_factory = _AsyncCursor
        self.session: AsyncSession = async_caller_session(self.connection)
        self._open = True

    @classmethod
    async def begin(cls, line: AsyncLine, engine: PostgresEngine, seconds: float) -> Self:
        try:
            for statement in _begin(seconds):
                await line.execute(statement)
            return cls(line, engine)
        except BaseException:
            await line.release()
            raise

    async def commit(self) -> None:
        await self._line.execute(COMMIT)
        await self._end()
        self._engine.told([], read=False)

    async def rollback(self) -> None:
        if self._open:
            try:
                await self._line.execute(ROLLBACK)
            finally:
                await self._end()

    async def _end(self) -> None:
        self._open = False
        self.connection.cursor_factory = AsyncRawCursor
        # A cancelled handler must not leave its connection behind.
        await self._line.release()
