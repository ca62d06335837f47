"""From an operation to a blocking method: signature, types and docstring are the operation's."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from commandbus.operations.scope import Await, Flow, Scope, Send
from commandbus.store.op import Op
from commandbus.store.session import Session
from commandbus.store.wakeup import WakeHub

P = ParamSpec("P")
T = TypeVar("T")


class Host(Protocol):
    """What the methods hang on: a bus, or something over one."""

    @property
    def scope(self) -> Scope: ...
    @property
    def session(self) -> Session: ...
    @property
    def hub(self) -> WakeHub: ...


def blocking(
    build: Callable[Concatenate[Scope, P], Op[T]], *, read: bool = False
) -> Callable[Concatenate[Any, P], T]:
    """An operation as a method that blocks."""

    @wraps(build)
    def call(host: Host, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return host.session.run(build(host.scope, *args, **kwargs), read=read)

    return call


def blocking_flow(
    build: Callable[Concatenate[Scope, P], Flow[T]],
) -> Callable[Concatenate[Any, P], T]:
    """A flow as a method that blocks: its ops are run, its waits are waited."""

    @wraps(build)
    def call(host: Host, /, *args: P.args, **kwargs: P.kwargs) -> T:
        news = threading.Event()
        stop = host.hub.on_commit(news.set)
        flow = build(host.scope, *args, **kwargs)
        try:
            step = next(flow)
            while True:
                try:
                    answer = _perform(step, host, news)
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


def _perform(step: Any, host: Host, news: threading.Event) -> Any:
    if isinstance(step, Await):
        if step.seconds > 0:
            news.wait(step.seconds)
        news.clear()
        return time.monotonic()
    if isinstance(step, Send):
        return host.session.run(step.op)
    return host.session.run(step, read=True)
