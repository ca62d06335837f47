"""Logic that waits, written once for both runtimes.

It is written as `async def`, and asyncio awaits it. Threads give it primitives that block instead of
suspending, so that the coroutine reaches its end in one step, which `finish` makes.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")


def finish(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine of blocking primitives to its end. Raises RuntimeError when one suspends."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    coroutine.close()
    raise RuntimeError(f"{coroutine!r} suspended in a thread; give it primitives that block.")


def finishing(
    method: Callable[Concatenate[S, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[S, P], T]:
    """A method of blocking primitives as one that blocks."""

    @wraps(method)
    def run(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return finish(method(self, *args, **kwargs))

    return run


async def done(value: T) -> T:
    """The value of a call that blocked, for code that awaits it."""
    return value
