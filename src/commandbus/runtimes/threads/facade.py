"""From an operation to a blocking method: signature, types and docstring are the operation's."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Concatenate, ParamSpec, TypeVar

from commandbus.operations.flows import drive
from commandbus.operations.scope import Flow, Scope
from commandbus.runtimes.base import Host, repeat, shown_as
from commandbus.store.op import Op, Undone
from commandbus.store.session import Session
from commandbus.store.waiting import done, finish

P = ParamSpec("P")
T = TypeVar("T")


def blocking(
    build: Callable[Concatenate[Scope, P], Op[T]], *, read: bool = False
) -> Callable[Concatenate[Any, P], T]:
    """An operation as a method that blocks."""

    @shown_as(build)
    def call(host: Host[Session], /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return host.session.run(build(host.scope, *args, **kwargs), read=read)
        except Undone as undone:
            return _repeat(undone, partial(build, host.scope, *args, **kwargs), host, read)

    return call


def blocking_own(
    build: Callable[Concatenate[Any, P], Op[T]], *, read: bool = False
) -> Callable[Concatenate[Any, P], T]:
    """An op of the object itself as a method that blocks."""

    @shown_as(build)
    def call(own: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            answer: T = own.session.run(build(own, *args, **kwargs), read=read)
        except Undone as undone:
            return _repeat(undone, partial(build, own, *args, **kwargs), own, read)
        return answer

    return call


def blocking_flow(
    build: Callable[Concatenate[Scope, P], Flow[T]],
) -> Callable[Concatenate[Any, P], T]:
    """A flow as a method that blocks: its ops are run, its waits are waited."""

    @shown_as(build)
    def call(host: Host[Session], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return _drive(build(host.scope, *args, **kwargs), host)

    return call


def blocking_own_flow(
    build: Callable[Concatenate[Any, P], Flow[T]],
) -> Callable[Concatenate[Any, P], T]:
    """A flow of the object itself as a method that blocks."""

    @shown_as(build)
    def call(own: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return _drive(build(own, *args, **kwargs), own)

    return call


def _repeat(undone: Undone, build: partial[Op[T]], host: Host[Session], read: bool) -> T:
    return finish(repeat(undone, build, lambda op: done(host.session.run(op, read=read))))


def _drive(flow: Flow[T], host: Host[Session]) -> T:
    commits = threading.Event()
    forget = host.hub.on_commit(commits.set)

    async def pause(seconds: float) -> float:
        commits.wait(seconds)
        commits.clear()
        return time.monotonic()

    try:
        return finish(drive(flow, lambda op, read: done(host.session.run(op, read=read)), pause))
    finally:
        forget()
