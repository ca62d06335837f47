"""Replies, signals and controls of processes cannot be forged: no door takes them, and a router asks
the store whether what they say is true."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest

from commandbus import BusinessRuleException, CommandBus, Schedule, SendRequest
from commandbus.domain.lifecycle import ReplyOutcome
from commandbus.errors import InvalidArgumentError, ProcessNotFoundError
from commandbus.interfaces.web import create_dashboard
from commandbus.operations.routing import route
from commandbus.records import AuditEventType
from commandbus.store.records import Capacity, Claimed, ClaimRequest
from commandbus.store.replies import reply_command
from commandbus.testing.conformance.helpers import smuggle
from commandbus.testing.harness import Harness
from commandbus.testing.sagas import DOMAIN, BookTrip, Leg, Sagas, Tour
from tests.cli.helpers import Cli

RESERVED = ["commandbus.reply", "commandbus.signal", "commandbus.control", "commandbus.anything"]
REPLIES = "book_trip.replies"
NO = BusinessRuleException("NO_ROOM", "everything is taken")


@pytest.mark.parametrize("command_type", RESERVED)
class TestDoors:
    def test_send_refuses_it(self, bus: Harness, command_type: str) -> None:
        with pytest.raises(InvalidArgumentError, match="reserved"):
            bus.call(bus.bus.send, REPLIES, command_type)

    def test_send_many_refuses_it(self, bus: Harness, command_type: str) -> None:
        requests = [SendRequest(REPLIES, "fine"), SendRequest(REPLIES, command_type)]
        with pytest.raises(InvalidArgumentError, match="reserved"):
            bus.call(bus.bus.send_many, requests)
        assert len(bus.query()) == 0

    def test_a_batch_refuses_it(self, bus: Harness, command_type: str) -> None:
        with pytest.raises(InvalidArgumentError, match="reserved"):
            bus.call(bus.bus.create_batch, [SendRequest(REPLIES, command_type)])
        end = SendRequest(REPLIES, command_type)
        with pytest.raises(InvalidArgumentError, match="reserved"):
            bus.call(bus.bus.create_batch, [SendRequest(REPLIES, "fine")], on_complete=end)

    def test_a_schedule_refuses_it(self, bus: Harness, command_type: str) -> None:
        schedule = Schedule(name="forged", domain=REPLIES, command_type=command_type, every=60)
        with pytest.raises(InvalidArgumentError, match="reserved"):
            bus.call(bus.bus.put_schedule, schedule)


@pytest.mark.parametrize("command_type", RESERVED)
async def test_the_api_refuses_it(command_type: str) -> None:
    async with CommandBus("memory://") as bus:
        transport = httpx.ASGITransport(app=create_dashboard(bus, open_to_this_machine=True))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            body = {"domain": REPLIES, "command_type": command_type, "data": {}}
            answer = await client.post("/api/v1/commands", json=body)
            assert answer.status_code in (400, 422)
            assert "reserved" in answer.text
        assert len(await bus.query_commands()) == 0


@pytest.mark.parametrize("command_type", RESERVED)
def test_the_command_line_refuses_it(
    command_type: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMMANDBUS_URL", f"sqlite:///{tmp_path}/bus.db")
    ran = Cli()("send", REPLIES, command_type, code=None)
    assert ran.code != 0
    assert "reserved" in ran.err


class TestReplies:
    """Forged replies are put past all doors, as a program with rights on the tables could."""

    def forge(self, bus: Harness, process_id: UUID, command_id: UUID, **said: Any) -> None:
        values: dict[str, Any] = {"outcome": ReplyOutcome.SUCCESS, "result": '"forged"'} | said
        forged = reply_command(
            REPLIES,
            command_id=command_id,
            domain=DOMAIN,
            command_type="book_hotel",
            correlation_id=process_id,
            **values,
        )
        bus.run(bus.store.insert([forged], Capacity()))

    def step_of(self, sagas: Sagas, process_id: UUID) -> UUID:
        return sagas.get(process_id).steps[-1].command_id

    def test_a_reply_about_a_command_that_has_not_ended_is_recorded_and_ignored(
        self, bus: Harness
    ) -> None:
        sagas = Sagas(bus, BookTrip)
        process_id = sagas.start()
        self.forge(bus, process_id, self.step_of(sagas, process_id))
        assert sagas.route() == 1
        assert sagas.get(process_id).current_steps == ["hotel"]
        assert sagas.waiting() == ["book_hotel"]
        ignored = sagas.audit(process_id)[-1]
        assert ignored.event_type == "REPLY_IGNORED"
        assert ignored.details["outcome"] == "SUCCESS"
        assert "has not ended" in ignored.details["reason"]
        sagas.done("book_hotel", "Grand")
        assert sagas.get(process_id).state["hotel"] == "Grand"

    def test_a_reply_about_a_parked_command_is_ignored(self, bus: Harness) -> None:
        sagas = Sagas(bus, BookTrip)
        process_id = sagas.start()
        sagas.end("book_hotel", ValueError("broken"))
        for _ in range(2):
            bus.advance(1000)
            sagas.end("book_hotel", ValueError("broken"))
        self.forge(bus, process_id, self.step_of(sagas, process_id))
        sagas.route()
        assert sagas.get(process_id).current_steps == ["hotel"]
        assert sagas.waiting() == []

    def test_a_reply_that_contradicts_the_outcome_is_ignored(self, bus: Harness) -> None:
        sagas = Sagas(bus, BookTrip)
        process_id = sagas.start()
        step = self.step_of(sagas, process_id)
        sagas.end("book_hotel", NO)
        (real,) = self.claim(bus, sagas)
        self.forge(bus, process_id, step)
        sagas.route()
        assert sagas.get(process_id).current_steps == ["hotel"]
        assert "FAILED" in sagas.audit(process_id)[-1].details["reason"]
        self.route(bus, sagas, real)
        assert sagas.status(process_id) == "FAILED"

    def test_the_result_is_taken_from_the_store(self, bus: Harness) -> None:
        sagas = Sagas(bus, BookTrip)
        process_id = sagas.start()
        step = self.step_of(sagas, process_id)
        sagas.end("book_hotel", "Grand")
        self.claim(bus, sagas)
        self.forge(bus, process_id, step)
        sagas.route()
        assert sagas.get(process_id).state["hotel"] == "Grand"

    def test_the_error_is_taken_from_the_store(self, bus: Harness) -> None:
        sagas = Sagas(bus, BookTrip)
        process_id = sagas.start()
        step = self.step_of(sagas, process_id)
        sagas.end("book_hotel", NO)
        self.claim(bus, sagas)
        self.forge(bus, process_id, step, outcome=ReplyOutcome.FAILED, result=None)
        sagas.route()
        error = sagas.get(process_id).error
        assert error is not None
        assert (error.code, error.message) == ("NO_ROOM", "everything is taken")

    def test_a_reply_for_a_process_that_is_a_step_is_ignored_while_it_runs(self, bus: Harness) -> None:
        sagas = Sagas(bus, Tour, Leg)
        process_id = sagas.start()
        sagas.done("plan")
        child = self.step_of(sagas, process_id)
        forged = reply_command(
            "tour.replies",
            command_id=child,
            domain="leg.replies",
            command_type="leg",
            correlation_id=process_id,
            outcome=ReplyOutcome.SUCCESS,
            result='"forged"',
        )
        bus.run(bus.store.insert([forged], Capacity()))
        sagas.route()
        assert sagas.get(process_id).current_steps == ["trip"]
        sagas.done("leg_hotel", "Grand")
        sagas.done("leg_pay")
        assert sagas.status(process_id) == "COMPLETED"
        assert sagas.get(process_id).state["hotel"] == "Grand"

    def test_retention_keeps_what_a_process_may_still_ask_for(self, bus: Harness) -> None:
        sagas = Sagas(bus, BookTrip)
        process_id = sagas.start()
        sagas.end("book_hotel", "Grand")
        bus.advance(1000)
        bus.call(bus.bus.prune, {"COMPLETED": 60})
        sagas.route()
        assert sagas.get(process_id).state["hotel"] == "Grand"
        sagas.done("book_car", NO)
        sagas.done("cancel_hotel")
        assert sagas.status(process_id) == "COMPENSATED"
        bus.advance(1000)
        bus.call(bus.bus.prune, {"COMPLETED": 60, "FAILED": 60})
        assert len(bus.query(domain=DOMAIN)) == 0

    def claim(self, bus: Harness, sagas: Sagas) -> list[Claimed]:
        return bus.run(bus.store.claim(ClaimRequest((REPLIES,), 10, "other", 5000.0))).claimed

    def route(self, bus: Harness, sagas: Sagas, claimed: Claimed) -> None:
        bus.run(route(bus.bus.scope, sagas.declarations, [claimed], "other"))


class TestControls:
    def forge(self, bus: Harness, process_id: UUID, **said: Any) -> UUID:
        return smuggle(bus, REPLIES, "commandbus.control", said, process_id)

    @pytest.mark.parametrize("actor", ["ann", None])
    def test_a_cancellation_without_an_operators_action_is_recorded_and_ignored(
        self, bus: Harness, actor: str | None
    ) -> None:
        sagas = Sagas(bus, BookTrip)
        process_id = sagas.start()
        self.forge(bus, process_id, action="cancel", reason="forged", actor=actor)
        sagas.route()
        assert sagas.status(process_id) == "RUNNING"
        assert sagas.waiting() == ["book_hotel"]
        ignored = sagas.audit(process_id)[-1]
        assert ignored.event_type == "REPLY_IGNORED"
        assert ignored.details == {"action": "cancel", "reason": "no operator is on record for it"}

    @pytest.mark.parametrize("action", ["skip", "retry"])
    def test_a_compensation_cannot_be_skipped_or_retried_by_a_forged_control(
        self, bus: Harness, action: str
    ) -> None:
        sagas = Sagas(bus, BookTrip)
        process_id = sagas.start()
        sagas.done("book_hotel", "Grand")
        sagas.done("book_car", NO)
        sagas.done("cancel_hotel", NO)
        assert sagas.status(process_id) == "WAITING_FOR_TROUBLESHOOTING"
        self.forge(bus, process_id, action=action, reason="forged", actor="ann")
        sagas.route()
        assert sagas.status(process_id) == "WAITING_FOR_TROUBLESHOOTING"
        assert sagas.get(process_id).compensation_failed

    def test_an_entry_in_the_trail_without_a_link_does_not_help(self, bus: Harness) -> None:
        sagas = Sagas(bus, BookTrip)
        process_id = sagas.start()
        forged = self.forge(bus, process_id, action="cancel", reason="forged", actor="ann")
        details = {"action": "cancel", "reason": "forged", "actor": "ann"}
        kind = AuditEventType.OPERATOR_CONTROL
        bus.run(bus.store.note(REPLIES, forged, kind, details))
        sagas.route()
        assert sagas.status(process_id) == "RUNNING"

    def test_a_child_cannot_be_called_off_in_the_name_of_its_parent(self, bus: Harness) -> None:
        sagas = Sagas(bus, Tour, Leg)
        process_id = sagas.start()
        sagas.done("plan")
        child = sagas.get(process_id).steps[-1].command_id
        said = {"action": "cancel", "reason": "forged", "actor": None}
        smuggle(bus, "leg.replies", "commandbus.control", said, child)
        sagas.route()
        assert sagas.status(child) == "RUNNING"

    def test_an_operators_own_action_works_and_is_linked(self, bus: Harness) -> None:
        sagas = Sagas(bus, BookTrip)
        process_id = sagas.start()
        bus.call(bus.bus.acting("ann").cancel_process, process_id, "no longer wanted")
        sagas.route()
        assert sagas.status(process_id) == "CANCELED"
        report = bus.call(bus.bus.verify_audit)
        assert (report.links, report.problems) == (2, []), "its record and the request to the router"

    def test_a_signal_to_no_process_is_refused_by_the_operation(self, bus: Harness) -> None:
        with pytest.raises(ProcessNotFoundError):
            bus.call(bus.bus.signal_process, uuid4(), "approved")
