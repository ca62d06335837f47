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

An `async def` generator may wait, and is for `async def` handlers only. It cannot return a value, so an
exception that it swallows leaves the result None.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterator, Sequence
from functools import wraps
from typing import Any, cast

from commandbus.domain.command import Command
from commandbus.errors import ConfigurationError
from commandbus.store.waiting import done, finish

Steps = Generator[None, Any, Any]
Middleware = Callable[[Command[Any], Any], Iterator[None] | AsyncIterator[None]]
"""Called with (command, context); a generator that yields once."""


def check_middleware(function: Any) -> Middleware:
    """Raises ConfigurationError for what is not a generator function of (command, context)."""
    if not inspect.isgeneratorfunction(_routine(function)) and not waits(function):
        raise ConfigurationError(
            "Middleware must be a generator function of (command, context) with one yield, `def` or "
            f"`async def`, not {function!r}."
        )
    return function  # type: ignore[no-any-return]


def check_layers(layers: Sequence[Middleware], handler: Any) -> None:
    """Raises ConfigurationError when `async def` middleware would be around a `def` handler."""
    waiting = None
    if not handler.is_async or handler.isolated is not None:
        waiting = next(filter(waits, layers), None)
    if waiting is not None and handler.is_async:
        raise ConfigurationError(
            f"The middleware {getattr(waiting, '__qualname__', waiting)} is `async def`, but the "
            f"handler for {handler.command_type!r} in domain {handler.domain!r} runs in a child "
            "process, which the worker waits for in a thread: make the middleware a plain generator."
        )
    if waiting is not None:
        raise ConfigurationError(
            f"The middleware {getattr(waiting, '__qualname__', waiting)} is `async def`, but the "
            f"handler for {handler.command_type!r} in domain {handler.domain!r} is not: make the "
            "handler `async def`, or the middleware a plain generator, which serves both."
        )


def waits(layer: Any) -> bool:
    """Whether a middleware is an `async def` one."""
    return inspect.isasyncgenfunction(_routine(layer))


def _routine(function: Any) -> Any:
    return function if inspect.isroutine(function) else getattr(function, "__call__", None)  # noqa: B004


def around(
    function: Callable[..., Any], layers: Sequence[Middleware]
) -> Callable[[Command[Any], Any], Any]:
    """A `def` handler with middleware around it, the first layer outermost."""

    run = _inside(lambda command, context: done(function(command, context)), layers)

    @wraps(function)
    def call(command: Command[Any], context: Any) -> Any:
        return finish(run(command, context))

    return call


def around_async(
    function: Callable[..., Awaitable[Any]], layers: Sequence[Middleware]
) -> Callable[[Command[Any], Any], Awaitable[Any]]:
    """An `async def` handler with middleware around it, the first layer outermost."""
    if not any(map(waits, layers)):
        return wraps(function)(_inside(function, layers))
    run = function
    for layer in reversed(layers):
        run = _waiting(run, layer) if waits(layer) else _inside(run, [layer])
    return wraps(function)(run)


def _waiting(
    function: Callable[..., Awaitable[Any]], layer: Callable[..., Any]
) -> Callable[[Command[Any], Any], Awaitable[Any]]:
    """An `async def` handler with one `async def` middleware around it."""

    async def run(command: Command[Any], context: Any) -> Any:
        steps, result = layer(command, context), None
        try:
            await anext(steps)
        except StopAsyncIteration:
            raise _wrong(steps, "did not yield") from None
        try:
            try:
                result = await function(command, context)
            except BaseException as error:  # the layer sees the exception
                await steps.athrow(error)
            else:
                await steps.asend(result)
        except StopAsyncIteration:
            return result
        await steps.aclose()
        raise _wrong(steps, "yielded twice")

    return run


def _inside(
    function: Callable[..., Awaitable[Any]], layers: Sequence[Middleware]
) -> Callable[[Command[Any], Any], Coroutine[Any, Any, Any]]:
    """A handler with middleware around it that does not wait."""

    async def run(command: Command[Any], context: Any) -> Any:
        stack = _Stack(layers, command, context)
        try:
            stack.enter()
            result = await function(command, context)
        except BaseException as error:  # every layer sees the exception
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


def _wrong(steps: Any, what: str) -> ConfigurationError:
    name = getattr(steps, "__qualname__", "?")
    return ConfigurationError(f"The middleware {name} {what}; it must yield exactly once.")
