"""From an operation to a blocking method: signature, types and docstring are the operation's."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from commandbus.operations.flows import FlowRun
from commandbus.operations.scope import Flow, Scope
from commandbus.runtimes.base import Host, may_repeat, shown_as
from commandbus.store.op import Op, Undone
from commandbus.store.session import Session

P = ParamSpec("P")
T = TypeVar("T")


def blocking(
    build: Callable[Concatenate[Scope, P], Op[T]], *, read: bool = False
) -> Callable[Concatenate[Any, P], T]:
    """An operation as a method that blocks."""

    @shown_as(build)
    def call(host: Host[Session], /, *args: P.args, **kwargs: P.kwargs) -> T:
        tries = 0
        while True:
            try:
                return host.session.run(build(host.scope, *args, **kwargs), read=read)
            except Undone:
                tries += 1
                if not may_repeat(tries, (*args, *kwargs.values())):
                    raise

    return call


def blocking_own(
    build: Callable[Concatenate[Any, P], Op[T]], *, read: bool = False
) -> Callable[Concatenate[Any, P], T]:
    """An op of the object itself as a method that blocks."""

    @shown_as(build)
    def call(own: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        tries = 0
        while True:
            try:
                answer: T = own.session.run(build(own, *args, **kwargs), read=read)
            except Undone:
                tries += 1
                if not may_repeat(tries, (*args, *kwargs.values())):
                    raise
            else:
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


def _drive(steps: Flow[T], host: Host[Session]) -> T:
    news = threading.Event()
    stop = host.hub.on_commit(news.set)
    flow = FlowRun(steps)
    try:
        while not flow.done:
            with flow.answering():
                flow.answer = _perform(flow, host, news)
    finally:
        stop()
        flow.close()
    return flow.value


def _perform(flow: FlowRun[Any], host: Host[Session], news: threading.Event) -> Any:
    if flow.pause is None:
        return host.session.run(flow.op, read=flow.read)
    news.wait(flow.pause)
    news.clear()
    return time.monotonic()
