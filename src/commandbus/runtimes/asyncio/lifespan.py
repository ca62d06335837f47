"""Lifespans under asyncio: `async def` ones on the loop, in the task that starts them; `def` ones in
threads, because they may block."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import AbstractContextManager, AsyncExitStack
from typing import Any

from commandbus.worker.lifespan import Lifespan, Span

END = object()


async def enter_lifespans(
    functions: Iterable[Lifespan], left: AsyncExitStack, provided: dict[Any, Any]
) -> None:
    """Start lifespans in order; `left` stops them in reverse. What they provide is put into
    `provided`."""
    left.callback(provided.clear)
    for function in functions:
        span = Span(function)
        given = await _step(span, span.starting())
        left.push_async_callback(_step, span, span.stopping())
        provided |= span.provided(given)


async def _step(span: Span, around: AbstractContextManager[None]) -> Any:
    with around:
        if span.is_async:
            return await anext(span.steps)
        # A StopIteration cannot be raised into a future.
        answer = await asyncio.to_thread(next, span.steps, END)
        if answer is END:
            raise StopAsyncIteration
        return answer
