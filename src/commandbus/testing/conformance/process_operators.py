"""Processes and people: canceling, failed compensations, deadlines, signals."""

from __future__ import annotations

import asyncio
import threading
from typing import Any
from uuid import UUID, uuid4

import pytest
from msgspec.structs import replace

from commandbus.domain.command import SendRequest
from commandbus.domain.process.declaration import Process, step
from commandbus.domain.process.values import ProcessStatus
from commandbus.domain.reply import Reply
from commandbus.errors import (
    BusinessRuleException,
    InvalidArgumentError,
    InvalidOperationError,
    PermanentCommandError,
    ProcessNotFoundError,
)
from commandbus.operations.canceling import open_requests
from commandbus.store.op import Op
from commandbus.testing.conformance.helpers import registry_of
from commandbus.testing.handlers import Recorder
from commandbus.testing.harness import Harness
from commandbus.testing.sagas import DOMAIN, Approved, BookTrip, Sagas, Timed, Trip
from commandbus.testing.waiting import eventually
from commandbus.worker.handlers import HandlerRegistry

NO = BusinessRuleException("NO_ROOM", "everything is taken")
BROKEN = PermanentCommandError("BROKEN", "it is broken")


def failing(bus: Harness) -> tuple[Sagas, Any]:
    """A process that has begun to undo its car."""
    sagas = Sagas(bus, BookTrip)
    process_id = sagas.start()
    sagas.done("book_hotel", "Grand")
    sagas.done("book_car")
    sagas.done("pay", NO)
    return sagas, process_id


class Undecided(Process[Trip]):
    """Its author made a mistake."""

    @step(timeout=10)
    def hotel(self, state: Trip) -> SendRequest:
        return SendRequest(DOMAIN, "hotel")

    @hotel.reply
    def booked(self, state: Trip, reply: Reply) -> None:
        raise ValueError("not decided")

    @hotel.compensation
    def undo_hotel(self, state: Trip) -> SendRequest:
        return SendRequest(DOMAIN, "undo_hotel")


class CompensationSuite:
    def test_a_parked_compensation_is_awaited(self, bus: Harness) -> None:
        sagas, process_id = failing(bus)
        sagas.done("cancel_car", BROKEN)
        assert sagas.status(process_id) == "WAITING_FOR_TROUBLESHOOTING"
        assert sagas.waiting() == []
        assert not sagas.get(process_id).compensation_failed
        with pytest.raises(InvalidOperationError, match="waits for no operator"):
            bus.call(bus.bus.skip_compensation, process_id, "because")
        bus.call(bus.bus.retry_process, process_id)
        assert sagas.status(process_id) == "COMPENSATING"
        sagas.done("cancel_car")
        sagas.done("cancel_hotel")
        assert sagas.status(process_id) == "COMPENSATED"

    def test_an_operator_may_do_without_a_parked_compensation(self, bus: Harness) -> None:
        sagas, process_id = failing(bus)
        command_id = sagas.done("cancel_car", BROKEN)
        bus.call(bus.troubleshooting.operator_cancel, command_id, reason="done by phone")
        sagas.route()
        assert sagas.waiting() == ["cancel_hotel"]
        assert "COMPENSATION_SKIPPED cancel_car" in sagas.happened(process_id)

    def test_a_refused_compensation_is_repeated_when_an_operator_says_so(self, bus: Harness) -> None:
        sagas, process_id = failing(bus)
        sagas.done("cancel_car", NO)
        assert sagas.status(process_id) == "WAITING_FOR_TROUBLESHOOTING"
        waiting = bus.call(bus.bus.list_processes, status="WAITING_FOR_TROUBLESHOOTING")
        assert [record.process_id for record in waiting] == [process_id]
        assert sagas.waiting() == []
        bus.call(bus.bus.acting("ann").retry_process, process_id)
        sagas.route()
        sagas.done("cancel_car")
        sagas.done("cancel_hotel")
        assert sagas.status(process_id) == "COMPENSATED"
        (retried,) = [e for e in sagas.audit(process_id) if e.event_type == "OPERATOR_RETRY"]
        assert retried.details == {"actor": "ann"}

    def test_a_refused_compensation_is_skipped_when_an_operator_vouches(self, bus: Harness) -> None:
        sagas, process_id = failing(bus)
        sagas.done("cancel_car", NO)
        assert sagas.get(process_id).compensation_failed
        bus.call(bus.bus.acting("ann").skip_compensation, process_id, "sold the car")
        sagas.route()
        sagas.done("cancel_hotel")
        assert sagas.status(process_id) == "COMPENSATED"
        (skipped,) = [e for e in sagas.audit(process_id) if e.event_type == "OPERATOR_SKIP"]
        assert skipped.details == {"actor": "ann", "reason": "sold the car"}

    def test_what_happens_to_the_commands_of_a_process_by_hand_is_linked(self, bus: Harness) -> None:
        sagas, process_id = failing(bus)
        sagas.done("cancel_car", BROKEN)
        bus.call(bus.bus.acting("ann").retry_process, process_id)
        sagas.done("cancel_car")
        sagas.done("cancel_hotel")
        other = sagas.start()
        parked = sagas.done("book_hotel", BROKEN)
        bus.call(bus.bus.acting("ann").cancel_process, other, "called off")
        sagas.route()
        report = bus.call(bus.bus.verify_audit)
        assert (report.links, report.problems) == (4, [])
        # The router calls it off, and is no operator.
        assert bus.trail(parked)[-1].event_type == "CANCELED"
        assert "actor" not in bus.trail(parked)[-1].details

    def test_those_that_have_not_ended_are_counted_by_type_and_status(self, bus: Harness) -> None:
        sagas, stuck = failing(bus)
        sagas.done("cancel_car", BROKEN)
        for _ in range(2):
            sagas.start()
        ended = sagas.start()
        bus.call(bus.bus.cancel_process, ended, "called off")
        sagas.route()
        counted = bus.call(bus.bus.count_processes)
        kind = sagas.get(stuck).process_type
        assert [(c.process_type, c.status, c.count) for c in counted] == [
            (kind, "RUNNING", 2),
            (kind, "WAITING_FOR_TROUBLESHOOTING", 1),
        ]

    def test_operators_cannot_act_on_what_does_not_wait(self, bus: Harness) -> None:
        sagas = Sagas(bus, BookTrip)
        process_id = sagas.start()
        with pytest.raises(InvalidOperationError, match="waits for no operator"):
            bus.call(bus.bus.retry_process, process_id)
        with pytest.raises(InvalidOperationError, match="waits for no operator"):
            bus.call(bus.bus.skip_compensation, process_id, "because")
        sagas.done("book_hotel", NO)
        for act in (bus.bus.retry_process, bus.bus.cancel_process):
            with pytest.raises(InvalidOperationError, match="FAILED, which is final"):
                bus.call(act, process_id)
        with pytest.raises(ProcessNotFoundError):
            bus.call(bus.bus.retry_process, uuid4())

    def test_a_canceled_process_undoes_what_it_did(self, bus: Harness) -> None:
        sagas = Sagas(bus, BookTrip)
        process_id = sagas.start()
        sagas.done("book_hotel", "Grand")
        bus.call(bus.bus.acting("ann").cancel_process, process_id, "called off")
        sagas.route()
        # The car was not begun: it is called off, and nothing of it has to be undone.
        assert sagas.waiting() == ["cancel_hotel"]
        sagas.done("cancel_hotel")
        record = sagas.get(process_id)
        assert record.status is ProcessStatus.CANCELED
        assert record.error is not None
        assert record.error.message == "called off"
        (asked,) = [e for e in sagas.audit(process_id) if e.event_type == "CANCEL_REQUESTED"]
        assert asked.details == {"reason": "called off", "actor": "ann"}

    def test_a_canceled_process_waits_for_what_runs(self, bus: Harness) -> None:
        sagas = Sagas(bus, BookTrip)
        process_id = sagas.start()
        taken = bus.take(sagas.worker)
        bus.call(bus.bus.cancel_process, process_id)
        sagas.route()
        assert sagas.status(process_id) == "COMPENSATING"
        bus.call(sagas.worker.complete, taken, "Grand")
        sagas.route()
        sagas.done("cancel_hotel")
        assert sagas.status(process_id) == "CANCELED"

    @pytest.mark.parametrize("back", ["crash", "retry", "release", "park"])
    def test_a_step_of_a_canceled_process_does_not_begin_again(self, bus: Harness, back: str) -> None:
        sagas, hotel = Sagas(bus, BookTrip), Recorder()
        process_id = sagas.start()
        taken = bus.take(sagas.worker, visibility_timeout=20)
        bus.call(bus.bus.cancel_process, process_id, "called off")
        sagas.route()
        assert bus.run(open_requests(bus.bus.scope, (DOMAIN,))) == {}  # its run is not interrupted
        if back == "release":
            bus.call(sagas.worker.release, taken)
        elif back != "crash":
            bus.call(sagas.worker.fail, taken, "busy" if back == "retry" else BROKEN)
        bus.advance(30)
        # A worker knows it with the claim, before any of its services has looked.
        for one in bus.receive(sagas.worker):
            assert one.context.canceled
            bus.call(sagas.worker.release, one)
        with bus.run_worker(registry_of(DOMAIN, book_hotel=hotel), DOMAIN):
            eventually(lambda: bus.get(taken.command.command_id, DOMAIN).status == "CANCELED")
        assert hotel.commands == []
        sagas.route()
        # Only a run that ended without an answer of its handler may have taken effect.
        assert sagas.waiting() == (["cancel_hotel"] if back == "crash" else [])

    def test_canceling_takes_a_parked_step_along(self, bus: Harness) -> None:
        sagas = Sagas(bus, BookTrip)
        process_id = sagas.start()
        command_id = sagas.done("book_hotel", BROKEN)
        bus.call(bus.bus.cancel_process, process_id)
        sagas.route()
        assert sagas.status(process_id) == "CANCELED"
        assert bus.get(command_id, DOMAIN).status == "CANCELED"


class ProcessTimeSuite:
    def test_a_step_that_takes_too_long_is_undone(self, bus: Harness) -> None:
        sagas = Sagas(bus, Timed)
        process_id = sagas.start()
        taken = bus.take(sagas.worker, visibility_timeout=100)
        assert sagas.pass_time(9) == 0
        assert sagas.pass_time(2) == 1
        record = sagas.get(process_id)
        assert record.error is not None
        assert (record.error.code, record.error.step) == ("STEP_TIMEOUT", "hotel")
        # It is unknown whether it took effect, so it is undone.
        assert sagas.waiting() == ["undo_hotel"]
        bus.call(sagas.worker.complete, taken, "too late")
        sagas.route()
        assert "REPLY_IGNORED hotel" in sagas.happened(process_id)
        sagas.done("undo_hotel")
        assert sagas.status(process_id) == "COMPENSATED"

    @pytest.mark.parametrize("back", ["crash", "retry", "release"])
    def test_a_step_that_is_being_undone_does_not_begin_again(self, bus: Harness, back: str) -> None:
        sagas, hotel, undo = Sagas(bus, Timed), Recorder(), Recorder()
        sagas.start()
        taken = bus.take(sagas.worker, visibility_timeout=20)
        sagas.pass_time(11)
        if back == "retry":
            bus.call(sagas.worker.fail, taken, "busy")
        elif back == "release":
            bus.call(sagas.worker.release, taken)
        bus.advance(30)
        # A worker knows it with the claim, before any of its services has looked.
        received = bus.receive(sagas.worker, 2)
        asked = {one.command.command_type: one.context.canceled for one in received}
        assert asked == {"hotel": True, "undo_hotel": False}
        for one in received:
            bus.call(sagas.worker.release, one)
        with bus.run_worker(registry_of(DOMAIN, hotel=hotel, undo_hotel=undo), DOMAIN):
            undo.wait_for(1)
            record = bus.wait(taken.command.command_id)
        assert (record.status, hotel.commands) == ("CANCELED", [])
        assert record.reason == "hotel was not finished after 10 s."

    def test_the_handler_of_a_step_that_takes_too_long_is_asked_to_stop(self, bus: Harness) -> None:
        sagas, began, registry = Sagas(bus, Timed), threading.Event(), HandlerRegistry()

        @registry.handler(DOMAIN, "hotel")
        async def hotel(command: Any, context: Any) -> None:
            began.set()
            await asyncio.sleep(60)

        process_id = sagas.start()
        with bus.run_worker(registry, DOMAIN):
            assert began.wait(10)
            sagas.pass_time(11)
            (command,) = bus.query(command_type="hotel")
            assert bus.wait(command.command_id).status == "CANCELED"
        (asked,) = [e for e in bus.trail(command.command_id) if e.event_type == "CANCEL_REQUESTED"]
        assert asked.details["by"] == "its process"
        sagas.route()
        assert "REPLY_IGNORED hotel" in sagas.happened(process_id)
        assert bus.run(bus.store.list_documents("ledger")) == []

    def test_a_step_that_is_being_undone_cannot_be_retried(self, bus: Harness) -> None:
        sagas = Sagas(bus, Timed)
        sagas.start()
        taken = bus.take(sagas.worker, visibility_timeout=100)
        sagas.pass_time(11)
        bus.call(sagas.worker.fail, taken, BROKEN)
        command_id, undo = taken.command.command_id, Recorder()
        with pytest.raises(InvalidOperationError, match="undoes it"):
            bus.call(bus.troubleshooting.operator_retry, command_id)
        assert bus.get(command_id, DOMAIN).status == "IN_TROUBLESHOOTING_QUEUE"
        with bus.run_worker(registry_of(DOMAIN, undo_hotel=undo), DOMAIN):
            eventually(lambda: bus.get(command_id, DOMAIN).status == "CANCELED")

    def test_a_step_that_was_not_begun_is_called_off(self, bus: Harness) -> None:
        sagas = Sagas(bus, Timed)
        process_id = sagas.start()
        sagas.pass_time(11)
        sagas.route()
        assert sagas.waiting() == ["undo_hotel"]
        (hotel,) = bus.query(command_type="hotel")
        assert hotel.status == "CANCELED"
        assert sagas.status(process_id) == "COMPENSATING"

    def test_a_step_that_waits_for_a_person_has_time(self, bus: Harness) -> None:
        sagas = Sagas(bus, Timed)
        process_id = sagas.start()
        sagas.done("hotel", BROKEN)
        assert sagas.pass_time(11) == 1
        assert sagas.status(process_id) == "WAITING_FOR_TROUBLESHOOTING"
        bus.call(bus.bus.retry_process, process_id)
        sagas.done("hotel")
        assert sagas.get(process_id).current_steps == ["car"]

    def test_time_spent_parked_does_not_count(self, bus: Harness) -> None:
        sagas = Sagas(bus, Timed)
        process_id = sagas.start()
        sagas.done("hotel", BROKEN)
        bus.advance(8)
        bus.call(bus.bus.retry_process, process_id)
        assert sagas.pass_time(5) == 1
        assert sagas.waiting() == ["hotel"]
        assert sagas.pass_time(6) == 1
        assert sagas.waiting() == ["undo_hotel"]

    def test_an_answer_that_came_in_time_is_heard_before_time_passes(self, bus: Harness) -> None:
        sagas = Sagas(bus, Timed)
        process_id = sagas.start()
        sagas.end("hotel")
        assert sagas.pass_time(11) == 1
        sagas.route()
        assert sagas.get(process_id).current_steps == ["car"]

    def test_a_signal_that_came_in_time_is_heard_before_time_passes(self, bus: Harness) -> None:
        sagas = Sagas(bus, Approved)
        process_id = sagas.start()
        sagas.done("ask")
        bus.call(bus.bus.signal_process, process_id, "refused")
        bus.call(bus.bus.signal_process, process_id, "approved", {"by": "ann"})
        assert sagas.pass_time(3601) == 1
        sagas.route()
        assert sagas.get(process_id).current_steps == ["book"]

    def test_a_reply_that_cannot_be_decided_about_stops_the_time_of_its_step(
        self, bus: Harness
    ) -> None:
        sagas = Sagas(bus, Undecided)
        process_id = sagas.start()
        sagas.done("hotel")
        assert sagas.pass_time(11) == 1
        assert sagas.status(process_id) == "WAITING_FOR_TROUBLESHOOTING"
        assert sagas.waiting() == []

    def test_a_process_that_takes_too_long_is_undone(self, bus: Harness) -> None:
        sagas = Sagas(bus, Timed)
        process_id = sagas.start()
        sagas.done("hotel")
        assert sagas.pass_time(61) == 1
        assert sagas.waiting() == ["undo_hotel"]
        sagas.route()
        sagas.done("undo_hotel")
        record = sagas.get(process_id)
        assert record.status is ProcessStatus.COMPENSATED
        assert record.error is not None
        assert record.error.code == "PROCESS_TIMEOUT"
        assert sagas.pass_time(100) == 0

    @pytest.mark.parametrize("part", ["state", "progress", "error"])
    def test_a_process_that_cannot_be_read_holds_up_no_deadline_of_others(
        self, bus: Harness, part: str
    ) -> None:
        sagas = Sagas(bus, Timed)
        bad, good = sagas.start(), sagas.start()
        bus.run(damage(bus, bad, part))
        assert sagas.pass_time(11) == 2
        assert sagas.status(good) == "COMPENSATING"
        assert sagas.status(bad) == "WAITING_FOR_TROUBLESHOOTING"
        assert any(event.startswith("DECISION_FAILED") for event in sagas.happened(bad))
        assert sagas.pass_time(100) == 0
        bus.call(bus.bus.signal_process, bad, "approved", None)
        sagas.route()
        assert bus.stats(Timed.reply_to).parked == 1

    def test_a_process_in_time_hears_nothing_of_its_deadline(self, bus: Harness) -> None:
        sagas = Sagas(bus, Timed)
        process_id = sagas.start()
        sagas.done("hotel")
        sagas.done("car")
        assert sagas.pass_time(100) == 0
        assert sagas.status(process_id) == "COMPLETED"

    def test_a_running_router_keeps_time(self, bus: Harness) -> None:
        sagas = Sagas(bus, Timed)
        hotel, undone = Recorder(), Recorder()
        registry = registry_of(DOMAIN, hotel=hotel, undo_hotel=undone)
        bus.pause(DOMAIN)
        process_id = sagas.start()
        with bus.run_worker(registry, DOMAIN), bus.run_router(Timed):
            bus.advance(11)
            eventually(lambda: sagas.status(process_id) == "COMPENSATING")
            bus.resume(DOMAIN)
            eventually(lambda: sagas.status(process_id) == "COMPENSATED")
        assert (len(hotel.commands), len(undone.commands)) == (0, 1)


class SignalSuite:
    def test_a_step_waits_for_a_signal(self, bus: Harness) -> None:
        sagas = Sagas(bus, Approved)
        process_id = sagas.start()
        sagas.done("ask")
        assert sagas.get(process_id).current_steps == ["approval"]
        bus.call(bus.bus.signal_process, process_id, "approved", {"by": "ann"})
        sagas.route()
        assert sagas.get(process_id).state["log"] == ["ann"]
        sagas.done("book")
        assert sagas.status(process_id) == "COMPLETED"

    def test_a_signal_may_come_before_its_step(self, bus: Harness) -> None:
        sagas = Sagas(bus, Approved)
        process_id = sagas.start()
        bus.call(sagas.manager.signal, process_id, "approved", {"by": "bob"})
        sagas.route()
        sagas.done("ask")
        assert sagas.get(process_id).current_steps == ["book"]
        assert sagas.get(process_id).state["log"] == ["bob"]

    def test_another_signal_is_kept_for_others(self, bus: Harness) -> None:
        sagas = Sagas(bus, Approved)
        process_id = sagas.start()
        sagas.done("ask")
        bus.call(bus.bus.signal_process, process_id, "refused")
        sagas.route()
        assert sagas.get(process_id).current_steps == ["approval"]

    def test_waiting_has_its_time(self, bus: Harness) -> None:
        sagas = Sagas(bus, Approved)
        process_id = sagas.start()
        sagas.done("ask")
        assert sagas.pass_time(3601) == 1
        record = sagas.get(process_id)
        assert (record.status, record.error and record.error.code) == ("FAILED", "STEP_TIMEOUT")
        with pytest.raises(InvalidOperationError, match="final"):
            bus.call(bus.bus.signal_process, process_id, "approved")

    def test_bad_signals_are_refused(self, bus: Harness) -> None:
        sagas = Sagas(bus, Approved)
        with pytest.raises(ProcessNotFoundError):
            bus.call(bus.bus.signal_process, uuid4(), "approved")
        with pytest.raises(InvalidArgumentError, match="signal"):
            bus.call(bus.bus.signal_process, sagas.start(Trip()), "not a name")


def damage(bus: Harness, process_id: UUID, part: str) -> Op[Any]:
    """What is kept of a process becomes unreadable, as a hand in the tables might make it."""
    (row,) = yield from bus.store.lock_processes([process_id])
    return (yield from bus.store.put_processes([replace(row, **{part: "no json"})], []))
