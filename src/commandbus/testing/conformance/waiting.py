"""Waiting for a command's end: a wait returns as soon as it is recorded, whatever it is."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from commandbus.domain.lifecycle import PARKED, CommandStatus
from commandbus.errors import (
    BusinessRuleException,
    CommandNotFoundError,
    InvalidArgumentError,
    InvalidOperationError,
)
from commandbus.testing.conformance.fixtures import OpenBus
from commandbus.testing.conformance.helpers import complete, park, registry_of, require
from commandbus.testing.handlers import Gate, Recorder
from commandbus.testing.harness import Harness


class WaitingSuite:
    def test_it_returns_when_the_command_is_completed(self, bus: Harness) -> None:
        command_id = bus.send()
        with Gate(result="done") as gate, bus.run_worker(registry_of(ship=gate)):
            gate.wait_for(1)
            waiting = bus.spawn(lambda: bus.bus.wait(command_id, 10))
            gate.open()
            record = waiting.result(20)
        assert (record.status, record.result) == (CommandStatus.COMPLETED, "done")

    def test_it_returns_at_once_for_a_command_that_has_ended(self, bus: Harness) -> None:
        command_id = complete(bus)
        assert bus.wait(command_id, 0) == bus.get(command_id)

    def test_it_returns_for_a_parked_command(self, bus: Harness) -> None:
        assert bus.wait(park(bus)).status is PARKED

    def test_it_returns_for_a_failed_command(self, bus: Harness) -> None:
        command_id = bus.send()
        with bus.run_worker(registry_of(ship=Recorder(BusinessRuleException("SOLD_OUT")))):
            record = bus.wait(command_id)
        assert (record.status, record.error_code) == (CommandStatus.FAILED, "SOLD_OUT")

    def test_it_returns_for_a_canceled_command(self, bus: Harness) -> None:
        command_id = bus.send()
        waiting = bus.spawn(lambda: bus.bus.wait(command_id, 10))
        bus.cancel(command_id)
        assert waiting.result(20).status is CommandStatus.CANCELED

    @pytest.mark.parametrize("timeout", [0, 0.05, timedelta(milliseconds=50)])
    def test_it_gives_up_after_the_timeout(self, bus: Harness, timeout: Any) -> None:
        command_id = bus.send()
        with pytest.raises(TimeoutError, match="still PENDING"):
            bus.wait(command_id, timeout)
        assert bus.get(command_id).status is CommandStatus.PENDING

    def test_an_unknown_command_is_not_found(self, bus: Harness) -> None:
        missing = uuid4()
        with pytest.raises(CommandNotFoundError, match=str(missing)):
            bus.wait(missing)

    def test_of_several_domains_one_must_be_named(self, bus: Harness) -> None:
        command_id = bus.send("orders")
        bus.send("billing", command_id=command_id)
        with pytest.raises(InvalidOperationError, match="orders, billing"):
            bus.wait(command_id)
        bus.cancel(command_id, domain="billing")
        assert bus.wait(command_id, domain="billing").domain == "billing"

    def test_a_command_in_another_domain_is_not_found(self, bus: Harness) -> None:
        command_id = complete(bus)
        with pytest.raises(CommandNotFoundError, match="billing"):
            bus.wait(command_id, domain="billing")

    def test_many_may_wait_at_once(self, bus: Harness) -> None:
        ids = [bus.send() for _ in range(5)]
        waiting = [bus.spawn(lambda i=i: bus.bus.wait(i, 10)) for i in ids for _ in range(2)]
        with bus.run_worker(registry_of(ship=Recorder())):
            records = [future.result(20) for future in waiting]
        assert [record.command_id for record in records] == [i for i in ids for _ in range(2)]

    def test_the_text_of_an_id_will_do(self, bus: Harness) -> None:
        command_id = complete(bus)
        assert bus.wait(str(command_id)).command_id == command_id

    def test_a_negative_timeout_is_refused(self, bus: Harness) -> None:
        with pytest.raises(InvalidArgumentError, match="timeout"):
            bus.wait(complete(bus), -1)

    def test_the_end_may_be_recorded_through_another_bus(self, bus: Harness, open_bus: OpenBus) -> None:
        require(bus, "many_processes")
        other = open_bus()
        command_id = bus.send()
        waiting = bus.spawn(lambda: bus.bus.wait(command_id, 10))
        worker = other.worker()
        other.call(worker.complete, other.take(worker), "elsewhere")
        assert waiting.result(20).result == "elsewhere"

    def test_a_finished_wait_leaves_nothing_behind(self, bus: Harness) -> None:
        bus.wait(complete(bus))
        with pytest.raises(TimeoutError):
            bus.wait(bus.send(), 0)
        assert bus.engine.hub._observers == []
