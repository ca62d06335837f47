"""Reports a worker to the fleet, and forgets those that are gone, and other things that are over."""

from __future__ import annotations

from collections.abc import Callable

from commandbus.domain.presence import WorkerInfo
from commandbus.operations.cases import forget_cases
from commandbus.operations.insight import HEARTBEAT, forget_dead_workers, report_worker
from commandbus.operations.scope import Scope
from commandbus.operations.uniqueness import forget_windows
from commandbus.store.op import Op, autocommit

CHANGING = 10.0
"""Seconds until the next report while the figures of a worker change."""
SWEEP_EVERY = 10
"""Reports between two looks for workers that are gone."""


TOPIC = "commandbus.workers"


class Presence:
    name = "presence"
    topic = TOPIC

    def __init__(
        self, info: WorkerInfo, refresh: Callable[[WorkerInfo], WorkerInfo] = lambda info: info
    ) -> None:
        self._info = info
        self._refresh = refresh
        """The figures of the worker as they are now."""
        self._version = 0
        self._reports = 0

    @autocommit
    def work(self, scope: Scope) -> Op[float]:
        before, self._info = self._info, self._refresh(self._info)
        self._version = yield from report_worker(scope, self._info, self._version)
        if self._reports % SWEEP_EVERY == 0:
            yield from forget_dead_workers(scope)
            yield from forget_windows(scope)
            yield from forget_cases(scope)
        self._reports += 1
        return HEARTBEAT if self._info == before else CHANGING
