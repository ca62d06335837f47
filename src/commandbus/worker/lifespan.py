"""Lifespans: what a worker opens before its first claim and closes after its last handler.

    @registry.lifespan
    async def client():
        async with AsyncClient() as client:
            yield {AsyncClient: client}

A generator with one yield, `def` or `async def`. It is resumed when the worker stops, whatever the
reason, so code after the `yield` needs no `finally`. The mapping that it yields is what handlers are
provided with. Runtimes step through lifespans; everything else about them is here.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar

from commandbus.errors import ConfigurationError, LifespanError
from commandbus.worker.signatures import described

Lifespan = Callable[[], Generator[Any, None, None] | AsyncGenerator[Any, None]]
L = TypeVar("L", bound=Callable[[], Any])


def check_lifespan(function: L) -> L:
    """Raises ConfigurationError for what is not a generator function without parameters."""
    if not (inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)):
        raise ConfigurationError(
            "A lifespan must be a generator function with one yield, `def` or `async def`, not "
            f"{function!r}."
        )
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        raise ConfigurationError(
            f"The lifespan {described(function)} is called without arguments: {error}."
        ) from None
    return function


class Span:
    """One lifespan of a running worker."""

    def __init__(self, function: Lifespan) -> None:
        self._function = function
        self.is_async = inspect.isasyncgenfunction(function)
        self.steps: Any = None

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Around the first step."""
        self.steps = self._function()
        with self._judged("start"):
            yield

    @contextmanager
    def stopping(self) -> Iterator[None]:
        """Around the second step, which must be the end."""
        with self._judged("stop"):
            yield
            self._wrong("yielded twice")

    @contextmanager
    def stopping_within(self, seconds: float) -> Iterator[None]:
        """Around a wait for the end that may take so long."""
        try:
            yield
        except TimeoutError:
            error = TimeoutError(f"not finished after {seconds:g} s")
            raise LifespanError(described(self._function), "stop", error) from None

    def provided(self, given: Any) -> Mapping[Any, Any]:
        """What it yielded, as what handlers are provided with."""
        if given is None:
            return {}
        if not isinstance(given, Mapping):
            kind = type(given).__name__
            self._wrong(f"yielded a {kind}, not a mapping such as {{{kind}: value}}")
        return given

    @contextmanager
    def _judged(self, when: str) -> Iterator[None]:
        try:
            yield
        except (StopIteration, StopAsyncIteration):
            if when == "start":
                self._wrong("did not yield")
        except ConfigurationError:
            raise
        except Exception as error:  # the user's own code
            raise LifespanError(described(self._function), when, error) from error

    def _wrong(self, what: str) -> NoReturn:
        raise ConfigurationError(
            f"The lifespan {described(self._function)} {what}; it must yield exactly once, nothing or "
            "a mapping."
        ) from None
