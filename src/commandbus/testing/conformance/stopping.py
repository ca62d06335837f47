"""Stopping: what runs is recorded, what was not begun goes back free, and nothing new begins."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import Any
from uuid import UUID

from commandbus.domain.batch import BatchStatus
from commandbus.domain.command import Command, SendRequest
from commandbus.domain.lifecycle import CommandStatus
from commandbus.domain.outcome import CRASHES_MAX, STOPS_MAX
from commandbus.errors import InvalidOperationError, LeaseLost
from commandbus.testing.conformance.helpers import registry_of
from commandbus.testing.handlers import Gate, Recorder
from commandbus.testing.harness import DOMAIN, Harness
from commandbus.testing.sagas import BookTrip
from commandbus.testing.waiting import eventually
from commandbus.worker.context import HandlerContext


def check_went_back(bus: Harness, command_id: UUID) -> None:
    """It can be claimed at once, and neither an attempt nor a crash is counted."""
    assert bus.get(command_id).status is CommandStatus.PENDING
    assert "WORKER_LOST" not in bus.kinds(command_id)
    again = bus.take(bus.worker())
    assert again.command.command_id == command_id
    assert (again.attempt, again.claimed.crashes) == (1, 0)


class StoppingSuite:
    def test_an_idle_worker_stops(self, bus: Harness) -> None:
        with bus.run_worker(registry_of(ship=Recorder())) as running:
            running.wait_until_idle()
            running.stop()
            assert not running.worker.is_running

    def test_stopping_twice_is_harmless(self, bus: Harness) -> None:
        with bus.run_worker(registry_of(ship=Recorder())) as running:
            running.stop()
            running.stop()
            assert not running.worker.is_running

    def test_what_runs_may_finish_and_is_recorded(self, bus: Harness) -> None:
        command_id = bus.send()
        with Gate(result="done") as gate, bus.run_worker(registry_of(ship=gate)) as running:
            gate.wait_for(1)
            stopping = bus.spawn(running.worker.stop)
            eventually(lambda: running.worker._core.stopping)
            gate.open()
            stopping.result(20)
            record = bus.get(command_id)
        assert (record.status, record.result) == (CommandStatus.COMPLETED, "done")

    def test_a_batch_that_ends_with_a_workers_last_command_is_complete(self, bus: Harness) -> None:
        batch = bus.call(bus.bus.create_batch, [SendRequest(DOMAIN, "ship")])
        with Gate() as gate, bus.run_worker(registry_of(ship=gate)) as running:
            gate.wait_for(1)
            stopping = bus.spawn(running.worker.stop)
            eventually(lambda: running.worker._core.stopping)
            gate.open()
            stopping.result(20)
            record = bus.call(bus.bus.get_batch, batch.batch_id)
        assert record.status is BatchStatus.COMPLETED

    def test_what_was_not_begun_goes_back_without_an_attempt(self, bus: Harness) -> None:
        bus.send_many([SendRequest(DOMAIN, "ship")] * 6)
        with (
            Gate() as gate,
            bus.run_worker(registry_of(ship=gate), concurrency=1, prefetch=5) as running,
        ):
            gate.wait_for(1)
            eventually(lambda: running.worker.in_flight_count == 6)
            stopping = bus.spawn(running.worker.stop)
            eventually(lambda: bus.stats().ready == 5)
            gate.open()
            stopping.result(20)
        waiting = bus.query(status="PENDING")
        assert [record.attempts for record in waiting] == [0] * 5
        assert bus.stats().completed == 1
        assert bus.kinds(waiting[0].command_id) == ["SENT", "RECEIVED", "RELEASED"]

    def test_nothing_new_is_begun(self, bus: Harness) -> None:
        bus.send()
        with Gate() as gate, bus.run_worker(registry_of(ship=gate)) as running:
            gate.wait_for(1)
            stopping = bus.spawn(running.worker.stop)
            eventually(lambda: running.worker._core.stopping)
            late = bus.send()
            gate.open()
            stopping.result(20)
            assert len(gate.entered) == 1
        assert bus.get(late).status is CommandStatus.PENDING

    def test_a_stopped_worker_takes_nothing(self, bus: Harness) -> None:
        handler = Recorder()
        with bus.run_worker(registry_of(ship=handler)) as running:
            running.wait_until_idle()
            running.stop()
            late = bus.send()
        assert bus.get(late).status is CommandStatus.PENDING
        assert handler.commands == []

    def test_an_async_handler_over_the_grace_is_canceled(self, bus: Harness) -> None:
        begun, canceled = threading.Event(), threading.Event()

        async def ship(command: Command[Any], context: HandlerContext) -> None:
            begun.set()
            try:
                await asyncio.sleep(60)
            finally:
                canceled.set()

        command_id = bus.send()
        with bus.run_worker(registry_of(ship=ship)) as running:
            assert begun.wait(10)
            running.stop(0.05)
            assert canceled.wait(10)
            assert running.worker.last_exceptions == []
        check_went_back(bus, command_id)

    def test_an_async_handler_that_ignores_its_cancellation_is_left_behind(self, bus: Harness) -> None:
        begun, over = threading.Event(), threading.Event()

        async def ship(command: Command[Any], context: HandlerContext) -> None:
            begun.set()
            while not over.is_set():
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(0.02)

        command_id = bus.send()
        try:
            with bus.run_worker(registry_of(ship=ship)) as running:
                assert begun.wait(10)
                running.stop(0.05)
                check_went_back(bus, command_id)
        finally:
            over.set()

    def test_a_def_handler_over_the_grace_is_left_behind(self, bus: Harness) -> None:
        command_id = bus.send()
        with Gate(result="late") as gate, bus.run_worker(registry_of(ship=gate)) as running:
            gate.wait_for(1)
            running.stop(0.05)
            assert not running.worker.is_running
            check_went_back(bus, command_id)

    def test_a_handler_that_was_left_behind_changes_nothing(self, bus: Harness) -> None:
        command_id = bus.send()
        ended, recorder = threading.Event(), Recorder(result="second")

        def ship(command: Command[Any], context: Any) -> str:
            gate(command, context)
            try:
                with suppress(LeaseLost):
                    context.progress(50, "zombie")
                return "first"
            finally:
                ended.set()

        with Gate() as gate:
            with bus.run_worker(registry_of(ship=ship)) as running:
                gate.wait_for(1)
                running.stop(0.05)
            with bus.run_worker(registry_of(ship=recorder)):
                bus.wait(command_id)
                gate.open()
                assert ended.wait(10)
        record = bus.get(command_id)
        assert (record.result, record.attempts, record.crashes) == ("second", 1, 0)

    def test_ordered_stops_are_no_crashes_however_many(self, bus: Harness) -> None:
        command_id = bus.send()
        for _ in range(CRASHES_MAX + 1):
            with Gate() as gate, bus.run_worker(registry_of(ship=gate)) as running:
                gate.wait_for(1)
                running.stop(0)
        bus.advance(31)
        check_went_back(bus, command_id)

    def test_a_command_that_outlasts_very_many_stops_is_parked(self, bus: Harness) -> None:
        """So that the number of deliveries has a bound."""
        command_id = bus.send()
        for _ in range(STOPS_MAX + 1):
            with Gate() as gate, bus.run_worker(registry_of(ship=gate)) as running:
                gate.wait_for(1)
                running.stop(0)
        record = bus.get(command_id)
        assert record.status is CommandStatus.IN_TROUBLESHOOTING_QUEUE
        assert (record.reason, record.error_code) == ("NEVER_FINISHED", "NEVER_FINISHED")

    def test_the_grace_is_not_waited_for_when_nothing_runs(self, bus: Harness) -> None:
        with bus.run_worker(registry_of(ship=Recorder()), shutdown_timeout=3_600) as running:
            bus.wait(bus.send())
            running.stop()
            assert not running.worker.is_running

    def test_a_shorter_grace_may_follow_a_longer_one(self, bus: Harness) -> None:
        bus.send()
        with Gate() as gate, bus.run_worker(registry_of(ship=gate)) as running:
            gate.wait_for(1)
            patient = bus.spawn(running.worker.stop)
            eventually(lambda: running.worker._core.stopping)
            running.stop(0)
            patient.result(20)
            assert not running.worker.is_running

    def test_a_handler_may_stop_its_own_worker(self, bus: Harness) -> None:
        async def ship(command: Command[Any], context: HandlerContext) -> str:
            stopping = running.worker.stop()
            if stopping is not None:
                await stopping
            return "stopped"

        with bus.run_worker(registry_of(ship=ship), shutdown_timeout=3_600) as running:
            command_id = bus.send()
            running.ended.result(20)
        assert bus.get(command_id).result == "stopped"

    def test_every_outcome_is_recorded_before_the_end(self, bus: Harness) -> None:
        handler = Recorder()
        bus.send_many([SendRequest(DOMAIN, "ship")] * 100)
        with bus.run_worker(registry_of(ship=handler), concurrency=8) as running:
            handler.wait_for(30)
            running.stop()
        stats = bus.stats()
        assert stats.running == 0
        assert stats.completed == len(handler.commands)
        assert stats.completed + stats.ready == 100

    def test_a_worker_whose_bus_is_closed_ends_with_an_error(self, bus: Harness) -> None:
        worker = bus.worker(DOMAIN, registry_of(ship=Recorder()))
        ended = bus.spawn(worker.run)
        eventually(lambda: worker._core.idle)
        bus.call(bus.bus.close)
        error = ended.exception(20)
        assert isinstance(error, InvalidOperationError)
        assert f"closed while worker {worker.name}" in str(error)
        assert not worker.is_running

    def test_a_bus_that_is_closed_under_a_handler_ends_its_worker(self, bus: Harness) -> None:
        bus.send()
        with Gate() as gate:
            worker = bus.worker(DOMAIN, registry_of(ship=gate), concurrency=1)
            ended = bus.spawn(worker.run)
            gate.wait_for(1)
            bus.call(bus.bus.close)
            gate.open()
            assert isinstance(ended.exception(20), InvalidOperationError)

    def test_a_router_whose_bus_is_closed_ends_with_an_error(self, bus: Harness) -> None:
        router = bus.router_class(bus.bus, [BookTrip], timer_interval=3600.0)
        ended = bus.spawn(router.run)
        eventually(lambda: router.metrics.empty > 0)
        bus.call(bus.bus.close)
        error = ended.exception(20)
        assert isinstance(error, InvalidOperationError)
        assert f"closed while router {router.name}" in str(error)
        assert not router.is_running
