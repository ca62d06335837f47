"""Dynamic concurrency: the policy, and the service that measures."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from commandbus.errors import ConfigurationError
from commandbus.settings import WorkerSettings
from commandbus.worker.core import WorkerCore
from commandbus.worker.metrics import WorkerMetrics
from commandbus.worker.sizing import Load, Sizer, next_concurrency

CALM = Load(busy=0.7, backlog=False, lag=0.0, cpu=0.2)
WANTED = Load(busy=1.0, backlog=True, lag=0.0, cpu=0.2)
LAGGING = Load(busy=1.0, backlog=True, lag=0.5, cpu=0.2)
HOT = Load(busy=1.0, backlog=True, lag=0.0, cpu=0.99)
IDLE = Load(busy=0.1, backlog=False, lag=0.0, cpu=0.0)


@pytest.mark.parametrize(
    ("load", "expected"), [(CALM, 8), (WANTED, 10), (LAGGING, 6), (HOT, 6), (IDLE, 7)]
)
def test_concurrency_follows_the_load(load: Load, expected: int) -> None:
    assert next_concurrency(8, 2, 50, load) == expected


@pytest.mark.parametrize(
    ("load", "expected"),
    [
        (Load(busy=0.9, backlog=True, lag=0.0, cpu=0.2), 10),
        (Load(busy=0.89, backlog=True, lag=0.0, cpu=0.2), 8),
        (Load(busy=0.5, backlog=False, lag=0.0, cpu=0.2), 8),
        (Load(busy=0.49, backlog=False, lag=0.0, cpu=0.2), 7),
        (Load(busy=1.0, backlog=True, lag=0.1, cpu=0.95), 10),
        (Load(busy=1.0, backlog=True, lag=0.11, cpu=0.2), 6),
        (Load(busy=1.0, backlog=True, lag=0.0, cpu=0.96), 6),
    ],
)
def test_thresholds_of_the_load_are_exact(load: Load, expected: int) -> None:
    assert next_concurrency(8, 2, 50, load) == expected


@pytest.mark.parametrize("load", [CALM, WANTED, LAGGING, HOT, IDLE])
def test_it_stays_between_its_bounds_and_comes_to_rest(load: Load) -> None:
    size = 8
    for _ in range(100):
        size = next_concurrency(size, 3, 20, load)
        assert 3 <= size <= 20
    assert next_concurrency(size, 3, 20, load) == size


class FakeWorker:
    def __init__(self) -> None:
        self.concurrency, self.in_flight_count, self.has_backlog = 4, 4, True
        self.metrics = WorkerMetrics()
        self.is_resized = False
        self.asked: list[Callable[[], None]] = []

    def set_concurrency(self, concurrency: int) -> None:
        self.concurrency = concurrency

    def _ask(self, answer: Callable[[], None]) -> None:
        self.asked.append(answer)


def test_the_service_measures_and_sets() -> None:
    worker, now, cpu = FakeWorker(), [0.0], [0.0]
    sizer = Sizer(worker, 1, 10, monotonic=lambda: now[0], cpu_time=lambda: cpu[0])

    def look() -> int:
        now[0] += 1.0
        worker.in_flight_count = worker.concurrency if worker.has_backlog else 0
        list(sizer.work(None))
        return worker.concurrency

    assert look() == 5
    worker.asked.pop()()
    assert look() == 6
    assert look() == 5, "the loop has not answered for a second"
    worker.asked.pop()()
    worker.has_backlog = False
    assert look() == 4, "it answered late"
    worker.asked.pop()()
    cpu[0] += 5.0
    assert look() == 3, "the core is used up"
    worker.asked.pop()()
    worker.has_backlog = True
    assert look() == 4, "processor time before the last look does not count again"
    worker.asked.pop()()
    worker.is_resized = True
    assert look() == 4, "an operator decided"


def test_one_bound_without_the_other_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="both"):
        WorkerSettings(min_concurrency=2)
    with pytest.raises(ConfigurationError, match="above"):
        WorkerSettings(min_concurrency=5, max_concurrency=2)
    with pytest.raises(ConfigurationError, match="at least 1"):
        WorkerSettings(min_concurrency=0, max_concurrency=2)


def test_a_worker_begins_within_its_bounds() -> None:
    assert (
        WorkerCore(WorkerSettings(concurrency=4, min_concurrency=6, max_concurrency=9)).concurrency == 6
    )
    assert (
        WorkerCore(WorkerSettings(concurrency=40, min_concurrency=6, max_concurrency=9)).concurrency
        == 9
    )
