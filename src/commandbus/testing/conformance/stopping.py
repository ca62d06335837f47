"""Stopping: what runs is recorded, what was not begun goes back free, and nothing new begins."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from commandbus.domain.batch import BatchCommand, BatchStatus
from commandbus.domain.command import Command, SendRequest
from commandbus.domain.lifecycle import CommandStatus
from commandbus.errors import InvalidOperationError
from commandbus.testing.conformance.helpers import registry_of
from commandbus.testing.handlers import Gate, Recorder
from commandbus.testing.harness import DOMAIN, Harness
from commandbus.testing.sagas import BookTrip
from commandbus.testing.waiting import eventually
from commandbus.worker.context import HandlerContext


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
        batch = bus.call(bus.bus.create_batch, DOMAIN, [BatchCommand("ship")])
        with Gate() as gate, bus.run_worker(registry_of(ship=gate)) as running:
            gate.wait_for(1)
            stopping = bus.spawn(running.worker.stop)
            eventually(lambda: running.worker._core.stopping)
            gate.open()
            stopping.result(20)
            record = bus.call(bus.bus.get_batch, DOMAIN, batch.batch_id)
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
        assert bus.get(command_id).status is not CommandStatus.COMPLETED
        bus.advance(31)
        assert bus.take(bus.worker()).command.command_id == command_id

    def test_a_def_handler_over_the_grace_is_left_behind(self, bus: Harness) -> None:
        command_id = bus.send()
        with Gate(result="late") as gate, bus.run_worker(registry_of(ship=gate)) as running:
            gate.wait_for(1)
            running.stop(0.05)
            assert not running.worker.is_running
            assert bus.get(command_id).status is CommandStatus.IN_PROGRESS
            gate.open()
        bus.advance(31)
        again = bus.take(bus.worker())
        assert (again.command.command_id, again.claimed.crashes) == (command_id, 1)

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
