"""Steps of processes that were canceled after they had begun: what may have taken effect is undone."""

from __future__ import annotations

import asyncio
import threading
from typing import Any
from uuid import UUID

import pytest

from commandbus.domain.process.values import ProcessStatus
from commandbus.domain.retry import RetryPolicy
from commandbus.errors import (
    CommandCanceled,
    InvalidOperationError,
    PermanentCommandError,
    Snooze,
    TransientCommandError,
)
from commandbus.operations.canceling import open_requests, requested
from commandbus.testing.conformance.helpers import registry_of
from commandbus.testing.handlers import Recorder
from commandbus.testing.harness import Harness
from commandbus.testing.sagas import DOMAIN, BookTrip, Sagas, Timed
from commandbus.testing.waiting import eventually
from commandbus.worker.handlers import HandlerRegistry

BROKEN = PermanentCommandError("BROKEN", "it is broken")
LATER = RetryPolicy(max_attempts=3, backoff_schedule=[3_600])


def called_off(bus: Harness, sagas: Sagas, process_id: UUID) -> list[str]:
    """Cancel a process; the commands that wait then."""
    bus.call(bus.bus.cancel_process, process_id, "called off")
    sagas.route()
    return sagas.waiting()


def lost(bus: Harness, sagas: Sagas) -> UUID:
    """The command of the present step waits again, after it was lost with its worker."""
    bus.take(sagas.worker, visibility_timeout=5)
    bus.advance(6)
    again = bus.take(sagas.worker)
    bus.call(sagas.worker.release, again)
    return again.command.command_id


class ProcessEffectSuite:
    def test_a_step_whose_worker_was_lost_is_undone_with_its_process(self, bus: Harness) -> None:
        sagas = Sagas(bus, BookTrip)
        process_id = sagas.start()
        lost(bus, sagas)
        assert called_off(bus, sagas, process_id) == ["cancel_hotel"]
        (canceled,) = [e for e in sagas.audit(process_id) if e.event_type == "STEP_CANCELED"]
        assert canceled.details["may_have_taken_effect"] is True
        sagas.done("cancel_hotel")
        assert sagas.get(process_id).status is ProcessStatus.CANCELED

    def test_a_step_that_is_canceled_after_its_worker_was_lost_is_undone(self, bus: Harness) -> None:
        sagas = Sagas(bus, BookTrip)
        process_id = sagas.start()
        bus.call(bus.bus.cancel, lost(bus, sagas))
        sagas.route()
        assert sagas.waiting() == ["cancel_hotel"]
        sagas.done("cancel_hotel")
        assert sagas.status(process_id) == "COMPENSATED"

    def test_a_step_that_is_canceled_while_it_runs_is_undone(self, bus: Harness) -> None:
        sagas, began, registry = Sagas(bus, BookTrip), threading.Event(), HandlerRegistry()

        @registry.handler(DOMAIN, "book_hotel")
        async def hotel(command: Any, context: Any) -> None:
            began.set()
            await asyncio.sleep(60)

        process_id = sagas.start()
        with bus.run_worker(registry, DOMAIN):
            assert began.wait(10)
            (command,) = bus.query(command_type="book_hotel")
            bus.call(bus.bus.acting("ann").cancel, command.command_id)
            assert bus.wait(command.command_id).status == "CANCELED"
        sagas.route()
        assert sagas.waiting() == ["cancel_hotel"]
        sagas.done("cancel_hotel")
        assert sagas.status(process_id) == "COMPENSATED"

    def test_a_step_that_a_canceled_process_awaits_and_an_operator_cancels_is_undone(
        self, bus: Harness
    ) -> None:
        sagas, began, registry = Sagas(bus, BookTrip), threading.Event(), HandlerRegistry()

        @registry.handler(DOMAIN, "book_hotel")
        async def hotel(command: Any, context: Any) -> None:
            began.set()
            await asyncio.sleep(60)

        process_id = sagas.start()
        with bus.run_worker(registry, DOMAIN):
            assert began.wait(10)
            assert called_off(bus, sagas, process_id) == []
            (command,) = bus.query(command_type="book_hotel")
            bus.call(bus.bus.acting("ann").cancel, command.command_id, reason="it hangs")
            assert bus.wait(command.command_id).status == "CANCELED"
        canceled = bus.trail(command.command_id)[-1].details
        assert (canceled["actor"], canceled["reason"]) == ("ann", "it hangs")
        sagas.route()
        assert sagas.waiting() == ["cancel_hotel"]
        sagas.done("cancel_hotel")
        assert sagas.status(process_id) == "CANCELED"

    @pytest.mark.parametrize("cut", ["stop", "timeout"])
    def test_a_step_whose_handler_was_cut_short_is_undone_with_its_process(
        self, bus: Harness, cut: str
    ) -> None:
        sagas, began, registry = Sagas(bus, BookTrip), threading.Event(), HandlerRegistry()
        timeout = 0.2 if cut == "timeout" else None

        @registry.handler(DOMAIN, "book_hotel", timeout=timeout, retry=LATER)
        async def hotel(command: Any, context: Any) -> None:
            began.set()
            await asyncio.sleep(60)

        process_id = sagas.start()
        (command,) = bus.query(command_type="book_hotel")
        with bus.run_worker(registry, DOMAIN, shutdown_timeout=0.2):
            assert began.wait(10)
            if cut == "timeout":
                eventually(lambda: bus.get(command.command_id, DOMAIN).status == "PENDING")
        assert bus.get(command.command_id, DOMAIN).status == "PENDING"
        assert called_off(bus, sagas, process_id) == ["cancel_hotel"]

    @pytest.mark.parametrize(
        "answer", [TransientCommandError("BUSY", "busy"), Snooze(3_600), CommandCanceled("not needed")]
    )
    def test_a_step_whose_handler_answered_is_not_undone(self, bus: Harness, answer: Exception) -> None:
        sagas, registry = Sagas(bus, BookTrip), HandlerRegistry()

        @registry.handler(DOMAIN, "book_hotel", retry=LATER)
        def hotel(command: Any, context: Any) -> None:
            raise answer

        process_id = sagas.start()
        (command,) = bus.query(command_type="book_hotel")
        with bus.run_worker(registry, DOMAIN):
            ended = {"FAILED", "RELEASED", "CANCELED"}
            eventually(lambda: ended & set(bus.kinds(command.command_id)))
        if isinstance(answer, CommandCanceled):
            sagas.route()
            assert (sagas.waiting(), sagas.status(process_id)) == ([], "FAILED")
        else:
            assert called_off(bus, sagas, process_id) == []
            assert sagas.status(process_id) == "CANCELED"

    def test_a_step_that_was_only_claimed_is_not_undone(self, bus: Harness) -> None:
        sagas = Sagas(bus, BookTrip)
        process_id = sagas.start()
        bus.call(sagas.worker.release, bus.take(sagas.worker))
        assert called_off(bus, sagas, process_id) == []
        assert sagas.status(process_id) == "CANCELED"


class GivenUpSuite:
    @pytest.mark.parametrize("first", ["operator", "process"])
    @pytest.mark.parametrize("looked", [False, True])
    def test_a_step_that_is_being_undone_and_that_an_operator_canceled_cannot_be_retried(
        self, bus: Harness, first: str, looked: bool
    ) -> None:
        sagas, undo = Sagas(bus, Timed), Recorder()
        sagas.start()
        taken = bus.take(sagas.worker, visibility_timeout=100)
        command_id = taken.command.command_id
        if first == "process":
            sagas.pass_time(11)
        # A request to terminate comes after any other request of an operator.
        bus.call(bus.bus.acting("ann").cancel, command_id, terminate=True)
        if first == "operator":
            sagas.pass_time(11)
        asked = [e.details["by"] for e in bus.trail(command_id) if e.event_type == "CANCEL_REQUESTED"]
        assert asked == (["ann", "its process"] if first == "operator" else ["its process", "ann"])
        request = bus.run(requested(bus.bus.scope, bus.get(command_id, DOMAIN)))
        assert request is not None
        assert (request.actor, request.given_up, request.terminate) == ("ann", True, True)
        bus.call(sagas.worker.fail, taken, BROKEN)
        if looked:
            with bus.run_worker(registry_of(DOMAIN, undo_hotel=undo), DOMAIN):
                eventually(lambda: bus.get(command_id, DOMAIN).status == "CANCELED")
            return
        with pytest.raises(InvalidOperationError, match="undoes it"):
            bus.call(bus.troubleshooting.operator_retry, command_id)

    @pytest.mark.parametrize("first", ["operator", "process"])
    def test_a_step_that_is_being_undone_and_that_an_operator_canceled_does_not_begin_again(
        self, bus: Harness, first: str
    ) -> None:
        sagas, hotel, undo = Sagas(bus, Timed), Recorder(), Recorder()
        sagas.start()
        taken = bus.take(sagas.worker, visibility_timeout=20)
        command_id = taken.command.command_id
        for asks in (first, "operator" if first == "process" else "process"):
            if asks == "process":
                sagas.pass_time(11)
            else:
                bus.call(bus.bus.acting("ann").cancel, command_id, terminate=True)
        bus.advance(30)
        with bus.run_worker(registry_of(DOMAIN, hotel=hotel, undo_hotel=undo), DOMAIN):
            undo.wait_for(1)
            record = bus.wait(command_id)
        assert (record.status, hotel.commands) == ("CANCELED", [])
        bus.run(open_requests(bus.bus.scope, (DOMAIN,)))
        assert bus.run(bus.store.list_documents("cancellation")) == []
