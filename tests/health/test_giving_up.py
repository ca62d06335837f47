"""Handlers that do not give way: their slots are replaced, in both runtimes; restarts are on record."""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from commandbus import (
    CommandStatus,
    HandlerRegistry,
    RetryPolicy,
    StoreUnavailable,
    WorkerWatchdog,
)
from commandbus.domain.breaker import BreakerState, CircuitBreaker
from commandbus.domain.breaker_board import BreakerBoard
from commandbus.operations.scope import Scope
from commandbus.runtimes.services import ServiceRunner
from commandbus.services.breakers import BreakerSharing
from commandbus.sync import SyncCommandBus
from commandbus.testing import Configuration, Harness
from commandbus.testing.waiting import eventually
from commandbus.worker.effects import Effect, Interrupt

AT_ONCE = RetryPolicy(max_attempts=10, backoff_schedule=[0])


@pytest.fixture(params=["asyncio", "threads"])
def bus(request: pytest.FixtureRequest) -> Iterator[Harness]:
    harness = Configuration("memory", "memory://").open(request.param, real_time=True)
    yield harness
    harness.close()


def test_an_async_handler_over_its_time_is_canceled(bus: Harness) -> None:
    registry, ends = HandlerRegistry(), []

    @registry.handler("orders", "ship", timeout=0.2)
    async def ship(command: object, context: object) -> str:
        if not ends:
            try:
                await asyncio.sleep(60)
            finally:
                ends.append("canceled")
        return "done"

    with bus.run_worker(registry, concurrency=1, retry_policy=AT_ONCE):
        record = bus.wait(bus.send())
    assert (record.result, record.attempts, ends) == ("done", 2, ["canceled"])


def test_an_async_handler_is_canceled_when_its_slot_is_given_up(bus: Harness) -> None:
    """The lease is gone: whatever the handler does is for nothing."""
    registry, ends, runs = HandlerRegistry(), [], []

    @registry.handler("orders", "ship")
    async def ship(command: object, context: object) -> str:
        runs.append(1)
        if len(runs) == 1:
            bus.engine.store._state.leases.clear()
            bus.engine.hub.wake_all("test")
            try:
                await asyncio.sleep(60)
            finally:
                ends.append("canceled")
        return "done"

    with bus.run_worker(registry, concurrency=1, visibility_timeout=0.6) as running:
        bus.send()
        eventually(lambda: ends == ["canceled"])
        second = bus.send()
        assert bus.wait(second).status is CommandStatus.COMPLETED
        assert running.worker.in_flight_count == 0


@pytest.mark.parametrize("timeout", [None, 60.0])
def test_a_command_goes_back_though_its_handler_is_interrupted_late(
    bus: Harness, timeout: float | None
) -> None:
    """The worker decided to interrupt a moment before it did: it must not end before the handler is
    given up."""
    registry, begun, over = HandlerRegistry(), threading.Event(), threading.Event()

    @registry.handler("orders", "ship", timeout=timeout)
    async def ship(command: object, context: object) -> None:
        begun.set()
        while not over.is_set():
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.02)

    command_id = bus.send()
    try:
        with bus.run_worker(registry, concurrency=1) as running:
            perform = running.worker._perform

            def perform_late(effect: Effect) -> None:
                if isinstance(effect, Interrupt):
                    time.sleep(0.05)
                perform(effect)

            running.worker._perform = perform_late
            assert begun.wait(10)
            running.stop(0)
            assert bus.get(command_id).status is CommandStatus.PENDING
    finally:
        over.set()


def test_one_that_swallows_its_cancellation_loses_its_slot(bus: Harness) -> None:
    registry, runs, over = HandlerRegistry(), [], threading.Event()

    @registry.handler("orders", "ship")
    async def ship(command: object, context: object) -> str:
        runs.append(1)
        if len(runs) == 1:
            bus.engine.store._state.leases.clear()
            bus.engine.hub.wake_all("test")
            while not over.is_set():
                try:
                    await asyncio.sleep(0.05)
                except asyncio.CancelledError:
                    continue
        return "done"

    with bus.run_worker(registry, concurrency=1, visibility_timeout=0.6):
        bus.send()
        eventually(lambda: len(runs) == 1)
        second = bus.send()
        assert bus.wait(second).status is CommandStatus.COMPLETED
        over.set()


def test_a_stop_is_not_held_up_by_one_that_swallows_its_cancellation(bus: Harness) -> None:
    registry, began, over = HandlerRegistry(), threading.Event(), threading.Event()

    @registry.handler("orders", "ship")
    async def ship(command: object, context: object) -> None:
        began.set()
        while not over.is_set():
            try:
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                continue

    with bus.run_worker(registry) as running:
        bus.send()
        assert began.wait(30)
        started = time.monotonic()
        running.stop(timeout=0.1)
        assert time.monotonic() - started < 30
        over.set()


def test_every_restart_is_on_record(bus: Harness) -> None:
    registry = HandlerRegistry()
    registry.register("orders", "ship", lambda command, context: None)
    with bus.run_worker(registry) as running:
        bus.wait(bus.send())
        with WorkerWatchdog(running.worker, check_interval=0.01) as watchdog:
            for _ in range(3):
                running.worker.health_status.record_stuck_thread()
            eventually(lambda: watchdog.restarts == 1)
            eventually(lambda: len(bus.call(bus.bus.list_restarts)) == 1)
        assert bus.wait(bus.send()).status is CommandStatus.COMPLETED
        (restart,) = bus.call(bus.bus.list_restarts)
    assert restart.worker == running.worker.name
    assert "3 threads are stuck" in restart.reason


def test_a_breaker_s_change_is_shared_again_when_it_was_not_committed() -> None:
    """Both ways: what was told is told again, and what was heard is not believed."""
    with SyncCommandBus("memory://") as bus:
        breakers = BreakerBoard(lambda: None)
        rule = CircuitBreaker("bank", threshold=1)
        breakers.allow(rule)
        breakers.failed("bank")
        service = BreakerSharing(breakers, "w")
        session, failures = bus.engine.reserved_session, [StoreUnavailable("gone at the commit")]

        class Failing:
            def run(self, op: object, *, read: bool = False) -> object:
                if failures:
                    # Everything happens, and is undone by a commit that fails.
                    kept = dict(bus.engine.store._state.documents)
                    session.run(op)
                    bus.engine.store._state.documents.clear()
                    bus.engine.store._state.documents.update(kept)
                    raise failures.pop()
                return session.run(op)

        class Engine:
            hub, url = bus.engine.hub, bus.engine.url
            service_session = Failing()

        runner = ServiceRunner(Engine(), Scope(bus.engine.store, bus.settings), [service])
        runner.start()
        try:
            eventually(lambda: not failures)
            assert bus.get_breaker("bank") is None
            bus.hub.wake(service.topic, None, "test")
            eventually(lambda: bus.get_breaker("bank") is not None)
            found = bus.get_breaker("bank")
            assert found is not None
            assert found.state is BreakerState.OPEN
            bus.reset_breaker("bank")
            eventually(lambda: breakers.allow(rule) == 0)
        finally:
            runner.stop()


@pytest.mark.parametrize("url", ["memory://", "sqlite:///bus.db"])
def test_services_of_a_bus_that_is_closed_complain_of_nothing(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A program may close its bus before its worker has stopped."""
    monkeypatch.chdir(tmp_path)
    bus = SyncCommandBus(url)
    service = BreakerSharing(BreakerBoard(lambda: None), "w")
    runner = ServiceRunner(bus.engine, Scope(bus.engine.store, bus.settings), [service])
    runner.start()
    try:
        eventually(lambda: runner._due[service] > time.monotonic())  # tried, and put off
    finally:
        runner.stop()
    assert not caplog.records
