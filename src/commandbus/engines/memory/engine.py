"""The memory engine and its two sessions: a lock, and nothing to wait for."""

from __future__ import annotations

import os
import threading
from typing import Any, TypeVar
from weakref import WeakSet

from commandbus.domain.moment import Clock, system_clock
from commandbus.engines.memory.journal import Journal
from commandbus.engines.memory.store import MemoryStore
from commandbus.errors import ConfigurationError, InvalidOperationError, NotOpen
from commandbus.store.op import Log, Op, Rows, Statement, Wake, commits_by_itself, drive
from commandbus.store.serverless import Serverless
from commandbus.store.wakeup import WakeHub

T = TypeVar("T")


_sessions: WeakSet[MemorySession] = WeakSet()


class MemorySession:
    def __init__(self, hub: WakeHub, journal: Journal) -> None:
        self._lock = threading.RLock()
        self._hub, self._journal = hub, journal
        self.is_open = False
        self._forked = False
        _sessions.add(self)

    def open(self) -> None:
        if self._forked:
            raise _forked()
        self.is_open = True

    def leave(self) -> None:
        """In the child of a fork: what is here is a copy, and its lock may be held for ever."""
        self._forked, self.is_open = self._forked or self.is_open, False

    def check_open(self) -> None:
        if not self.is_open:
            raise _forked() if self._forked else NotOpen()

    def run(self, op: Op[T], *, read: bool = False) -> T:
        if not self.is_open:
            op.close()
            self.check_open()
        wakes: list[Wake | Log] = []
        with self._lock:
            result = drive(op, _refuse, wakes) if read else self._change(op, wakes)
        self._hub.after_commit(wakes, read=read)
        return result

    def _change(self, op: Op[T], wakes: list[Wake | Log]) -> T:
        """All of an op, or nothing. One that commits by itself changes nothing before it fails."""
        journal = self._journal
        if commits_by_itself(op) or journal.active:
            return drive(op, _refuse, wakes)
        journal.begin()
        try:
            result = drive(op, _refuse, wakes)
        except BaseException:
            journal.undo()
            raise
        journal.end()
        return result


class AsyncMemorySession:
    """The same, for asyncio: an op takes microseconds, so the loop is not left for it."""

    def __init__(self, session: MemorySession) -> None:
        self._session = session

    async def run(self, op: Op[T], *, read: bool = False) -> T:
        return self._session.run(op, read=read)


class MemoryEngine(Serverless):
    """Process-local and gone with the process."""

    def __init__(self, url: str = "memory://", *, clock: Clock = system_clock) -> None:
        self.url = self.identity = url
        self.hub = WakeHub()
        self.store = MemoryStore(clock)
        self.session = MemorySession(self.hub, self.store.journal)
        self.async_session = AsyncMemorySession(self.session)
        self.reserved_session, self.reserved_async_session = self.session, self.async_session
        self.service_session = self.session

    def open(self) -> None:
        self.session.open()

    def close(self) -> None:
        """What is there stays, until the bus is forgotten."""
        self.session.is_open = False

    def check_open(self) -> None:
        self.session.check_open()

    async def open_async(self) -> None:
        self.open()

    async def close_async(self) -> None:
        self.close()

    def within(self, connection: Any) -> MemorySession:
        raise _no_transactions()

    def within_async(self, connection: Any) -> AsyncMemorySession:
        raise _no_transactions()


def _leave_all() -> None:
    for session in _sessions:
        session.leave()


if hasattr(os, "register_at_fork"):  # not on Windows, where nothing forks
    os.register_at_fork(after_in_child=_leave_all)


def _forked() -> InvalidOperationError:
    return InvalidOperationError(
        "This bus was opened before a fork and cannot be used in the child process, because memory:// "
        "belongs to the process that opened it; open a bus of its own in the child, on sqlite:// or "
        "postgresql:// if both are to share it."
    )


def _no_transactions() -> ConfigurationError:
    return ConfigurationError(
        "The memory engine has no transactions that a caller could share; use sqlite:///file.db or "
        "postgresql://… to send inside your own transaction."
    )


def _refuse(statement: Statement) -> Rows:
    raise AssertionError(f"the memory engine executes no statements: {statement.sql}")
