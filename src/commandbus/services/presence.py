"""Reports a worker to the fleet, and forgets those that are gone, and other things that are over."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from commandbus.domain.presence import WorkerInfo
from commandbus.operations.fleet_starts import record_start
from commandbus.operations.parked_notes import forget_cases
from commandbus.operations.presence import forget_dead_workers, heartbeat, report_worker
from commandbus.operations.scope import Scope
from commandbus.operations.uniqueness import forget_windows
from commandbus.store.op import Op, autocommit
from commandbus.store.sessions import WORKERS

CHANGING = 10.0
"""Seconds until the next report while the figures of a worker change."""
BUSY = 30.0
"""Seconds until the next report of a worker that takes commands: its memory and processor time."""
SWEEP_EVERY = 10
"""Reports between two looks for workers that are gone."""


class Presence:
    """Reports at a slow pace, sooner while the worker takes commands, and when it was nudged."""

    name = "presence"
    topic = WORKERS
    look_seconds = BUSY

    def __init__(
        self,
        info: WorkerInfo,
        lease_seconds: float,
        refresh: Callable[[WorkerInfo], WorkerInfo] = lambda info: info,
        load: Callable[[], int] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._info = info
        self._lease_seconds = lease_seconds
        self._refresh = refresh
        """The figures of the worker as they are now."""
        self._load, self._seen_load = load, -1
        """How many commands it has taken."""
        self._monotonic, self._due_at = monotonic, float("-inf")
        self._is_nudged = False
        self._version = 0
        self._reports = 0

    def nudged(self) -> None:
        self._is_nudged = True

    def look(self) -> bool:
        """Whether a report is due; asks the worker, not the store."""
        is_busy = self._load is not None and self._load() != self._seen_load
        return self._is_nudged or is_busy or self._monotonic() >= self._due_at

    @autocommit
    def work(self, scope: Scope) -> Op[float]:
        self._is_nudged = False
        before, self._info = self._info, self._refresh(self._info)
        changed = _without_usage(self._info) != _without_usage(before)
        load = -1 if self._load is None else self._load()
        self._info = msgspec.structs.replace(self._info, session=scope.store.session)
        again = heartbeat(scope, self._info, self._lease_seconds)
        self._version = yield from report_worker(scope, self._info, self._version, again)
        if self._reports == 0 and not self._info.processes:
            yield from record_start(scope, self._info)
        if self._reports % SWEEP_EVERY == 0:
            yield from forget_dead_workers(scope)
            yield from forget_windows(scope)
            yield from forget_cases(scope)
        self._reports += 1
        seconds = min(CHANGING, again) if changed else again
        self._seen_load, self._due_at = load, self._monotonic() + seconds
        return seconds if self._load is None else min(BUSY, seconds)


def _without_usage(info: WorkerInfo) -> WorkerInfo:
    """What does not change by itself."""
    return msgspec.structs.replace(info, memory_bytes=0, cpu_seconds=0.0)
