"""Lanes: threads that own a connection and run ops on it, one after another.

SQLite has one writer. So a process has one write lane, and everything that is waiting for it when it
gets the write lock shares one transaction and one fsync: group commit without a timer. Each op in it
has its own savepoint, so that one that fails takes nothing else with it. Both runtimes hand their ops
to the same lanes; one waits for the future, the other awaits it. A thread that finds a lane free runs
its op itself, because handing it over takes longer than a commit.
"""

from __future__ import annotations

import logging
import os
import queue
import sqlite3
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from commandbus.engines.sqlite.failures import translate
from commandbus.engines.sqlite.lock import WriteLock
from commandbus.errors import InvalidOperationError, StoreUnavailable
from commandbus.store.op import Log, Op, Rows, Statement, Wake, drive, is_repeatable

T = TypeVar("T")
logger = logging.getLogger("commandbus.sqlite")

_GROUP_MAX = 200
_WAITING_FOR_DISK = ("FULL", "EXTRA")
"""Modes in which a commit waits until the log is on the disk."""
_CHECKPOINT_COMMITS = 200
"""Fold the log back after so many commits; readers stay fast and the log stays small."""


class TransactionGone(StoreUnavailable):
    """SQLite undid the whole transaction after an error. What an op executed next would commit by
    itself, so nothing may follow."""


class _Order:
    """An op on its way through a lane."""

    __slots__ = ("future", "op", "result", "wakes")

    def __init__(self, op: Op[Any]) -> None:
        self.op = op
        self.future: Future[Any] = Future()
        self.wakes: list[Wake | Log] = []
        self.result: Any = None


class Lane(ABC):
    """A thread with a connection. Subclasses say how a group of ops becomes transactions."""

    def __init__(self, name: str, connect: Callable[[], sqlite3.Connection]) -> None:
        self._orders: queue.SimpleQueue[_Order | None] = queue.SimpleQueue()
        self._pid = os.getpid()
        self._closed = False
        self._closing = threading.Lock()
        """What is submitted before the end is put before it, and so is answered."""
        self._turn = threading.Lock()
        """Held while the connection is used."""
        self._due = False
        """The lane's own thread has a group, and no other op goes before it."""
        self.connection = connect()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, op: Op[T]) -> Future[T]:
        if self._pid != os.getpid():
            op.close()
            raise InvalidOperationError(
                "This bus was opened before a fork and cannot be used in the child process, because "
                "SQLite connections must not be shared; open a bus of its own in the child."
            )
        order = _Order(op)
        with self._closing:
            if self._closed:
                op.close()
                raise InvalidOperationError("The bus is closed; open it again before using it.")
            self._orders.put(order)
        return order.future

    def run(self, op: Op[T]) -> Future[T] | None:
        """Run an op in the caller's thread, if the lane is free; else nothing is done. Never in the
        main one: a signal's exception would be raised there in the middle of a transaction."""
        if threading.current_thread() is threading.main_thread():
            return None
        if self._due or not self._orders.empty() or self._pid != os.getpid():
            return None
        if not self._turn.acquire(blocking=False):
            return None
        try:
            if self._closed or not self.may_begin():
                return None
            order = _Order(op)
            order.future.set_running_or_notify_cancel()
            self.perform([order])
            return order.future
        finally:
            self._turn.release()

    def may_begin(self) -> bool:
        """Whether no other process is in the way."""
        return True

    def close(self) -> None:
        """Finish what was submitted, then end the thread and the connection."""
        if self._pid != os.getpid():
            self._closed = True
            return
        with self._closing:
            if not self._closed:
                self._closed = True
                self._orders.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            while (order := self._orders.get()) is not None:
                group = [order]
                last = False
                with suppress(queue.Empty):
                    while len(group) < _GROUP_MAX:
                        following = self._orders.get_nowait()
                        if following is None:
                            last = True
                            break
                        group.append(following)
                running = [o for o in group if o.future.set_running_or_notify_cancel()]
                for canceled in group:
                    if canceled not in running:
                        canceled.op.close()
                self._due = True
                with self._turn:
                    self._due = False
                    if running:
                        self.perform(running)
                if last:
                    break
        finally:
            with self._turn:
                self.finish()

    def finish(self) -> None:
        """Nothing follows on this connection."""
        self.connection.close()

    @abstractmethod
    def perform(self, group: list[_Order]) -> None:
        """Run a group and answer each future exactly once."""

    def execute(self, statement: Statement) -> Rows:
        try:
            if statement.many:
                self.connection.executemany(statement.sql, statement.params)
                return ()
            return self.connection.execute(statement.sql, statement.params).fetchall()
        except sqlite3.Error as error:
            known = translate(error)
            if isinstance(known, StoreUnavailable) and not self.connection.in_transaction:
                raise TransactionGone(str(known)) from error
            raise known from error


class ReadLane(Lane):
    """Each op reads one consistent snapshot and blocks no writer."""

    def perform(self, group: list[_Order]) -> None:
        for order in group:
            try:
                try:
                    self.connection.execute("begin")
                    result = drive(order.op, self.execute, order.wakes)
                finally:
                    if self.connection.in_transaction:
                        self.connection.execute("rollback")
            except BaseException as error:  # the caller's, whatever it is; the lane must live on
                order.future.set_exception(_typed(error))
            else:
                order.future.set_result(result)


class WriteLane(Lane):
    """One transaction for everything that waits; wake-ups are sent after it is durable."""

    def __init__(
        self,
        name: str,
        connect: Callable[[], sqlite3.Connection],
        synchronous: str,
        lock: WriteLock,
        check: Callable[[], None],
        committed: Callable[[list[Wake | Log]], None],
    ) -> None:
        self._synchronous = self._set_to = synchronous
        self._lock = lock
        self._check = check
        self._committed = committed
        self._commits = 0
        super().__init__(name, connect)

    def may_begin(self) -> bool:
        return self._lock.take_if_free()

    def perform(self, group: list[_Order]) -> None:
        done: list[_Order] = []
        try:
            with self._lock:
                try:
                    self._choose_synchronous(group)
                    self.connection.execute("begin immediate")
                    alone = len(group) == 1
                    done = [order for order in group if self._run_one(order, alone)]
                    self.connection.execute("commit")
                    self._check()
                except BaseException:
                    if self.connection.in_transaction:
                        self.connection.execute("rollback")
                    raise
                self._checkpoint()
        except BaseException as error:  # nothing of this group was committed: tell everyone
            for order in group:
                if not order.future.done():
                    order.op.close()
                    order.future.set_exception(_typed(error))
            return
        self._committed([wake for order in done for wake in order.wakes])
        for order in done:
            order.future.set_result(order.result)

    def _run_one(self, order: _Order, alone: bool) -> bool:
        """Run one op; a failing one is undone and answered, and the others go on."""
        if not alone:
            self.connection.execute("savepoint op")
        try:
            order.result = drive(order.op, self.execute, order.wakes)
        except Exception as error:  # its own caller gets it; the others of the group go on
            if alone or isinstance(error, StoreUnavailable):
                raise
            self.connection.execute("rollback to op")
            self.connection.execute("release op")
            order.future.set_exception(error)
            return False
        if not alone:
            self.connection.execute("release op")
        return True

    def _choose_synchronous(self, group: list[_Order]) -> None:
        """A group of claims does not wait for the disk; the next commit that does takes them along."""
        wanted = self._synchronous
        if wanted in _WAITING_FOR_DISK and all(is_repeatable(order.op) for order in group):
            wanted = "NORMAL"
        if wanted != self._set_to:
            self.connection.execute(f"pragma synchronous = {wanted}")
            self._set_to = wanted

    def finish(self) -> None:
        """Programs that write little each, one after another, would let the log grow without end."""
        try:
            if self._commits and self._lock.take_if_free():
                with self._lock:
                    self._fold_back()
        finally:
            super().finish()

    def _checkpoint(self) -> None:
        self._commits += 1
        if self._commits >= _CHECKPOINT_COMMITS:
            self._commits = 0
            self._fold_back()

    def _fold_back(self) -> None:
        try:
            self.connection.execute("pragma wal_checkpoint(passive)")
        except sqlite3.Error as error:
            # The commits stand; only the log grows until the next try.
            logger.warning("could not fold back the write-ahead log: %s", error)


def undoable(op: Op[T]) -> Op[T]:
    """A part of an op that leaves nothing behind when it fails, so that the rest can go on."""
    yield Statement("savepoint part")
    try:
        result = yield from op
    except TransactionGone:
        raise
    except Exception:  # the op decides
        yield Statement("rollback to part")
        yield Statement("release part")
        raise
    yield Statement("release part")
    return result


def _typed(error: BaseException) -> BaseException:
    return translate(error) if isinstance(error, sqlite3.Error) else error
