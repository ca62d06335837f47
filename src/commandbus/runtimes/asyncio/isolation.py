"""Each command in a context of its own, without a task of its own.

A slot is one task that runs many handlers, one after another. What a handler puts into context
variables must not be seen by the next one; a task per command would see to that, and cost more than
most handlers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextvars import ContextVar, copy_context
from typing import Any, Generic, TypeVar

from commandbus.domain.cause import running

T = TypeVar("T")
_slot: ContextVar[asyncio.Task[None] | None] = ContextVar("commandbus_slot", default=None)


class SlotTask(asyncio.Task[None]):
    """The task of a slot. A timer or a task that a handler left behind cannot cancel a later command:
    it has the context of the run that made it."""

    def __init__(self, work: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop) -> None:
        self._own = copy_context()
        self._own.run(_slot.set, self)
        super().__init__(work, loop=loop, context=self._own)

    def cancel(self, msg: Any | None = None) -> bool:
        if _slot.get() is self and running.get() is not self._own.get(running):
            return False
        return super().cancel(msg)


class ResumeCounter:
    """How often a handler on a loop went on after a wait. An unchanged count means that no other task
    ran."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class OwnContext(Generic[T]):
    """The call of a coroutine function in a copy of the present context. `begin` runs it up to its
    first wait; unless it has returned by then, the rest is to be awaited."""

    __slots__ = ("_coroutine", "_raised", "_run", "_turns", "_waited_for", "result")

    result: T

    def __init__(self, turns: ResumeCounter) -> None:
        self._turns = turns
        self._raised: BaseException | None = None

    def begin(self, function: Callable[..., Coroutine[Any, Any, T]], *arguments: Any) -> bool:
        """Whether it has returned; `result` is then there. What it raises, it raises when awaited."""
        run = self._run = copy_context().run
        try:
            coroutine = self._coroutine = run(function, *arguments)
            try:
                self._waited_for = run(coroutine.send, None)
            except StopIteration as done:
                self.result = done.value
                return True
        except BaseException as error:  # whatever a handler raises is raised where it is awaited
            self._raised = error
        return False

    def __await__(self) -> Generator[Any, Any, T]:
        if self._raised is not None:
            try:
                raise self._raised
            finally:
                self._raised = None  # its traceback leads here
        run, coroutine, waited_for = self._run, self._coroutine, self._waited_for
        try:
            while True:
                try:
                    answer = yield waited_for
                except BaseException as error:  # a cancellation or the failure of what it waits for
                    waited_for = run(coroutine.throw, error)
                else:
                    self._turns.count += 1
                    waited_for = run(coroutine.send, answer)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
        finally:
            coroutine.close()


async def isolated(
    turns: ResumeCounter, function: Callable[..., Coroutine[Any, Any, T]], *arguments: Any
) -> T:
    """All of such a call."""
    run: OwnContext[T] = OwnContext(turns)
    return run.result if run.begin(function, *arguments) else await run
