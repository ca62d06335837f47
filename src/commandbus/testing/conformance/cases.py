"""Cases: comments on a parked command, its assignee, and escalation."""

from __future__ import annotations

from uuid import uuid4

import pytest

from commandbus.errors import CommandNotFoundError, InvalidArgumentError, InvalidOperationError
from commandbus.operations.parked_notes import ESCALATION, escalate, forget_cases
from commandbus.testing.conformance.fixtures import OpenBus
from commandbus.testing.conformance.helpers import park, registry_of, together
from commandbus.testing.handlers import Recorder
from commandbus.testing.harness import DOMAIN, Harness
from commandbus.testing.waiting import eventually

HOUR = 3600.0


def look(bus: Harness, send_to: str | None = None) -> int:
    """How many were escalated by one look, as a worker does it."""
    bus.advance(61)
    overdue, _ = bus.run(escalate(bus.bus.scope, HOUR, send_to, 60.0))
    return len(overdue)


class CasesSuite:
    def test_comments_are_kept_in_the_trail_and_the_last_one_in_the_list(self, bus: Harness) -> None:
        command_id, desk = park(bus), bus.troubleshooting
        bus.call(desk.acting("ann").comment, command_id, "asked the bank")
        bus.call(desk.acting("ben").comment, command_id, "they call back")
        said = [e.details for e in bus.trail(command_id) if e.event_type == "COMMENTED"]
        assert said == [
            {"actor": "ann", "text": "asked the bank"},
            {"actor": "ben", "text": "they call back"},
        ]
        (case,) = bus.call(desk.list_cases, bus.call(desk.list_troubleshooting))
        assert (case.comments, case.comment, case.commented_by) == (2, "they call back", "ben")

    def test_of_many_comments_at_once_none_is_lost(self, bus: Harness) -> None:
        command_id, desk = park(bus), bus.troubleshooting
        results = together(5, lambda n: bus.call(desk.comment, command_id, f"number {n}"))
        assert results == [None] * 5
        (case,) = bus.call(desk.list_cases, bus.call(desk.list_troubleshooting))
        assert case.comments == bus.kinds(command_id).count("COMMENTED") == 5

    def test_a_parked_command_is_assigned_and_found_by_its_assignee(self, bus: Harness) -> None:
        first, second = park(bus), park(bus)
        desk = bus.troubleshooting
        bus.call(desk.acting("ben").assign, first, "ann")
        bus.call(desk.acting("ben").assign, second, "ben")
        assert [r.command_id for r in bus.call(desk.list_assigned, "ann")] == [first]
        cases = bus.call(desk.list_cases, bus.call(desk.list_troubleshooting))
        assert [case.assignee for case in cases] == ["ben", "ann"]
        bus.call(desk.acting("ann").assign, first, None)
        assert not bus.call(desk.list_assigned, "ann")

    def test_a_resolved_command_has_no_assignee(self, bus: Harness) -> None:
        command_id, desk = park(bus), bus.troubleshooting
        bus.call(desk.assign, command_id, "ann")
        bus.operator_cancel(command_id)
        assert not bus.call(desk.list_assigned, "ann")
        with pytest.raises(InvalidOperationError, match="CANCELED"):
            bus.call(desk.assign, command_id, "ben")
        assert bus.kinds(command_id).count("ASSIGNED") == 1

    def test_the_commands_of_an_assignee_come_in_pages(self, bus: Harness) -> None:
        desk, parked = bus.troubleshooting, [park(bus) for _ in range(4)]
        for command_id in parked:
            bus.call(desk.assign, command_id, "ann")
        bus.operator_cancel(parked.pop())
        first = bus.call(desk.list_assigned, "ann", limit=2)
        rest = bus.call(desk.list_assigned, "ann", after=first.next, limit=2)
        assert (len(first), len(rest), rest.next) == (2, 1, None)
        assert {record.command_id for record in (*first, *rest)} == set(parked)

    def test_an_unknown_command_has_no_case(self, bus: Harness) -> None:
        desk = bus.troubleshooting
        for step in (desk.comment, desk.assign):
            with pytest.raises(CommandNotFoundError):
                bus.call(step, uuid4(), "ann")
        with pytest.raises(InvalidArgumentError):
            bus.call(desk.comment, park(bus), "")

    def test_an_unresolved_command_is_escalated_once(self, bus: Harness) -> None:
        command_id = park(bus)
        assert look(bus) == 0
        bus.advance(HOUR)
        assert [look(bus), look(bus)] == [1, 0]
        assert bus.kinds(command_id)[-1] == "ESCALATED"
        desk = bus.troubleshooting
        (case,) = bus.call(desk.list_cases, bus.call(desk.list_troubleshooting))
        assert case.escalated_at is not None

    def test_the_next_look_is_due_after_the_pause(self, bus: Harness) -> None:
        park(bus)
        waits = [bus.run(escalate(bus.bus.scope, HOUR, None, 60.0))[1]]
        bus.advance(20)
        waits.append(bus.run(escalate(bus.bus.scope, HOUR, None, 60.0))[1])
        assert waits == [60.0, pytest.approx(40, abs=5)]

    def test_of_a_fleet_that_looks_at_once_one_escalates(self, bus: Harness) -> None:
        command_id = park(bus)
        bus.advance(HOUR + 1)
        found = together(6, lambda _: bus.run(escalate(bus.bus.scope, HOUR, "ops", 60.0)))
        escalated: list[int] = []
        for result in found:
            assert not isinstance(result, BaseException), result
            escalated.append(len(result[0]))
        assert sorted(escalated) == [0, 0, 0, 0, 0, 1]
        assert bus.kinds(command_id).count("ESCALATED") == 1
        assert len(bus.query(domain="ops")) == 1

    def test_a_command_that_is_resolved_or_parked_again_has_its_time_again(self, bus: Harness) -> None:
        resolved, again = park(bus), park(bus)
        bus.advance(HOUR / 2)
        bus.operator_retry(again)
        worker = bus.worker()
        bus.call(worker.fail, bus.take(worker), "again", is_transient=False)
        bus.operator_cancel(resolved)
        bus.advance(HOUR / 2)
        assert look(bus) == 0
        bus.advance(HOUR / 2)
        assert look(bus) == 1
        assert bus.kinds(again)[-1] == "ESCALATED"

    def test_a_domain_of_choice_gets_the_escalation(self, bus: Harness) -> None:
        command_id = park(bus)
        bus.advance(HOUR)
        assert look(bus, "ops") == 1
        (escalation,) = bus.query(domain="ops")
        assert (escalation.command_type, escalation.causation_id) == (ESCALATION, command_id)
        assert escalation.data["command_id"] == str(command_id)
        assert (escalation.data["domain"], escalation.data["error_code"]) == (DOMAIN, "BROKEN")

    def test_a_worker_escalates_where_it_is_configured(self, open_bus: OpenBus) -> None:
        bus = open_bus(escalate_after=HOUR, escalate_to="ops")
        command_id = park(bus)
        bus.advance(HOUR + 1)
        with bus.run_worker(registry_of(ship=Recorder())):
            eventually(lambda: "ESCALATED" in bus.kinds(command_id))
        assert len(bus.query(domain="ops")) == 1

    def test_cases_of_commands_that_are_over_are_forgotten(self, bus: Harness) -> None:
        over, open_ = park(bus), park(bus)
        desk = bus.troubleshooting
        for command_id in (over, open_):
            bus.call(desk.assign, command_id, "ann")
        bus.operator_cancel(over)
        bus.advance(29 * 86_400)
        assert bus.run(forget_cases(bus.bus.scope)) == 0
        bus.advance(2 * 86_400)
        assert bus.run(forget_cases(bus.bus.scope)) == 1
        assert bus.run(forget_cases(bus.bus.scope)) == 0
        assert [r.command_id for r in bus.call(desk.list_assigned, "ann")] == [open_]
