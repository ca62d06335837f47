"""A fleet counts its queues once a minute, not once per process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from commandbus.services.historian import Historian
from commandbus.store.op import Op
from commandbus.store.records import QueueStats
from commandbus.testing import Harness
from commandbus.testing.waiting import eventually
from tests.postgres.database import postgres_configuration, shared_url

pytestmark = pytest.mark.postgres
NOW = 1_800_000_000_000_000


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Harness, Harness]]:
    """Two processes on one database, in the same minute whatever the test takes."""
    configuration = postgres_configuration()
    one, other = configuration.open("threads"), configuration.open("threads")
    for bus in (one, other):
        monkeypatch.setattr(bus.store, "now", _now)
    yield one, other
    other.close()
    one.close()


def _now() -> Op[int]:
    yield from ()
    return NOW


def waits_for_a_lock() -> bool:
    with psycopg.connect(shared_url(), autocommit=True) as connection:
        sql = "select from pg_stat_activity where wait_event_type = 'Lock'"
        return connection.execute(f"{sql} and datname = current_database()").rowcount > 0


def test_processes_that_start_together_count_their_queues_once(
    pair: tuple[Harness, Harness], monkeypatch: pytest.MonkeyPatch
) -> None:
    counting, released = threading.Event(), threading.Event()
    counted: list[str] = []
    one, other = pair
    one.send()
    count = one.store.stats

    def stats(domain: str, cap: int) -> Op[QueueStats]:
        counted.append(domain)
        counting.set()
        assert released.wait(20)
        found: QueueStats = yield from count(domain, cap)
        return found

    for bus in pair:
        monkeypatch.setattr(bus.store, "stats", stats)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(one.run, Historian().work(one.bus.scope))
        assert counting.wait(20)
        second = pool.submit(other.run, Historian().work(other.bus.scope))
        assert eventually(lambda: len(counted) > 1 or second.done() or waits_for_a_lock(), 20)
        released.set()
        assert first.result(20) > 0
        assert second.result(20) > 0
    assert len(counted) == 1


def test_a_process_that_starts_later_in_the_minute_counts_nothing(
    pair: tuple[Harness, Harness], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = pair
    one.send()
    one.run(Historian().work(one.bus.scope))

    def stats(domain: str, cap: int) -> Op[QueueStats]:
        raise AssertionError(f"{domain} was counted again")

    monkeypatch.setattr(other.store, "stats", stats)
    assert other.run(Historian().work(other.bus.scope)) > 0
