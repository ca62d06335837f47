"""From an operation to an awaitable method: signature, types and docstring are the operation's."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Concatenate, ParamSpec, TypeVar

from commandbus.operations.flows import FlowRun
from commandbus.operations.scope import Flow, Scope
from commandbus.runtimes.base import Host, may_repeat, shown_as
from commandbus.store.op import Op, Undone
from commandbus.store.session import AsyncSession

P = ParamSpec("P")
T = TypeVar("T")


def awaiting(
    build: Callable[Concatenate[Scope, P], Op[T]], *, read: bool = False
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """An operation as a method to be awaited."""

    @shown_as(build)
    async def run(bus: Host[AsyncSession], /, *args: P.args, **kwargs: P.kwargs) -> T:
        tries = 0
        while True:
            try:
                return await bus.session.run(build(bus.scope, *args, **kwargs), read=read)
            except Undone:
                tries += 1
                if not may_repeat(tries, (*args, *kwargs.values())):
                    raise

    return run


def awaiting_own(
    build: Callable[Concatenate[Any, P], Op[T]], *, read: bool = False
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """An op of the object itself as a method to be awaited."""

    @shown_as(build)
    async def run(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        tries = 0
        while True:
            try:
                result: T = await self.session.run(build(self, *args, **kwargs), read=read)
            except Undone:
                tries += 1
                if not may_repeat(tries, (*args, *kwargs.values())):
                    raise
            else:
                return result

    return run


def awaiting_flow(
    build: Callable[Concatenate[Scope, P], Flow[T]],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """A flow as a method to be awaited: its ops are run, its waits are waited."""

    @shown_as(build)
    async def run(bus: Host[AsyncSession], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await _drive(build(bus.scope, *args, **kwargs), bus)

    return run


def awaiting_own_flow(
    build: Callable[Concatenate[Any, P], Flow[T]],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """A flow of the object itself as a method to be awaited."""

    @shown_as(build)
    async def run(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await _drive(build(self, *args, **kwargs), self)

    return run


async def _drive(steps: Flow[T], bus: Host[AsyncSession]) -> T:
    loop, commits = asyncio.get_running_loop(), asyncio.Event()

    def tell() -> None:
        loop.call_soon_threadsafe(commits.set)

    forget, progress = bus.hub.on_commit(tell), FlowRun(steps)
    try:
        while not progress.done:
            with progress.answering():
                if progress.pause is None:
                    progress.answer = await bus.session.run(progress.op, read=progress.read)
                else:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(progress.pause):
                            await commits.wait()
                    commits.clear()
                    progress.answer = time.monotonic()
    finally:
        forget()
        progress.close()
    return progress.value
