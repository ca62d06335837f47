"""Driving a flow: what it wants next, and what it is answered. A runtime does the waiting."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from commandbus.operations.scope import Await, Flow, Send
from commandbus.store.op import Op

T = TypeVar("T")


class FlowRun(Generic[T]):
    """A flow on its way. While not `done`, it wants either a pause of so many seconds or an op. It is
    answered inside `with answering():` by setting `answer`; what is raised there goes to the flow."""

    def __init__(self, flow: Flow[T]) -> None:
        self._flow = flow
        self._value: T | None = None
        self.done = False
        self.answer: Any = None
        self._advance(flow.__next__)

    @property
    def pause(self) -> float | None:
        return self._step.seconds if isinstance(self._step, Await) else None

    @property
    def op(self) -> Op[Any]:
        return self._step.op if isinstance(self._step, Send) else self._step

    @property
    def read(self) -> bool:
        return not isinstance(self._step, Send)

    @property
    def value(self) -> T:
        return self._value  # type: ignore[return-value]

    @contextmanager
    def answering(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # the flow decides; unhandled, it comes straight back
            self._advance(self._flow.throw, error)
        else:
            self._advance(self._flow.send, self.answer)

    def close(self) -> None:
        self._flow.close()

    def _advance(self, go_on: Any, *argument: Any) -> None:
        try:
            self._step: Any = go_on(*argument)
        except StopIteration as end:
            self.done, self._value = True, end.value
