"""Puts restarts on record, as soon as the store can be written."""

from __future__ import annotations

from collections import deque

from commandbus.domain.presence import WorkerRestart
from commandbus.operations.restarts import record_restart
from commandbus.operations.scope import Scope
from commandbus.store.op import Op

REST = 3600.0


class Restarts:
    """Those that happened and are not on record yet."""

    name = "restarts"
    topic = "commandbus.restarts"

    def __init__(self) -> None:
        self._waiting: deque[WorkerRestart] = deque()
        self._written = 0

    def add(self, restart: WorkerRestart) -> None:
        self._waiting.append(restart)

    def work(self, scope: Scope) -> Op[float]:
        waiting = list(self._waiting)
        self._written = 0
        for restart in waiting:
            yield from record_restart(scope, restart)
        self._written = len(waiting)
        return REST

    def confirm(self) -> None:
        for _ in range(self._written):
            self._waiting.popleft()
