"""The audit trail: complete and in order, on every path that a command can take."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from commandbus.domain.audit import AuditEvent
from commandbus.errors import (
    BusinessRuleException,
    DuplicateCommandError,
    InvalidOperationError,
    Snooze,
)
from commandbus.testing.conformance.helpers import AT_ONCE, crash, park
from commandbus.testing.harness import DOMAIN, Harness

PARKED_TRAIL = ["SENT", "RECEIVED", "MOVED_TO_TSQ"]


def code_of(event: AuditEvent) -> str:
    """The code of an event's error, in whatever form the engine keeps it."""
    error: Any = event.details["error"]
    return str(error["code"] if isinstance(error, dict) else error.code)


class AuditSuite:
    def test_an_unknown_command_has_no_trail(self, bus: Harness) -> None:
        assert bus.trail(uuid4()) == []

    def test_a_waiting_command_was_sent(self, bus: Harness) -> None:
        assert bus.kinds(bus.send()) == ["SENT"]

    def test_the_first_event_says_what_was_sent(self, bus: Harness) -> None:
        cause, whole = uuid4(), uuid4()
        command_id = bus.send(
            causation_id=cause, correlation_id=whole, reply_to="billing", priority="high"
        )
        (event,) = bus.trail(command_id)
        assert (event.domain, event.command_id) == (DOMAIN, command_id)
        assert event.timestamp == bus.get(command_id).created_at
        assert event.details == {
            "command_type": "ship",
            "correlation_id": str(whole),
            "causation_id": str(cause),
            "reply_to": "billing",
            "priority": 0,
            "headers": {},
        }

    def test_a_running_command_was_received(self, bus: Harness) -> None:
        command_id, worker = bus.send(), bus.worker()
        bus.take(worker)
        assert bus.kinds(command_id) == ["SENT", "RECEIVED"]
        received = bus.trail(command_id)[1]
        assert (received.details["attempt"], received.details["worker"]) == (1, worker.name)

    def test_a_completed_command(self, bus: Harness) -> None:
        command_id, worker = bus.send(), bus.worker()
        bus.call(worker.complete, bus.take(worker))
        assert bus.kinds(command_id) == ["SENT", "RECEIVED", "COMPLETED"]
        assert bus.trail(command_id)[2].details["worker"] == worker.name

    def test_a_retried_command(self, bus: Harness) -> None:
        command_id, worker = bus.send(), bus.worker()
        bus.call(worker.fail, bus.take(worker), ValueError("x"))
        bus.advance(11)
        bus.call(worker.complete, bus.take(worker))
        events = bus.trail(command_id)
        assert [event.event_type for event in events] == [
            "SENT",
            "RECEIVED",
            "FAILED",
            "RETRY_SCHEDULED",
            "RECEIVED",
            "COMPLETED",
        ]
        assert code_of(events[2]) == "ValueError"
        assert [events[n].details["attempt"] for n in (1, 2, 3, 4, 5)] == [1, 1, 1, 2, 2]

    def test_a_retry_says_when_it_is_due(self, bus: Harness) -> None:
        command_id, worker = bus.send(), bus.worker()
        bus.call(worker.fail, bus.take(worker), "busy")
        planned = bus.trail(command_id)[-1]
        assert planned.details["due_at"] == bus.get(command_id).due_at.isoformat()

    def test_an_exhausted_command(self, bus: Harness) -> None:
        command_id, worker = bus.send(max_attempts=2), bus.worker(retry_policy=AT_ONCE)
        for _ in range(2):
            bus.call(worker.fail, bus.take(worker), "busy")
        assert bus.kinds(command_id) == [
            "SENT",
            "RECEIVED",
            "FAILED",
            "RETRY_SCHEDULED",
            "RECEIVED",
            "MOVED_TO_TSQ",
        ]
        assert bus.trail(command_id)[-1].details["reason"] == "EXHAUSTED"

    def test_a_command_that_failed_for_good(self, bus: Harness) -> None:
        command_id = park(bus)
        assert bus.kinds(command_id) == PARKED_TRAIL
        last = bus.trail(command_id)[-1]
        assert (last.details["reason"], code_of(last)) == ("PERMANENT", "BROKEN")

    def test_a_command_that_the_business_rejected(self, bus: Harness) -> None:
        command_id, worker = bus.send(), bus.worker()
        bus.call(worker.fail, bus.take(worker), BusinessRuleException("SOLD_OUT"))
        assert bus.kinds(command_id) == ["SENT", "RECEIVED", "BUSINESS_RULE_FAILED"]
        assert code_of(bus.trail(command_id)[-1]) == "SOLD_OUT"

    def test_a_released_command(self, bus: Harness) -> None:
        command_id, worker = bus.send(), bus.worker()
        bus.call(worker.release, bus.take(worker))
        assert bus.kinds(command_id) == ["SENT", "RECEIVED", "RELEASED"]

    def test_a_snoozed_command_says_why(self, bus: Harness) -> None:
        command_id, worker = bus.send(), bus.worker()
        bus.call(worker.fail, bus.take(worker), Snooze(60, "not open yet"))
        assert bus.kinds(command_id) == ["SENT", "RECEIVED", "RELEASED"]
        last = bus.trail(command_id)[-1]
        assert "not open yet" in last.details["reason"]
        assert last.details["retry_in"] == 60

    def test_a_canceled_command(self, bus: Harness) -> None:
        command_id = bus.send()
        bus.acting("ada").cancel(command_id, "customer left")
        assert bus.kinds(command_id) == ["SENT", "CANCELED"]
        assert bus.trail(command_id)[-1].details == {"reason": "customer left", "actor": "ada"}

    def test_an_expired_command(self, bus: Harness) -> None:
        command_id = bus.send(expires_at=bus.now + timedelta(seconds=5))
        bus.advance(6)
        bus.receive(bus.worker())
        assert bus.kinds(command_id) == ["SENT", "EXPIRED"]

    def test_a_command_whose_worker_died(self, bus: Harness) -> None:
        command_id = bus.send()
        crash(bus)
        worker = bus.worker()
        bus.call(worker.complete, bus.take(worker))
        kinds = ["SENT", "RECEIVED", "WORKER_LOST", "RECEIVED", "COMPLETED"]
        assert bus.kinds(command_id) == kinds
        lost = bus.trail(command_id)[2]
        assert (lost.details["attempt"], lost.details["crashes"]) == (1, 1)
        assert lost.details["worker"].startswith("doomed")

    def test_a_command_that_killed_its_workers(self, bus: Harness) -> None:
        command_id = bus.send()
        for _ in range(3):
            crash(bus)
        bus.receive(bus.worker())
        assert bus.kinds(command_id) == [
            "SENT",
            *["RECEIVED", "WORKER_LOST"] * 3,
            "MOVED_TO_TSQ",
        ]
        assert bus.trail(command_id)[-1].details["reason"] == "WORKER_LOST"

    def test_a_command_that_an_operator_retried(self, bus: Harness) -> None:
        command_id, worker = park(bus, data=[1]), bus.worker()
        bus.acting("ada").operator_retry(command_id, reason="fixed", data=[2])
        bus.call(worker.complete, bus.take(worker))
        kinds = [*PARKED_TRAIL, "OPERATOR_RETRY", "RECEIVED", "COMPLETED"]
        assert bus.kinds(command_id) == kinds
        assert bus.trail(command_id)[3].details == {
            "actor": "ada",
            "reason": "fixed",
            "original_data": [1],
            "edited_data": [2],
        }

    def test_a_command_that_an_operator_canceled(self, bus: Harness) -> None:
        command_id = park(bus)
        bus.acting("ada").operator_cancel(command_id, "no use")
        assert bus.kinds(command_id) == [*PARKED_TRAIL, "OPERATOR_CANCEL"]
        assert bus.trail(command_id)[-1].details == {"actor": "ada", "reason": "no use"}

    def test_a_command_that_an_operator_completed(self, bus: Harness) -> None:
        command_id = park(bus)
        bus.acting("ada").operator_complete(command_id, {"n": 1})
        assert bus.kinds(command_id) == [*PARKED_TRAIL, "OPERATOR_COMPLETE"]
        assert bus.trail(command_id)[-1].details == {"actor": "ada", "result": {"n": 1}}

    def test_refused_actions_leave_no_trace(self, bus: Harness) -> None:
        command_id, worker = bus.send(), bus.worker()
        taken = bus.take(worker)
        before = bus.kinds(command_id)
        with pytest.raises(InvalidOperationError):
            bus.operator_retry(command_id)
        with pytest.raises(DuplicateCommandError):
            bus.send(command_id=command_id)
        assert bus.kinds(command_id) == before
        bus.call(worker.complete, taken)
        before = bus.kinds(command_id)
        with pytest.raises(InvalidOperationError):
            bus.cancel(command_id)
        assert bus.kinds(command_id) == before

    def test_the_order_is_the_order_of_time(self, bus: Harness) -> None:
        command_id, worker = bus.send(), bus.worker()
        bus.advance(5)
        bus.call(worker.fail, bus.take(worker), "busy")
        bus.advance(15)
        taken = bus.take(worker)
        bus.advance(5)
        bus.call(worker.release, taken, 10)
        bus.advance(15)
        bus.call(worker.fail, bus.take(worker), "no", is_transient=False)
        bus.advance(5)
        bus.operator_retry(command_id)
        bus.advance(5)
        bus.call(worker.complete, bus.take(worker))
        times = [event.timestamp for event in bus.trail(command_id)]
        assert times == sorted(times)
        assert times[-1] - times[0] >= timedelta(seconds=50)

    def test_a_trail_may_be_asked_for_one_domain(self, bus: Harness) -> None:
        command_id = bus.send("orders")
        bus.send("billing", command_id=command_id)
        assert [event.domain for event in bus.trail(command_id)] == ["orders", "billing"]
        assert [event.domain for event in bus.trail(command_id, "billing")] == ["billing"]
