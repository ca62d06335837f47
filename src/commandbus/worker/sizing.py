"""How many handlers a worker runs at once, between a minimum and a maximum, by its measured load."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from commandbus.store.op import Op

INTERVAL = 1.0
"""Seconds between two looks."""
LAG_MAX = 0.1
"""A loop that answers later than this has too much to do."""
CPU_MAX = 0.95
"""A process that uses this much of a core gains nothing from more handlers."""
BUSY, IDLE = 0.9, 0.5


class Load(msgspec.Struct, frozen=True):
    """What a worker measured since the last look."""

    busy: float
    """Share of the slots in use."""
    backlog: bool
    """More was waiting than could be claimed."""
    lag: float
    """Seconds that the worker's loop took to answer."""
    cpu: float
    """Share of one core that the process used."""


def next_concurrency(current: int, low: int, high: int, load: Load) -> int:
    """A quarter more while work waits for slots and the process has time; a quarter less when it has
    not; slowly less when slots are idle."""
    if load.lag > LAG_MAX or load.cpu > CPU_MAX:
        wanted = current - max(1, current // 4)
    elif load.backlog and load.busy >= BUSY:
        wanted = current + max(1, current // 4)
    elif not load.backlog and load.busy < IDLE:
        wanted = current - 1
    else:
        wanted = current
    return min(high, max(low, wanted))


class Sized(Protocol):
    """The worker, as far as its size is concerned."""

    @property
    def concurrency(self) -> int: ...

    @property
    def in_flight_count(self) -> int: ...

    @property
    def has_backlog(self) -> bool: ...

    @property
    def metrics(self) -> Any: ...

    @property
    def is_resized(self) -> bool: ...

    def set_concurrency(self, concurrency: int) -> None: ...

    def _ask(self, answer: Callable[[], None]) -> None: ...


class Sizer:
    """A service that sets the concurrency of a worker every second, unless an operator did."""

    name = "sizer"
    topic = "commandbus.sizes"

    def __init__(
        self,
        worker: Sized,
        low: int,
        high: int,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        cpu_time: Callable[[], float] = time.process_time,
    ) -> None:
        self._worker, self._low, self._high = worker, low, high
        self._monotonic, self._cpu_time = monotonic, cpu_time
        self._seen_at, self._cpu_at, self._worked = monotonic(), cpu_time(), 0.0
        self._asked_at: float | None = None
        self._lag = 0.0

    def work(self, scope: object) -> Op[float]:
        yield from ()
        load = self._measure()
        current = self._worker.concurrency
        wanted = next_concurrency(current, self._low, self._high, load)
        if wanted != current and not self._worker.is_resized:
            self._worker.set_concurrency(wanted)
        return INTERVAL

    def _measure(self) -> Load:
        now, cpu, worker = self._monotonic(), self._cpu_time(), self._worker
        passed = max(1e-6, now - self._seen_at)
        worked = worker.metrics.process_seconds
        ran = (worked - self._worked) / (passed * worker.concurrency)
        held = worker.in_flight_count / worker.concurrency
        lag = self._lag if self._asked_at is None else max(self._lag, now - self._asked_at)
        load = Load(min(1.0, max(ran, held)), worker.has_backlog, lag, (cpu - self._cpu_at) / passed)
        self._seen_at, self._cpu_at, self._worked = now, cpu, worked
        if self._asked_at is None:
            self._asked_at = now
            worker._ask(self._answered)
        return load

    def _answered(self) -> None:
        if self._asked_at is not None:
            self._lag, self._asked_at = self._monotonic() - self._asked_at, None
