"""Canceling: what waits is called off, what runs is asked to stop, what has ended stays."""

from __future__ import annotations

import asyncio
import threading
from typing import Any
from uuid import uuid4

import pytest

from commandbus.domain.audit import AuditEventType
from commandbus.domain.lifecycle import Cancellation, CommandStatus
from commandbus.errors import (
    BusinessRuleException,
    CommandCanceled,
    CommandNotFoundError,
    InvalidOperationError,
    PermanentCommandError,
)
from commandbus.store.sessions import CANCELLATIONS
from commandbus.testing.conformance.helpers import AT_ONCE, about, complete, park, together
from commandbus.testing.harness import Harness
from commandbus.testing.waiting import eventually
from commandbus.worker.handlers import HandlerRegistry


class CancelingSuite:
    def test_a_waiting_command_is_called_off(self, bus: Harness) -> None:
        command_id = bus.send()
        bus.cancel(command_id, "customer left")
        record = bus.get(command_id)
        assert (record.status, record.reason) == (CommandStatus.CANCELED, "customer left")
        assert bus.seconds_until(record.finished_at) == about(0)
        assert bus.receive(bus.worker()) == []

    def test_a_delayed_command_is_called_off(self, bus: Harness) -> None:
        command_id = bus.send(delay=60)
        bus.cancel(command_id)
        bus.advance(61)
        assert bus.receive(bus.worker()) == []
        assert bus.get(command_id).status is CommandStatus.CANCELED

    def test_a_retry_is_called_off_with_its_attempts(self, bus: Harness) -> None:
        command_id, worker = bus.send(), bus.worker()
        bus.call(worker.fail, bus.take(worker), "busy")
        bus.cancel(command_id)
        bus.advance(60)
        assert bus.receive(worker) == []
        record = bus.get(command_id)
        assert (record.status, record.attempts) == (CommandStatus.CANCELED, 1)

    def test_only_the_named_command_is_called_off(self, bus: Harness) -> None:
        first, second = bus.send(), bus.send()
        bus.cancel(first)
        assert bus.take(bus.worker()).command.command_id == second

    def test_a_running_command_is_asked_to_stop_and_may_complete(self, bus: Harness) -> None:
        command_id, worker = bus.send(), bus.worker()
        taken = bus.take(worker)
        assert bus.cancel(command_id) is Cancellation.STOP_REQUESTED
        assert bus.get(command_id).status is CommandStatus.IN_PROGRESS
        asked = bus.trail(command_id)[-1]
        assert asked.event_type is AuditEventType.CANCEL_REQUESTED
        reasons = bus.call(bus.bus.why, command_id).reasons
        assert [reason.code for reason in reasons] == ["RUNNING", "CANCEL_REQUESTED"]
        bus.call(worker.complete, taken)
        assert bus.get(command_id).status is CommandStatus.COMPLETED

    def test_of_several_requests_to_terminate_the_first_one_counts(self, bus: Harness) -> None:
        command_id = bus.send()
        bus.take(bus.worker())
        for actor in ("ann", "ben"):
            bus.call(bus.bus.acting(actor).cancel, command_id, reason="wrong", terminate=True)
        asked = [e for e in bus.trail(command_id) if e.event_type is AuditEventType.CANCEL_REQUESTED]
        assert [event.details["by"] for event in asked] == ["ann"]

    @pytest.mark.parametrize("timeout", [None, 30])
    def test_a_running_async_handler_is_canceled(self, bus: Harness, timeout: float | None) -> None:
        began, ended, registry = threading.Event(), threading.Event(), HandlerRegistry()

        @registry.handler("orders", "ship", timeout=timeout)
        async def ship(command: Any, context: Any) -> None:
            began.set()
            try:
                await asyncio.sleep(60)
            finally:
                assert context.canceled
                ended.set()

        with bus.run_worker(registry):
            command_id = bus.send(reply_to="replies")
            assert began.wait(10)
            bus.acting("ann").cancel(command_id, "customer left")
            record = bus.wait(command_id)
            assert (record.status, record.reason) == (CommandStatus.CANCELED, "customer left")
            assert ended.wait(10)
            assert bus.trail(command_id)[-1].details["actor"] == "ann"
            reply = bus.take(bus.worker("replies")).command.data
            assert (reply["outcome"], reply["reason"]) == ("CANCELED", "customer left")

    def test_a_running_def_handler_sees_the_request_and_gives_way(self, bus: Harness) -> None:
        began, registry = threading.Event(), HandlerRegistry()

        @registry.handler("orders", "ship")
        def ship(command: Any, context: Any) -> None:
            began.set()
            eventually(lambda: context.canceled)
            context.raise_if_canceled()

        with bus.run_worker(registry):
            command_id = bus.send()
            assert began.wait(10)
            bus.cancel(command_id, "customer left")
            record = bus.wait(command_id)
            assert (record.status, record.reason) == (CommandStatus.CANCELED, "customer left")
            # Slots go on as before.
            second = bus.send()
            eventually(lambda: bus.get(second).status is CommandStatus.IN_PROGRESS)
            bus.cancel(second)
            assert bus.wait(second).status is CommandStatus.CANCELED

    def test_a_handler_that_completes_nevertheless_has_completed(self, bus: Harness) -> None:
        began, registry = threading.Event(), HandlerRegistry()

        @registry.handler("orders", "ship")
        async def ship(command: Any, context: Any) -> str:
            began.set()
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                return "too late"
            return "never"

        with bus.run_worker(registry, concurrency=1):
            for _ in range(2):
                command_id = bus.send()
                assert began.wait(10)
                began.clear()
                bus.cancel(command_id)
                record = bus.wait(command_id)
                assert (record.status, record.result) == (CommandStatus.COMPLETED, "too late")

    def test_a_failed_attempt_of_a_command_that_is_to_stop_is_not_repeated(self, bus: Harness) -> None:
        began, registry = threading.Event(), HandlerRegistry()

        @registry.handler("orders", "ship")
        def ship(command: Any, context: Any) -> None:
            began.set()
            eventually(lambda: context.canceled)
            raise ValueError("busy")

        with bus.run_worker(registry, retry_policy=AT_ONCE):
            command_id = bus.send()
            assert began.wait(10)
            bus.cancel(command_id, "customer left")
            assert bus.wait(command_id).status is CommandStatus.CANCELED

    def test_an_operator_may_try_again_what_was_to_be_canceled(self, bus: Harness) -> None:
        began, registry = threading.Event(), HandlerRegistry()

        @registry.handler("orders", "ship")
        def ship(command: Any, context: Any) -> str:
            if command.data == "mended":
                return "done"
            began.set()
            eventually(lambda: context.canceled)
            raise PermanentCommandError("BROKEN")

        with bus.run_worker(registry):
            command_id = bus.send()
            assert began.wait(10)
            bus.cancel(command_id)
            assert bus.wait(command_id).status is CommandStatus.IN_TROUBLESHOOTING_QUEUE
            bus.call(bus.troubleshooting.operator_retry, command_id, data="mended")
            assert bus.wait(command_id).result == "done"
        assert bus.run(bus.store.list_documents("cancellation")) == []

    def test_workers_hear_at_once_that_an_operators_retry_has_withdrawn_a_request(
        self, bus: Harness
    ) -> None:
        command_id, worker = bus.send(), bus.worker()
        taken = bus.take(worker)
        bus.cancel(command_id)
        bus.call(worker.fail, taken, PermanentCommandError("BROKEN"))
        heard: list[str] = []
        stop = bus.bus.hub.subscribe(CANCELLATIONS, lambda: heard.append("news"))
        bus.call(bus.troubleshooting.operator_retry, command_id)
        stop()
        assert heard

    def test_a_request_outlives_the_worker_that_ran_the_command(self, bus: Harness) -> None:
        command_id, registry, runs = bus.send(), HandlerRegistry(), []
        registry.register("orders", "ship", lambda command, context: runs.append(1))
        bus.take(bus.worker(name="doomed"), visibility_timeout=30)
        bus.cancel(command_id, "customer left")
        bus.advance(31)
        worker = bus.worker()
        bus.call(worker.release, bus.take(worker), 3600)
        with bus.run_worker(registry):
            record = bus.wait(command_id)
        assert (record.status, record.reason, runs) == (CommandStatus.CANCELED, "customer left", [])

    def test_a_request_is_forgotten_when_the_command_has_ended(self, bus: Harness) -> None:
        command_id, worker, registry = bus.send(), bus.worker(), HandlerRegistry()
        taken = bus.take(worker)
        bus.cancel(command_id)
        bus.call(worker.complete, taken)
        registry.register("orders", "ship", lambda command, context: None)
        with bus.run_worker(registry):
            eventually(lambda: not bus.run(bus.store.list_documents("cancellation")))
        assert bus.get(command_id).status is CommandStatus.COMPLETED

    def test_a_handler_may_cancel_its_own_command(self, bus: Harness) -> None:
        registry = HandlerRegistry()

        @registry.handler("orders", "ship")
        def ship(command: Any, context: Any) -> None:
            raise CommandCanceled("nothing to do")

        with bus.run_worker(registry):
            record = bus.wait(bus.send())
        assert (record.status, record.reason) == (CommandStatus.CANCELED, "nothing to do")

    def test_a_completed_command_stays_completed(self, bus: Harness) -> None:
        command_id = complete(bus)
        with pytest.raises(InvalidOperationError, match=r"COMPLETED.*final"):
            bus.cancel(command_id)
        assert bus.get(command_id).status is CommandStatus.COMPLETED

    def test_a_failed_command_stays_failed(self, bus: Harness) -> None:
        command_id, worker = bus.send(), bus.worker()
        bus.call(worker.fail, bus.take(worker), BusinessRuleException("NO"))
        with pytest.raises(InvalidOperationError, match="FAILED"):
            bus.cancel(command_id)
        assert bus.get(command_id).status is CommandStatus.FAILED

    def test_a_canceled_command_keeps_its_first_reason(self, bus: Harness) -> None:
        command_id = bus.send()
        bus.cancel(command_id, "first")
        with pytest.raises(InvalidOperationError, match="CANCELED"):
            bus.cancel(command_id, "second")
        assert bus.get(command_id).reason == "first"

    def test_a_parked_command_ends_at_once(self, bus: Harness) -> None:
        command_id = park(bus, reply_to="answers")
        assert bus.acting("ann").cancel(command_id, "not needed") is Cancellation.CANCELED_PARKED
        record = bus.get(command_id)
        assert (record.status, record.reason) == (CommandStatus.CANCELED, "not needed")
        assert bus.stats().parked == 0
        assert bus.trail(command_id)[-1].details["actor"] == "ann"
        assert bus.take(bus.worker("answers")).command.causation_id == command_id
        with pytest.raises(InvalidOperationError, match=r"CANCELED.*final"):
            bus.cancel(command_id)

    def test_an_id_alone_or_what_a_send_returned_finds_the_command(self, bus: Harness) -> None:
        sent = bus.send_result("orders", "ship")
        for one in (sent.command_id, str(bus.send()), bus.send_result("orders", "ship")):
            assert bus.call(bus.bus.cancel, one) is Cancellation.CANCELED
        assert bus.get(sent.command_id).reason == "canceled by program"
        bus.send("billing", command_id=sent.command_id)
        with pytest.raises(InvalidOperationError, match="Several domains"):
            bus.call(bus.bus.cancel, sent.command_id)

    def test_an_unknown_command_is_not_found(self, bus: Harness) -> None:
        missing = uuid4()
        with pytest.raises(CommandNotFoundError, match=str(missing)):
            bus.cancel(missing)

    def test_a_command_is_called_off_in_its_own_domain_only(self, bus: Harness) -> None:
        command_id = bus.send("orders")
        with pytest.raises(CommandNotFoundError, match="billing"):
            bus.cancel(command_id, domain="billing")
        assert bus.get(command_id).status is CommandStatus.PENDING

    def test_either_the_canceller_or_the_claimer_gets_it(self, bus: Harness) -> None:
        worker, ids = bus.worker(), [bus.send() for _ in range(20)]
        claimed: list[object] = []

        def race(number: int) -> None:
            if number == 0:
                claimed.extend(one.command.command_id for _ in ids for one in bus.receive(worker))
                return
            for command_id in reversed(ids):
                try:
                    bus.cancel(command_id)
                except InvalidOperationError:
                    continue

        assert together(2, race) == [None, None]
        statuses = {command_id: bus.get(command_id).status for command_id in ids}
        assert {c for c, s in statuses.items() if s is CommandStatus.IN_PROGRESS} == set(claimed)
        assert set(statuses.values()) <= {CommandStatus.IN_PROGRESS, CommandStatus.CANCELED}
