"""The SQLite engine: its file, its lanes, and the two sessions over them."""

from __future__ import annotations

import sqlite3
import threading
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from pathlib import Path
from types import CoroutineType
from typing import Any, TypeVar

from commandbus.domain.moment import Clock, system_clock
from commandbus.engines.sqlite import file, location, schema
from commandbus.engines.sqlite.doorbell import Doorbell
from commandbus.engines.sqlite.failures import translate
from commandbus.engines.sqlite.lane import Lane, ReadLane, WriteLane
from commandbus.engines.sqlite.lock import WriteLock
from commandbus.engines.sqlite.store import SqliteStore
from commandbus.engines.sqlite.watcher import Watcher
from commandbus.errors import ConfigurationError, InvalidOperationError, NotOpen, StoreUnavailable
from commandbus.store.op import Log, Op, Wake, drive
from commandbus.store.serverless import Serverless
from commandbus.store.wakeup import WakeHub

T = TypeVar("T")

LOCK_SECONDS_MAX = 60.0
"""How long an op may wait for its turn before its caller gets an error."""


class SqliteEngine(Serverless):
    """One file, shared by any number of processes on one machine."""

    def __init__(self, url: str, *, clock: Clock = system_clock) -> None:
        self.url = url
        self.path, self._synchronous = location.parse(url)
        self.identity = f"sqlite {self.path.resolve()}"
        self.hub = WakeHub()
        self.store = SqliteStore(clock)
        self.session = SqliteSession(self)
        self.async_session = AsyncSqliteSession(self)
        self.reserved_session, self.reserved_async_session = self.session, self.async_session
        self.service_session = self.session
        self._clock = clock
        self._opening = threading.Lock()
        self._writer: WriteLane | None = None
        self._reader: ReadLane | None = None
        self._watcher: Watcher | None = None
        self._lock: WriteLock | None = None
        self._doorbell: Doorbell | None = None

    def open(self) -> None:
        with self._opening:
            if self._writer is not None:
                return
            location.check(self.path)
            file.create(self.path)
            self._lock = WriteLock(Path(f"{self.path}.lock"), self.path)
            try:
                self._create_schema()
                self._doorbell = Doorbell(self.path)
                check = file.OpenFile(self.path, self._clock).check
                self._writer = WriteLane(
                    "commandbus-write",
                    self._connect,
                    self._synchronous,
                    self._lock,
                    check,
                    self._after_commit,
                )
                self._reader = ReadLane("commandbus-read", self._connect_readonly)
                self._watcher = Watcher(
                    self._connect_readonly,
                    Path(f"{self.path}-wal"),
                    self.hub,
                    self._doorbell,
                    self._clock,
                )
            except sqlite3.Error as error:
                self._close()
                raise translate(error) from error
            except BaseException:
                self._close()
                raise

    def close(self) -> None:
        with self._opening:
            self._close()

    def _close(self) -> None:
        for part in (self._watcher, self._reader, self._writer, self._doorbell, self._lock):
            if part is not None:
                part.close()
        self._watcher = self._reader = self._writer = self._doorbell = self._lock = None

    async def open_async(self) -> None:
        from asyncio import to_thread

        await to_thread(self.open)

    async def close_async(self) -> None:
        from asyncio import to_thread

        await to_thread(self.close)

    def check_open(self) -> None:
        self.lane(read=True)

    def lane(self, read: bool) -> Lane:
        lane = self._reader if read else self._writer
        if lane is None:
            raise NotOpen
        return lane

    def within(self, connection: Any) -> CallerSession:
        """A session on the caller's own sqlite3 connection to this file."""
        return CallerSession(connection, self)

    def within_async(self, connection: Any) -> AsyncCallerSession:
        return AsyncCallerSession(CallerSession(connection, self))

    def expect(self, wakes: list[Wake | Log]) -> None:
        """A caller's transaction has these wake-ups, and commits when the caller decides."""
        if self._doorbell is not None:
            self._doorbell.expect(_wakes(wakes))

    def _after_commit(self, wakes: list[Wake | Log]) -> None:
        unheard = self.hub.after_commit(wakes)
        if self._doorbell is not None:
            self._doorbell.ring(_wakes(wakes), unheard)

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.path,
            timeout=30,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=256,
        )
        try:
            # The log is folded back by the write lane, under the lock of all processes.
            connection.execute("pragma journal_mode = wal")
            connection.execute(f"pragma synchronous = {self._synchronous}")
            connection.execute("pragma wal_autocheckpoint = 0")
            connection.execute("pragma temp_store = memory")
        except BaseException:
            connection.close()
            raise
        return connection

    def _connect_readonly(self) -> sqlite3.Connection:
        connection = self._connect()
        connection.execute("pragma query_only = on")
        return connection

    def _create_schema(self) -> None:
        assert self._lock is not None
        with self._lock:
            connection = self._connect()
            try:
                schema.upgrade(connection)
            finally:
                connection.close()


class SqliteSession:
    def __init__(self, engine: SqliteEngine) -> None:
        self._engine = engine

    def run(self, op: Op[T], *, read: bool = False) -> T:
        lane = self._engine.lane(read)
        future = lane.run(op) or lane.submit(op)
        try:
            return future.result(LOCK_SECONDS_MAX)
        except FutureTimeout:
            return _give_up(future)


class AsyncSqliteSession:
    """Imports asyncio when it is used: the command line starts without it."""

    def __init__(self, engine: SqliteEngine) -> None:
        self._engine = engine

    async def run(self, op: Op[T], *, read: bool = False) -> T:
        import asyncio

        future = self._engine.lane(read).submit(op)
        try:
            async with asyncio.timeout(LOCK_SECONDS_MAX):
                # An op that has begun is not undone by a canceled caller: it may be committed.
                return await asyncio.shield(asyncio.wrap_future(future))
        except TimeoutError:
            if future.cancel():
                raise _busy() from None
            return await asyncio.shield(asyncio.wrap_future(future))


class CallerSession:
    """Runs ops on the caller's connection, inside the caller's transaction. When the caller commits is
    not known here, so processes that wait for such work are asked to watch for it."""

    def __init__(self, connection: Any, engine: SqliteEngine) -> None:
        self._engine = engine
        self._connection = _unwrap(connection)
        files = [file for _, _, file in self._connection.execute("pragma database_list")]
        if not any(file and Path(file) == engine.path.resolve() for file in files):
            raise ConfigurationError(
                f"The connection is to {files[0] or 'no file'!r}, but the bus keeps its commands in "
                f"{str(engine.path)!r}; a shared transaction needs the same file."
            )

    def run(self, op: Op[T], *, read: bool = False) -> T:
        if not self._connection.in_transaction:
            self._connection.execute("begin immediate")
        cursor = self._connection.cursor()

        def execute(statement: Any) -> Any:
            try:
                if statement.many:
                    return cursor.executemany(statement.sql, statement.params).fetchall()
                return cursor.execute(statement.sql, statement.params).fetchall()
            except sqlite3.Error as error:
                raise translate(error) from error

        # A refused op leaves nothing behind, whatever the caller does with the transaction.
        wakes: list[Wake | Log] = []
        cursor.execute("savepoint commandbus")
        try:
            result = drive(op, execute, wakes)
        except BaseException:
            if self._connection.in_transaction:  # a full disk ends all of it
                cursor.execute("rollback to commandbus")
                cursor.execute("release commandbus")
            raise
        cursor.execute("release commandbus")
        self._engine.expect(wakes)
        return result


class AsyncCallerSession:
    def __init__(self, session: CallerSession) -> None:
        self._session = session

    async def run(self, op: Op[T], *, read: bool = False) -> T:
        return self._session.run(op, read=read)


def _wakes(after_commit: list[Wake | Log]) -> list[Wake]:
    return [each for each in after_commit if isinstance(each, Wake)]


def _give_up(future: Future[T]) -> T:
    if future.cancel():
        raise _busy()
    return future.result()


def _busy() -> StoreUnavailable:
    return StoreUnavailable(
        f"The SQLite file was busy for {LOCK_SECONDS_MAX:g} s: another process holds its write lock. "
        "Nothing was changed; find that process and try again."
    )


def _unwrap(connection: Any) -> sqlite3.Connection:
    """The sqlite3 connection inside what the caller has: its own, SQLAlchemy's or Django's. Their
    transaction is begun where they would not commit it otherwise."""
    if hasattr(connection, "ensure_connection") and connection.get_autocommit():
        raise InvalidOperationError(
            "Django's connection is in autocommit mode, so there is nothing to be part of; send inside "
            "transaction.atomic(), or use the bus itself."
        )
    for _ in range(4):
        if isinstance(connection, sqlite3.Connection):
            return connection
        connection = _inside(connection)
    raise ConfigurationError(
        "within() needs a sqlite3 connection (or SQLAlchemy's or Django's around one) for this bus; "
        "there are no asyncio connections to SQLite here."
    )


def _inside(wrapper: Any) -> Any:
    """What a wrapper holds, by the names that SQLAlchemy and Django have for it."""
    asked = getattr(wrapper, "in_transaction", None)
    if callable(asked) and not asked():
        wrapper.begin()
    held: Any = getattr(wrapper, "driver_connection", None) or getattr(wrapper, "connection", None)
    # A connection of sqlite3 can be called, too, and what an asyncio session gives is a coroutine.
    if callable(held) and not isinstance(held, sqlite3.Connection):
        held = held()
    if isinstance(held, CoroutineType):
        held.close()
    return held
