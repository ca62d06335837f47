"""Each command in a context of its own, without a task of its own.

A slot is one task that runs many handlers, one after another. What a handler puts into context
variables must not be seen by the next one; a task per command would see to that, and cost more than
most handlers.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from contextvars import copy_context
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Turns:
    """How often a handler on a loop went on after a wait. Whoever finds it unchanged let nobody run."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class Isolated(Generic[T]):
    """Await it to run a coroutine function's call in a copy of the present context."""

    __slots__ = ("_arguments", "_function", "_turns")

    def __init__(
        self, turns: Turns, function: Callable[..., Coroutine[Any, Any, T]], *arguments: Any
    ) -> None:
        self._turns = turns
        self._function = function
        self._arguments = arguments

    def __await__(self) -> Generator[Any, Any, T]:
        run = copy_context().run
        coroutine = run(self._function, *self._arguments)
        try:
            waited_for = run(coroutine.send, None)
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
