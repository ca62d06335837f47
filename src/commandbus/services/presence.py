"""Reports a worker to the fleet, and forgets those that are gone, and other things that are over."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from commandbus.domain.presence import WorkerInfo
from commandbus.operations.parked_notes import forget_cases
from commandbus.operations.presence import forget_dead_workers, heartbeat, report_worker
from commandbus.operations.scope import Scope
from commandbus.operations.uniqueness import forget_windows
from commandbus.store.op import Op, autocommit
from commandbus.store.sessions import WORKERS

CHANGING = 10.0
"""Seconds until the next report while the figures of a worker change."""
SWEEP_EVERY = 10
"""Reports between two looks for workers that are gone."""


class Presence:
    name = "presence"
    topic = WORKERS

    def __init__(
        self,
        info: WorkerInfo,
        lease_seconds: float,
        refresh: Callable[[WorkerInfo], WorkerInfo] = lambda info: info,
    ) -> None:
        self._info = info
        self._lease_seconds = lease_seconds
        self._refresh = refresh
        """The figures of the worker as they are now."""
        self._version = 0
        self._reports = 0

    @autocommit
    def work(self, scope: Scope) -> Op[float]:
        before, self._info = self._info, self._refresh(self._info)
        changed = self._info != before
        self._info = msgspec.structs.replace(self._info, session=scope.store.session)
        again = heartbeat(scope, self._info, self._lease_seconds)
        self._version = yield from report_worker(scope, self._info, self._version, again)
        if self._reports % SWEEP_EVERY == 0:
            yield from forget_dead_workers(scope)
            yield from forget_windows(scope)
            yield from forget_cases(scope)
        self._reports += 1
        return min(CHANGING, again) if changed else again
