"""Middleware: code around every handler of a worker, written as a generator with one yield.

    def timed(command, context):
        began = time.monotonic()
        try:
            result = yield
        finally:
            log(command.command_type, time.monotonic() - began)

The handler runs at the `yield`, which gives its result or raises its exception. What the generator
raises replaces the exception; a value that it returns replaces the result; an exception that it
swallows is gone. It never waits, so the same one serves `def` and `async def` handlers.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from functools import wraps
from typing import Any, cast

from commandbus.domain.command import Command
from commandbus.errors import ConfigurationError

Steps = Generator[None, Any, Any]
Middleware = Callable[[Command[Any], Any], Iterator[None]]
"""Called with (command, context); a generator that yields once."""


def check_middleware(function: Any) -> Middleware:
    """Raises ConfigurationError for what is not a generator function of (command, context)."""
    target = function if inspect.isroutine(function) else getattr(function, "__call__", None)  # noqa: B004
    if not inspect.isgeneratorfunction(target):
        raise ConfigurationError(
            f"Middleware must be a plain generator function of (command, context) with one yield, not "
            f"{function!r}."
        )
    return function  # type: ignore[no-any-return]


def around(
    function: Callable[..., Any], layers: Sequence[Middleware]
) -> Callable[[Command[Any], Any], Any]:
    """A `def` handler with middleware around it, the first layer outermost."""

    @wraps(function)
    def run(command: Command[Any], context: Any) -> Any:
        stack = _Stack(layers, command, context)
        try:
            stack.enter()
            result = function(command, context)
        except BaseException as error:  # every layer may have a word about it
            return stack.failed(error)
        return stack.succeeded(result)

    return run


def around_async(
    function: Callable[..., Awaitable[Any]], layers: Sequence[Middleware]
) -> Callable[[Command[Any], Any], Awaitable[Any]]:
    """An `async def` handler with middleware around it."""

    @wraps(function)
    async def run(command: Command[Any], context: Any) -> Any:
        stack = _Stack(layers, command, context)
        try:
            stack.enter()
            result = await function(command, context)
        except BaseException as error:  # every layer may have a word about it
            return stack.failed(error)
        return stack.succeeded(result)

    return run


class _Stack:
    """The layers of one call that have been entered and not left yet."""

    def __init__(self, layers: Sequence[Middleware], command: Command[Any], context: Any) -> None:
        self._layers = layers
        self._arguments = command, context
        self._open: list[Steps] = []

    def enter(self) -> None:
        for layer in self._layers:
            steps = cast("Steps", layer(*self._arguments))
            try:
                next(steps)
            except StopIteration:
                raise _wrong(steps, "did not yield") from None
            self._open.append(steps)

    def succeeded(self, result: Any) -> Any:
        while self._open:
            steps = self._open.pop()
            try:
                steps.send(result)
            except StopIteration as done:
                result = result if done.value is None else done.value
            except BaseException as error:  # from here on it is a failure for the layers further out
                return self.failed(error)
            else:
                steps.close()
                return self.failed(_wrong(steps, "yielded twice"))
        return result

    def failed(self, error: BaseException) -> Any:
        while self._open:
            steps = self._open.pop()
            try:
                steps.throw(error)
            except StopIteration as done:
                return self.succeeded(done.value)
            except BaseException as raised:  # usually the same one, passed on
                error = raised
            else:
                steps.close()
                error = _wrong(steps, "yielded twice")
        raise error


def _wrong(steps: Steps, what: str) -> ConfigurationError:
    name = getattr(steps, "__qualname__", "?")
    return ConfigurationError(f"The middleware {name} {what}; it must yield exactly once.")
