"""Replies: what the sender of a command gets at its end."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from commandbus.domain.command import Command
from commandbus.domain.lifecycle import CommandStatus, ReplyOutcome
from commandbus.domain.reply import REPLY_TYPE, Reply
from commandbus.errors import BusinessRuleException, LeaseLost, PermanentCommandError, Snooze
from commandbus.testing.conformance.helpers import park, registry_of
from commandbus.testing.harness import DOMAIN, Harness

REPLIES = "orders__replies"


def replies(bus: Harness) -> list[Any]:
    """The payloads of all replies that wait."""
    page = bus.query(domain=REPLIES)
    assert all(record.command_type == REPLY_TYPE for record in page)
    return [record.data for record in page]


def take(bus: Harness, **options: Any) -> tuple[Any, Any, UUID]:
    command_id = bus.send(DOMAIN, "ship", {"n": 1}, reply_to=REPLIES, **options)
    worker = bus.worker()
    return worker, bus.take(worker), command_id


class ReplySuite:
    def test_a_completed_command_replies_with_its_result(self, bus: Harness) -> None:
        worker, received, command_id = take(bus)
        bus.call(worker.complete, received, {"shipped": True})
        (reply,) = replies(bus)
        assert reply["outcome"] == ReplyOutcome.SUCCESS
        assert reply["result"] == {"shipped": True}
        assert reply["command_id"] == str(command_id)

    def test_a_reply_carries_correlation_and_causation(self, bus: Harness) -> None:
        correlation = bus.send()
        worker = bus.worker()
        bus.call(worker.complete, bus.take(worker))
        worker, received, command_id = take(bus, correlation_id=correlation)
        bus.call(worker.complete, received)
        (record,) = bus.query(domain=REPLIES)
        assert (record.correlation_id, record.causation_id) == (correlation, command_id)

    def test_a_business_refusal_replies_with_its_error_at_the_top_level(self, bus: Harness) -> None:
        worker, received, _ = take(bus)
        bus.call(worker.fail, received, BusinessRuleException("NO_STOCK", "sold out", {"left": 0}))
        (reply,) = replies(bus)
        assert (reply["outcome"], reply["error_code"]) == (ReplyOutcome.FAILED, "NO_STOCK")
        assert (reply["error_message"], reply["error_details"]) == ("sold out", {"left": 0})

    @pytest.mark.parametrize("error", [ValueError("later"), PermanentCommandError("NEVER"), Snooze(5)])
    def test_nothing_is_replied_while_a_command_has_not_ended(
        self, bus: Harness, error: BaseException
    ) -> None:
        worker, received, _ = take(bus)
        bus.call(worker.fail, received, error)
        assert replies(bus) == []

    def test_a_refused_settle_replies_nothing(self, bus: Harness) -> None:
        worker, received, _ = take(bus)
        bus.advance(60)
        with pytest.raises(LeaseLost):
            bus.call(worker.complete, received)
        assert replies(bus) == []

    def test_a_canceled_command_replies_with_the_reason(self, bus: Harness) -> None:
        command_id = bus.send(DOMAIN, "ship", None, reply_to=REPLIES)
        bus.cancel(command_id, "not wanted")
        (reply,) = replies(bus)
        assert (reply["outcome"], reply["reason"]) == (ReplyOutcome.CANCELED, "not wanted")

    def test_an_expired_command_replies_that_it_was_canceled(self, bus: Harness) -> None:
        bus.send(DOMAIN, "ship", None, reply_to=REPLIES, expires_at=bus.now + timedelta(seconds=5))
        bus.advance(6)
        assert bus.receive(bus.worker()) == []
        (reply,) = replies(bus)
        assert (reply["outcome"], reply["reason"]) == (ReplyOutcome.CANCELED, "EXPIRED")

    def test_an_operator_who_completes_replies_with_the_result(self, bus: Harness) -> None:
        command_id = park(bus, reply_to=REPLIES)
        bus.operator_complete(command_id, {"by": "hand"})
        (reply,) = replies(bus)
        assert (reply["outcome"], reply["result"]) == (ReplyOutcome.SUCCESS, {"by": "hand"})

    def test_an_operator_who_cancels_replies_with_the_reason(self, bus: Harness) -> None:
        command_id = park(bus, reply_to=REPLIES)
        bus.operator_cancel(command_id, "hopeless")
        (reply,) = replies(bus)
        assert (reply["outcome"], reply["reason"]) == (ReplyOutcome.CANCELED, "hopeless")

    def test_an_operator_who_retries_replies_nothing(self, bus: Harness) -> None:
        bus.operator_retry(park(bus, reply_to=REPLIES))
        assert replies(bus) == []

    def test_a_handler_gets_replies_typed(self, bus: Harness) -> None:
        seen: list[Reply] = []

        def on_reply(command: Command[Reply], context: Any) -> None:
            seen.append(command.data)

        registry = registry_of(ship=lambda command, context: 42)
        registry.register(REPLIES, REPLY_TYPE, on_reply)
        with bus.run_worker(registry, [DOMAIN, REPLIES]) as running:
            command_id = bus.send(DOMAIN, "ship", None, reply_to=REPLIES)
            bus.wait(command_id)
            (record,) = bus.query(domain=REPLIES)
            bus.wait(record.command_id)
            running.wait_until_idle()
        (reply,) = seen
        assert (reply.command_id, reply.outcome, reply.result) == (
            command_id,
            ReplyOutcome.SUCCESS,
            42,
        )

    def test_request_sends_and_waits_for_the_answer(self, bus: Harness) -> None:
        with bus.run_worker(registry_of(ship=lambda command, context: command.data * 2)):
            reply = bus.call(bus.bus.request, DOMAIN, "ship", 21, timeout=10)
        assert (reply.outcome, reply.result) == (ReplyOutcome.SUCCESS, 42)

    def test_request_tells_a_refusal(self, bus: Harness) -> None:
        def refuse(command: Any, context: Any) -> None:
            raise BusinessRuleException("NO", "not today")

        with bus.run_worker(registry_of(ship=refuse)):
            reply = bus.call(bus.bus.request, DOMAIN, "ship", timeout=10)
        assert (reply.outcome, reply.error_code) == (ReplyOutcome.FAILED, "NO")

    def test_request_times_out_and_the_command_goes_on(self, bus: Harness) -> None:
        with pytest.raises(TimeoutError, match="still PENDING"):
            bus.call(bus.bus.request, DOMAIN, "ship", timeout=0.01)
        (record,) = bus.query(domain=DOMAIN)
        assert record.status is CommandStatus.PENDING
