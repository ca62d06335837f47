"""Lifespans under threads: `def` ones in the thread of `run()`, `async def` ones on the loop of the
`async def` handlers, each in one task from start to stop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Any

from commandbus.errors import ConfigurationError
from commandbus.runtimes.threads.loop import LoopThread
from commandbus.worker.lifespan import Lifespan, Span

LEAVE_SECONDS = 10.0
"""How long a stop waits for an `async def` lifespan: a handler may block the loop for ever."""


def enter_lifespans(
    functions: Iterable[Lifespan], left: ExitStack, provided: dict[Any, Any], loop: LoopThread
) -> None:
    """Start lifespans in order; `left` stops them in reverse. What they provide is put into
    `provided`."""
    left.callback(provided.clear)
    for span in map(Span, functions):
        if span.is_async:
            provided.update(_Task(span, loop, left).started.result())
            continue
        with span.starting():
            given = next(span.steps)
        left.callback(_leave, span)
        provided.update(span.provided(given))


def _leave(span: Span) -> None:
    with span.stopping():
        next(span.steps)


class _Task:
    """A lifespan in a task of its own: what it opens may be bound to the task that opened it."""

    def __init__(self, span: Span, loop: LoopThread, left: ExitStack) -> None:
        self._span, self._left = span, left
        self.started: Future[Any] = Future()
        self._ended = loop.submit(self._live()).future

    async def _live(self) -> None:
        span, stop, loop = self._span, asyncio.Event(), asyncio.get_running_loop()
        try:
            with span.starting():
                given = await anext(span.steps)
        except BaseException as error:  # raised by `started.result()`
            self.started.set_exception(error)
            return
        self._left.callback(self._leave, loop, stop)
        try:
            self.started.set_result(span.provided(given))
        except ConfigurationError as error:
            self.started.set_exception(error)
        await stop.wait()
        with span.stopping():
            await anext(span.steps)

    def _leave(self, loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
        loop.call_soon_threadsafe(stop.set)
        with self._span.stopping_within(LEAVE_SECONDS):
            self._ended.result(LEAVE_SECONDS)
