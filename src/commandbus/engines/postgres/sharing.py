"""Group commit: rows of concurrent sends of one process travel in one statement.

While one statement is on its way, others wait and go together with the next; a lone send goes at once.
Calls that were sent together tend to come back together: the first of them waits a moment for the
others, or it would travel alone and they after it, twice as many round trips. The busier the process,
the larger the groups. When a group fails, each of its members is sent alone, so that a failing one does
not fail the others.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from commandbus.engines.postgres.statements import Coalescing
from commandbus.errors import StoreUnavailable
from commandbus.store.op import Rows

ROWS_MAX = 500
GATHER_SECONDS = 0.0005
"""How long threads that were carried together are waited for."""
INTERRUPTED = "The send was interrupted; repeat it with the command_id it had, then it is there once."


class PendingSend:
    """A statement on its way in a group, and its answer."""

    __slots__ = ("answer", "error", "leads", "statement", "turn")

    def __init__(self, statement: Coalescing) -> None:
        self.statement = statement
        self.answer: Rows = ()
        self.error: BaseException | None = None
        self.leads = False
        """This call executes for all that wait, instead of waiting itself."""
        self.turn = threading.Lock()
        self.turn.acquire()

    def result(self) -> Rows:
        if self.error is not None:
            raise self.error
        return self.answer


class SharedLane:
    """For threads: one of the waiting calls executes for all, then hands over to the next."""

    def __init__(self, execute: Callable[[Coalescing], Rows]) -> None:
        self._execute = execute
        self._lock = threading.Lock()
        self._waiting: list[PendingSend] = []
        self._moving = False
        self._crowd = 1
        """How many sent together recently."""
        self._complete: threading.Lock | None = None
        """Released when as many are waiting, while the leader of a group waits for them."""

    def run(self, statement: Coalescing) -> Rows:
        with self._lock:
            pending = PendingSend(statement) if self._moving or self._crowd > 1 else None
            if pending is not None:
                pending.leads = not self._moving
                self._waiting.append(pending)
                if self._complete is not None and len(self._waiting) >= self._crowd:
                    self._complete.release()
                    self._complete = None
            self._moving = True
        if pending is None:  # alone: what the rest does for many, in fewer steps
            try:
                return self._execute(statement)
            finally:
                self._hand_over()
        try:
            if not pending.leads:
                pending.turn.acquire()
            if pending.leads:
                self._gather()
                self._lead()
        except BaseException:
            self._give_up(pending)
            raise
        return pending.result()

    def _gather(self) -> None:
        """Wait a moment for the callers of the last group: they are about to come back."""
        with self._lock:
            if len(self._waiting) >= self._crowd:
                return
            complete = self._complete = threading.Lock()
            complete.acquire()
        complete.acquire(timeout=GATHER_SECONDS)

    def _lead(self) -> None:
        with self._lock:
            self._complete = None
            self._crowd = max(len(self._waiting), self._crowd // 2)
            group, self._waiting = _split(self._waiting)
        try:
            self._carry(group)
        finally:
            # The next leader first: the server has work again while the others wake up.
            self._hand_over()
            for pending in group:
                pending.turn.release()

    def _hand_over(self) -> None:
        with self._lock:
            self._moving = bool(self._waiting)
            for pending in self._waiting[:1]:
                pending.leads = True
                pending.turn.release()

    def _give_up(self, pending: PendingSend) -> None:
        """Interrupted while it waited: it waits no more, and leads no group."""
        with self._lock:
            waited = pending in self._waiting
            if waited:
                self._waiting.remove(pending)
        if waited and pending.leads:
            self._hand_over()

    def _carry(self, group: list[PendingSend]) -> None:
        try:
            _divide(group, self._execute(_merged(group)))
        except BaseException as error:  # whatever it is, every waiting send must get it
            if not isinstance(error, Exception):
                # Only the leading send is interrupted; the others get an ordinary failure.
                for pending in group[1:]:
                    pending.error = StoreUnavailable(INTERRUPTED)
                raise
            if len(group) == 1 or not _one_of_them(error):
                for pending in group:
                    pending.error = error
                return
            for pending in group:
                try:
                    pending.answer = self._execute(pending.statement)
                except Exception as refused:  # its sender's, whatever it is
                    pending.error = refused


class AsyncSharedLane:
    """For asyncio: a single call is sent at once; for later ones a task executes, so that a
    sender that gives up does not fail the others."""

    def __init__(self, execute: Callable[[Coalescing], Awaitable[Rows]]) -> None:
        self._execute = execute
        self._waiting: list[tuple[PendingSend, asyncio.Future[None]]] = []
        self._moving = False
        self._crowd = 1
        """How many sent together recently."""
        self._task: asyncio.Task[None] | None = None

    async def run(self, statement: Coalescing) -> Rows:
        if not self._moving and self._crowd == 1:
            self._moving = True
            try:
                return await self._execute(statement)
            finally:
                if self._waiting:  # those whose senders were canceled need no task
                    self._waiting = [one for one in self._waiting if not one[1].done()]
                self._moving = bool(self._waiting)
                if self._waiting:
                    self._task = asyncio.ensure_future(self._move())
        pending = PendingSend(statement)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((pending, done))
        if not self._moving:
            self._moving = True
            self._task = asyncio.ensure_future(self._move())
        await done
        return pending.result()

    async def _move(self) -> None:
        try:
            while self._waiting:
                if len(self._waiting) < self._crowd:
                    await asyncio.sleep(0)  # the callers of the last group are about to come back
                arrivals, self._waiting = self._waiting, []
                futures = {id(pending): done for pending, done in arrivals}
                rest = [pending for pending, _ in arrivals]
                while rest:
                    group, rest = _split(rest)
                    await self._carry(group)
                    for pending in group:
                        if not futures[id(pending)].done():
                            futures[id(pending)].set_result(None)
                self._crowd = max(len(arrivals), self._crowd - 1)
        finally:
            self._moving = False

    async def _carry(self, group: list[PendingSend]) -> None:
        try:
            _divide(group, await self._execute(_merged(group)))
        except Exception as error:  # its senders' concern; the lane goes on
            if len(group) == 1 or not _one_of_them(error):
                for pending in group:
                    pending.error = error
                return
            for pending in group:
                try:
                    pending.answer = await self._execute(pending.statement)
                except Exception as refused:  # its sender's, whatever it is
                    pending.error = refused


def _split(waiting: list[PendingSend]) -> tuple[list[PendingSend], list[PendingSend]]:
    """The first group that fits into one statement, and the rest."""
    first, rows, count = waiting[0].statement, 0, 0
    for pending in waiting:
        statement = pending.statement
        rows += len(statement.params)
        alike = statement.sql == first.sql and statement.pack == first.pack
        if count and (not alike or rows > ROWS_MAX):
            break
        count += 1
    return waiting[:count], waiting[count:]


def _merged(group: Sequence[PendingSend]) -> Coalescing:
    first = group[0].statement
    if len(group) == 1:
        return first
    rows: list[Any] = [row for pending in group for row in pending.statement.params]
    return msgspec.structs.replace(first, params=rows)


def _divide(group: Sequence[PendingSend], answer: Rows) -> None:
    begin = 0
    for pending in group:
        end = begin + len(pending.statement.params)
        pending.answer = answer[begin:end]
        begin = end


def _one_of_them(error: Exception) -> bool:
    """Whether one member may be to blame. When the store is away, all of them are alike; and after
    a lost connection it is unknown whether they were committed."""
    return not isinstance(error, StoreUnavailable)
