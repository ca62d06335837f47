"""Shares a process's breakers with the fleet."""

from __future__ import annotations

from commandbus.domain.breaker_board import BreakerBoard
from commandbus.operations.breakers import TOPIC, BreakerExchange, share
from commandbus.operations.scope import Scope
from commandbus.store.op import Op

WHILE_IN_USE, IDLE = 0.5, 60.0


class BreakerSharing:
    name = "breakers"
    topic = TOPIC

    def __init__(self, breakers: BreakerBoard, worker: str) -> None:
        self._breakers = breakers
        self._worker = worker
        self._shared = BreakerExchange()

    def work(self, scope: Scope) -> Op[float]:
        self._shared = yield from share(scope, self._breakers, self._worker)
        return WHILE_IN_USE if self._breakers.in_use() else IDLE

    def confirm(self) -> None:
        self._shared.confirm(self._breakers)
