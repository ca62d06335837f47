"""Cancelling: what waits may be called off, what runs or has ended may not."""

from __future__ import annotations

from uuid import uuid4

import pytest

from commandbus.domain.lifecycle import CommandStatus
from commandbus.errors import BusinessRuleException, CommandNotFoundError, InvalidOperationError
from commandbus.testing.conformance.helpers import about, complete, park, together
from commandbus.testing.harness import Harness


class CancellingSuite:
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

    def test_a_running_command_goes_on(self, bus: Harness) -> None:
        command_id, worker = bus.send(), bus.worker()
        taken = bus.take(worker)
        with pytest.raises(InvalidOperationError, match="IN_PROGRESS"):
            bus.cancel(command_id)
        bus.call(worker.complete, taken)
        assert bus.get(command_id).status is CommandStatus.COMPLETED

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

    def test_a_parked_command_is_for_operators(self, bus: Harness) -> None:
        command_id = park(bus)
        with pytest.raises(InvalidOperationError, match="operator_cancel"):
            bus.cancel(command_id)
        assert bus.stats().parked == 1

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
