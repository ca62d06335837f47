"""Processes inside processes, and processes in batches."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest

from commandbus.domain.batch import BatchRecord, BatchStatus
from commandbus.domain.command import SendRequest
from commandbus.errors import (
    BatchNotFoundError,
    BusinessRuleException,
    DuplicateProcessError,
    InvalidArgumentError,
    InvalidOperationError,
)
from commandbus.operations.processes import ProcessStart
from commandbus.testing.conformance.helpers import registry_of
from commandbus.testing.handlers import Recorder
from commandbus.testing.harness import Harness
from commandbus.testing.sagas import DOMAIN, BookTrip, Leg, Sagas, Tour, Trip

NO = BusinessRuleException("NO_ROOM", "everything is taken")
QUEUE = BookTrip.reply_to


class SubProcessSuite:
    def begun(self, bus: Harness) -> tuple[Sagas, UUID, UUID]:
        """A process that runs another one."""
        sagas = Sagas(bus, Tour, Leg)
        process_id = sagas.start(Trip(to="Oslo"))
        sagas.done("plan")
        (child,) = bus.call(bus.bus.list_processes, parent_id=process_id)
        return sagas, process_id, child.process_id

    def test_a_step_may_be_a_process(self, bus: Harness) -> None:
        sagas, process_id, child = self.begun(bus)
        assert sagas.get(child).state["to"] == "Oslo"
        assert sagas.get(process_id).current_steps == ["trip"]
        sagas.done("leg_hotel", "Grand")
        sagas.done("leg_pay")
        assert sagas.status(child) == "COMPLETED"
        record = sagas.get(process_id)
        assert (record.status, record.state["hotel"]) == ("COMPLETED", "Grand")

    def test_its_failure_is_the_failure_of_the_step(self, bus: Harness) -> None:
        sagas, process_id, child = self.begun(bus)
        sagas.done("leg_hotel", "Grand")
        sagas.done("leg_pay", NO)
        assert sagas.status(process_id) == "RUNNING"
        sagas.done("leg_undo")
        assert sagas.status(child) == "COMPENSATED"
        assert sagas.waiting() == ["unplan"]
        sagas.done("unplan")
        record = sagas.get(process_id)
        assert (record.status, record.error and record.error.code) == ("COMPENSATED", "NO_ROOM")

    def test_canceling_the_whole_cancels_its_parts(self, bus: Harness) -> None:
        sagas, process_id, child = self.begun(bus)
        sagas.done("leg_hotel", "Grand")
        bus.call(bus.bus.cancel_process, process_id, "called off")
        sagas.route()
        sagas.route()
        assert sagas.waiting() == ["leg_undo"]
        sagas.done("leg_undo")
        assert sagas.status(child) == "CANCELED"
        sagas.done("unplan")
        assert sagas.status(process_id) == "CANCELED"


class ProcessBatchSuite:
    def batch(self, bus: Harness, batch_id: UUID) -> BatchRecord:
        found: BatchRecord = bus.call(bus.bus.get_batch, batch_id)
        return found

    def create(self, bus: Harness, count: int, **options: Any) -> tuple[Sagas, UUID]:
        sagas = Sagas(bus, BookTrip)
        states = [Trip() for _ in range(count)]
        made = bus.call(sagas.manager.create_batch, states, **options)
        found = bus.call(bus.bus.list_processes, batch_id=made.batch_id)
        assert {record.process_id for record in found} == set(made.process_ids)
        return sagas, made.batch_id

    def test_a_batch_is_complete_when_its_processes_have_ended(self, bus: Harness) -> None:
        completion = SendRequest("billing", "invoice")
        sagas, batch_id = self.create(bus, 2, name="trips", on_complete=completion)
        assert (self.batch(bus, batch_id).total, self.batch(bus, batch_id).name) == (2, "trips")
        sagas.done("book_hotel", NO)
        assert self.batch(bus, batch_id).failed == 1
        assert not bus.query(domain="billing")
        for name in ("book_hotel", "book_car", "pay"):
            sagas.done(name)
        batch = self.batch(bus, batch_id)
        assert (batch.completed, batch.failed) == (1, 1)
        assert batch.status is BatchStatus.COMPLETED_WITH_FAILURES
        assert len(bus.query(domain="billing")) == 1

    def test_members_are_found_by_their_batch(self, bus: Harness) -> None:
        sagas, batch_id = self.create(bus, 3)
        sagas.start()
        assert len(bus.call(bus.bus.list_processes, batch_id=batch_id)) == 3

    def test_an_open_batch_takes_more(self, bus: Harness) -> None:
        sagas, batch_id = self.create(bus, 1)
        sagas.start(batch_id=batch_id)
        assert self.batch(bus, batch_id).total == 2
        sagas.done("book_hotel", NO)
        sagas.done("book_hotel", NO)
        assert self.batch(bus, batch_id).status is BatchStatus.COMPLETED_WITH_FAILURES
        with pytest.raises(InvalidOperationError, match="only an open batch"):
            sagas.start(batch_id=batch_id)

    def test_a_running_router_completes_it(self, bus: Harness) -> None:
        done = Recorder()
        handlers = {name: Recorder() for name in ("book_hotel", "book_car", "pay")}
        registry = registry_of(DOMAIN, done=done, **handlers)
        with bus.run_worker(registry, DOMAIN), bus.run_router(BookTrip):
            self.create(bus, 10, on_complete=SendRequest(DOMAIN, "done"))
            done.wait_for(1)
        assert len(done.commands) == 1

    def test_bad_batches_are_refused(self, bus: Harness) -> None:
        sagas = Sagas(bus, BookTrip)
        with pytest.raises(InvalidArgumentError, match="at least one"):
            bus.call(sagas.manager.create_batch, [])
        with pytest.raises(BatchNotFoundError):
            sagas.start(batch_id=uuid4())
        process_id, batch_id = sagas.start(), uuid4()
        starts = [ProcessStart(Trip(), process_id)]
        with pytest.raises(DuplicateProcessError):
            bus.call(sagas.manager.create_batch, starts, batch_id=batch_id)
        assert bus.call(bus.bus.get_batch, batch_id) is None
