"""An idle worker sends no statement for minutes, and still hears of everything."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from commandbus import HandlerRegistry, Schedule, SendRequest
from commandbus.processes import Process, step
from commandbus.services import reclaimer
from commandbus.services.base import Looking
from commandbus.sync import SyncCommandBus, SyncProcessManager, SyncWorker
from commandbus.testing.waiting import eventually
from tests.pgmq.database import empty_url as empty_pgmq_url
from tests.postgres.database import empty_url
from tests.postgres.test_trouble import end_backends

pytestmark = pytest.mark.postgres

FIVE_MINUTES = 300.0


@pytest.fixture(params=["", pytest.param("&transport=pgmq", marks=pytest.mark.pgmq)])
def url(request: pytest.FixtureRequest) -> str:
    return (empty_pgmq_url() if request.param else empty_url()) + request.param


class Late(Process[dict[str, Any]]):
    """No worker does its step."""

    @step(timeout=0.5)
    def pack(self, state: dict[str, Any]) -> SendRequest:
        return SendRequest("packing", "pack")


@contextmanager
def idle_worker(url: str, seen: list[Any]) -> Iterator[SyncWorker]:
    registry = HandlerRegistry()
    registry.register("orders", "ship", lambda command, context: seen.append(command.data))
    registry.process(Late)
    with SyncCommandBus(url) as bus:
        worker = SyncWorker(bus, "orders", registry)
        running = threading.Thread(target=worker.run, daemon=True)
        running.start()
        try:
            eventually(lambda: worker._core.idle and bus.engine.store.session)
            yield worker
        finally:
            worker.stop()
            running.join(30)


def next_statements(worker: SyncWorker) -> dict[str, float]:
    """In how many seconds which part of an idle worker, or of its router, wants to use the store."""
    now, router = time.monotonic(), worker._router._router
    assert router is not None
    found = {"claim": worker._core._look_at - now}
    for loop in router._loops:
        found |= {"replies": loop.core._look_at - now, "deadlines": loop._timer_at - now}
    for prefix, runner in (("", worker._services), ("router's ", router._services)):
        for service, due in runner._due.items():
            if not isinstance(service, Looking):
                found[prefix + service.name] = due - now
            elif service.look():
                found[prefix + service.name] = -1.0
    return found


def is_quiet(worker: SyncWorker, but: tuple[str, ...] = ()) -> bool:
    """`breakers` uses the store only when handlers have some."""
    wanted = next_statements(worker).items()
    return all(seconds > FIVE_MINUTES for name, seconds in wanted if name not in ("breakers", *but))


@pytest.fixture
def _soon_calm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks for leases of others end soon after the last sign of them."""
    monkeypatch.setattr(reclaimer, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(reclaimer.Reclaimer, "look_seconds", 0.01)


@pytest.mark.usefixtures("_soon_calm")
def test_an_idle_worker_rests_for_five_minutes(url: str) -> None:
    seen: list[Any] = []
    with idle_worker(url, seen) as worker, SyncCommandBus(url) as other:
        assert eventually(lambda: is_quiet(worker))
        other.send("orders", "ship", 1)
        eventually(lambda: seen == [1])
        # A sample follows within a minute, and a report of its memory; over PGMQ the message of a
        # command that ended a moment later than the last look would have been visible again.
        assert eventually(lambda: is_quiet(worker, but=("historian", "presence", "claim")), 20)


def test_a_quiet_worker_hears_of_schedules_that_others_make(url: str) -> None:
    seen: list[Any] = []
    with idle_worker(url, seen), SyncCommandBus(url) as other:
        schedule = Schedule(name="soon", domain="orders", command_type="ship", every=1, data=2)
        other.put_schedule(schedule)
        assert eventually(lambda: 2 in seen, 20)
        other.delete_schedule("soon")


def test_a_quiet_router_hears_of_deadlines_that_others_make(url: str) -> None:
    with idle_worker(url, []) as worker, SyncCommandBus(url) as other:
        eventually(lambda: next_statements(worker)["deadlines"] > FIVE_MINUTES)
        manager = SyncProcessManager(other, Late)
        record = manager.wait(manager.start({}), timeout=20)
        assert record.error is not None
        assert record.error.code == "STEP_TIMEOUT"
        eventually(lambda: next_statements(worker)["deadlines"] > FIVE_MINUTES)


def test_a_worker_that_no_longer_listens_polls_and_reports_itself_in_time() -> None:
    url = empty_url()
    with idle_worker(url, []) as worker, SyncCommandBus(url) as other:
        eventually(lambda: worker._core._fallback > FIVE_MINUTES)
        assert worker._engine._listener is not None  # type: ignore[attr-defined]
        worker._engine._listener._may_connect = lambda: time.sleep(0.05)  # type: ignore[attr-defined]
        end_backends(url, "commandbus listen")
        eventually(lambda: worker._core._fallback == worker.settings.poll_interval)
        deaf = eventually(lambda: [one.name for one in other.list_workers() if not one.session])
        assert worker.name in deaf
        with psycopg.connect(url) as connection:
            query = "select due_at - commandbus.now_us() from commandbus.document where key = %s"
            ((left,),) = connection.execute(query, [worker.name]).fetchall()
        assert left / 1e6 <= worker.settings.visibility_timeout + 5
