"""From an operation to an awaitable method: signature, types and docstring are the operation's."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, Concatenate, ParamSpec, TypeVar

from commandbus.operations.flows import drive
from commandbus.operations.scope import Flow, Scope
from commandbus.runtimes.base import Host, repeat, shown_as
from commandbus.store.op import Op, Undone
from commandbus.store.session import AsyncSession

P = ParamSpec("P")
T = TypeVar("T")

FAIR_SECONDS = 0.005
"""A flow of many ops leaves the loop to others after this long: ops of the memory engine never wait."""


def awaiting(
    build: Callable[Concatenate[Scope, P], Op[T]], *, read: bool = False
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """An operation as a method to be awaited."""

    @shown_as(build)
    async def run(bus: Host[AsyncSession], /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await bus.session.run(build(bus.scope, *args, **kwargs), read=read)
        except Undone as undone:
            op = partial(build, bus.scope, *args, **kwargs)
            return await repeat(undone, op, partial(bus.session.run, read=read))

    return run


def awaiting_own(
    build: Callable[Concatenate[Any, P], Op[T]], *, read: bool = False
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """An op of the object itself as a method to be awaited."""

    @shown_as(build)
    async def run(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            result: T = await self.session.run(build(self, *args, **kwargs), read=read)
        except Undone as undone:
            op = partial(build, self, *args, **kwargs)
            return await repeat(undone, op, partial(self.session.run, read=read))
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


async def _drive(flow: Flow[T], bus: Host[AsyncSession]) -> T:
    loop, commits = asyncio.get_running_loop(), asyncio.Event()
    fair_until = time.monotonic() + FAIR_SECONDS

    def tell() -> None:
        loop.call_soon_threadsafe(commits.set)

    async def pause(seconds: float) -> float:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await commits.wait()
        commits.clear()
        return time.monotonic()

    async def run(op: Op[Any], read: bool) -> Any:
        nonlocal fair_until
        if time.monotonic() >= fair_until:
            await asyncio.sleep(0)
            fair_until = time.monotonic() + FAIR_SECONDS
        return await bus.session.run(op, read=read)

    forget = bus.hub.on_commit(tell)
    try:
        return await drive(flow, run, pause)
    finally:
        forget()
