"""Driving a flow: its ops are run, its pauses are waited for. A runtime does the waiting."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from commandbus.operations.scope import Await, Flow, Send
from commandbus.store.op import Op

T = TypeVar("T")


async def drive(
    flow: Flow[T],
    run: Callable[[Op[Any], bool], Awaitable[Any]],
    pause: Callable[[float], Awaitable[float]],
) -> T:
    """Carry a flow to its end. `run` takes an op and whether it only reads; `pause` waits for so many
    seconds at most and returns the monotonic time."""
    try:
        step = next(flow)
        while True:
            try:
                match step:
                    case Await(seconds):
                        answer: Any = await pause(seconds)
                    case Send(op):
                        answer = await run(op, False)
                    case _:
                        answer = await run(step, True)
            except Exception as error:  # the flow decides; unhandled, it comes straight back
                step = flow.throw(error)
            else:
                step = flow.send(answer)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    finally:
        flow.close()
