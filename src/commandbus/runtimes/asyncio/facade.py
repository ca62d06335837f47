"""From an operation to an awaitable method: signature, types and docstring are the operation's."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from commandbus.operations.scope import Await, Flow, Scope, Send
from commandbus.store.op import Op
from commandbus.store.session import AsyncSession
from commandbus.store.wakeup import WakeHub

P = ParamSpec("P")
T = TypeVar("T")


class Host(Protocol):
    """What the methods hang on: a bus, or something over one."""

    @property
    def scope(self) -> Scope: ...
    @property
    def session(self) -> AsyncSession: ...
    @property
    def hub(self) -> WakeHub: ...


def awaiting(
    build: Callable[Concatenate[Scope, P], Op[T]], *, read: bool = False
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """An operation as a method to be awaited."""

    @wraps(build)
    async def call(host: Host, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await host.session.run(build(host.scope, *args, **kwargs), read=read)

    return call


def awaiting_flow(
    build: Callable[Concatenate[Scope, P], Flow[T]],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """A flow as a method to be awaited: its ops are run, its waits are waited."""

    @wraps(build)
    async def call(host: Host, /, *args: P.args, **kwargs: P.kwargs) -> T:
        loop, news = asyncio.get_running_loop(), asyncio.Event()

        def tell() -> None:
            loop.call_soon_threadsafe(news.set)

        stop = host.hub.on_commit(tell)
        flow = build(host.scope, *args, **kwargs)
        try:
            step = next(flow)
            while True:
                try:
                    answer = await _perform(step, host, news)
                except Exception as error:  # the flow decides; unhandled, it comes straight back
                    step = flow.throw(error)
                else:
                    step = flow.send(answer)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
        finally:
            stop()
            flow.close()

    return call


async def _perform(step: Any, host: Host, news: asyncio.Event) -> Any:
    if isinstance(step, Await):
        if step.seconds > 0:
            await _wait(news, step.seconds)
        news.clear()
        return time.monotonic()
    if isinstance(step, Send):
        return await host.session.run(step.op)
    return await host.session.run(step, read=True)


async def _wait(news: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await news.wait()
    except TimeoutError:
        pass
