"""Transactions of handlers: their effects, their follow-ups and their outcome commit together.

The connection is the driver's own, as a user knows it: placeholders are `%s`, rows are tuples. Ops run
on it through the session of a caller's transaction, in savepoints.

A handler may leave anything behind in its session, so the message that ends the transaction resets the
session, too: one round trip, and behind a pooler in transaction mode the same server connection. What
it changes on the driver's connection (adapters, factories, handlers of notices) is put back before the
bus uses the connection for itself.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, Self, TypeVar

import psycopg
from psycopg.adapt import AdaptersMap
from psycopg.pq import TransactionStatus
from psycopg.types.numeric import IntDumper

from commandbus.engines.postgres.callers import AsyncCallerSession, CallerSession
from commandbus.engines.postgres.connections import Checkout
from commandbus.engines.postgres.statements import Ending, Script
from commandbus.engines.postgres.transaction_steps import BEGIN, COMMIT, ROLLBACK
from commandbus.store.op import Op, Rows, scalar
from commandbus.store.session import TransactionEnded
from commandbus.store.waiting import finish, finishing

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
    """A transaction that has just begun on the connection of `checkout`."""

    _cursor: type[Any]
    """As the handler gets them."""

    def __init__(self, checkout: Checkout, engine: PostgresEngine, mark: str, begun: Rows) -> None:
        self._checkout, self._engine, self._mark = checkout, engine, mark
        self._connection = connection = checkout.connection
        ((self._began, *_),) = begun
        self._open = True
        self._committing = False
        """From then on, a transaction that is not open any more was not ended by the handler."""
        self._attributes = vars(connection).copy()
        self._prepared = connection.prepare_threshold, connection.prepared_max
        connection.cursor_factory = self._cursor
        connection._adapters = AdaptersMap(connection.adapters)
        connection._notice_handlers, connection._notify_handlers = [], []

    @classmethod
    async def _begin(cls, checkout: Checkout, engine: PostgresEngine, seconds: float) -> Self:
        mark = secrets.token_hex(8)
        try:
            return cls(checkout, engine, mark, await checkout.execute(_begin(seconds, mark)))
        except BaseException:
            checkout.release()
            raise

    def _take_back(self) -> None:
        """The handler has ended: put back all that it may have set on the driver's connection."""
        connection = self._connection
        connection.__dict__ = self._attributes
        connection.prepare_threshold, connection.prepared_max = self._prepared

    async def _check(self, op: Op[Any]) -> None:
        """Raises TransactionEnded when the handler ended the transaction."""
        self._take_back()
        if self._is_idle() or scalar(await self._checkout.execute(_LOOK)) != self._began:
            op.close()
            raise TransactionEnded

    async def _commit(self) -> None:
        self._committing = True
        self._take_back()
        self._end(await self._checkout.execute(_COMMIT))
        self._engine.hub.after_commit([])

    async def _rollback(self) -> None:
        if not self._open:
            return
        self._take_back()
        left = self._is_idle()
        state: Rows = ()
        try:
            state = await self._checkout.execute(_ROLLBACK)
        finally:
            ended = self._end(state, left)
        if ended:
            raise TransactionEnded

    def _is_idle(self) -> bool:
        return bool(self._connection.pgconn.transaction_status == TransactionStatus.IDLE)

    def _end(self, state: Rows, left: bool = False) -> bool:
        """Give the connection back, or close it; whether the handler ended the transaction. Nothing is
        awaited: a canceled handler must not leave its connection behind."""
        connection, self._open = self._connection, False
        mark, tainted = next(iter(state), (None, None))
        ended = not self._committing and (left or mark == self._mark)
        if ended or tainted != "f":
            connection.pgconn.finish()
        self._checkout.release()
        return ended


class BlockingTransaction(_Transaction):
    """For `def` handlers."""

    _cursor = _Cursor
    commit = finishing(_Transaction._commit)
    rollback = finishing(_Transaction._rollback)

    def __init__(self, checkout: Checkout, engine: PostgresEngine, mark: str, begun: Rows) -> None:
        super().__init__(checkout, engine, mark, begun)
        self.connection: psycopg.Connection[Any] = self._connection
        self.session = CallerSession(self.connection)

    @classmethod
    def begin(cls, checkout: Checkout, engine: PostgresEngine, seconds: float) -> Self:
        return finish(cls._begin(checkout, engine, seconds))

    def record(self, op: Op[T]) -> T:
        finish(self._check(op))
        return self.session.run_last(op)


class AwaitingTransaction(_Transaction):
    """For `async def` handlers."""

    _cursor = _AsyncCursor
    commit = _Transaction._commit
    rollback = _Transaction._rollback

    def __init__(self, checkout: Checkout, engine: PostgresEngine, mark: str, begun: Rows) -> None:
        super().__init__(checkout, engine, mark, begun)
        self.connection: psycopg.AsyncConnection[Any] = self._connection
        self.session = AsyncCallerSession(self.connection)

    @classmethod
    async def begin(cls, checkout: Checkout, engine: PostgresEngine, seconds: float) -> Self:
        return await cls._begin(checkout, engine, seconds)

    async def record(self, op: Op[T]) -> T:
        await self._check(op)
        return await self.session.run_last(op)
