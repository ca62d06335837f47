"""A breaker around a block of code: what it counts, and what it raises."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from commandbus.domain.breaker import CircuitBreaker
from commandbus.domain.breaker_board import BreakerBoard
from commandbus.errors import BreakerOpen


class Guard:
    """`with` or `async with` it: raises BreakerOpen instead of entering while the target does not
    answer; an exception that leaves the block counts as a failure of the target."""

    def __init__(self, breakers: BreakerBoard, rule: CircuitBreaker) -> None:
        self._breakers = breakers
        self._rule = rule

    def __enter__(self) -> Self:
        wait = self._breakers.allow(self._rule)
        if wait > 0:
            raise BreakerOpen(self._rule.target, wait)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._breakers.ended(self._rule.target, error)

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.__exit__(kind, error, trace)
