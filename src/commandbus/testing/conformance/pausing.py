"""Pausing: a paused domain accepts, keeps and gives out nothing, until it is resumed."""

from __future__ import annotations

import pytest

from commandbus.domain.lifecycle import CommandStatus
from commandbus.errors import InvalidArgumentError
from commandbus.testing.conformance.fixtures import OpenBus
from commandbus.testing.conformance.helpers import about, registry_of, require
from commandbus.testing.handlers import Gate, Recorder
from commandbus.testing.harness import Harness


class PausingSuite:
    def test_a_paused_domain_gives_out_nothing(self, bus: Harness) -> None:
        bus.send()
        bus.pause()
        assert bus.receive(bus.worker()) == []

    def test_a_paused_domain_accepts_sends(self, bus: Harness) -> None:
        bus.pause()
        assert bus.get(bus.send()).status is CommandStatus.PENDING
        assert bus.stats().ready == 1

    def test_a_resumed_domain_gives_out_again(self, bus: Harness) -> None:
        bus.pause()
        command_id = bus.send()
        bus.resume()
        assert bus.take(bus.worker()).command.command_id == command_id

    def test_other_domains_are_not_affected(self, bus: Harness) -> None:
        bus.pause("orders")
        bus.send("orders")
        other = bus.send("billing")
        taken = bus.receive(bus.worker(["orders", "billing"]), 5)
        assert [one.command.command_id for one in taken] == [other]

    def test_statistics_say_that_and_why_and_since_when(self, bus: Harness) -> None:
        bus.acting("ada").pause("orders", "warehouse on fire")
        stats = bus.stats()
        assert (stats.paused, stats.paused_reason) == (True, "warehouse on fire")
        assert bus.seconds_until(stats.paused_at) == about(0)
        bus.resume()
        stats = bus.stats()
        assert (stats.paused, stats.paused_reason, stats.paused_at) == (False, None, None)

    def test_pausing_and_resuming_twice_is_harmless(self, bus: Harness) -> None:
        bus.resume()
        assert not bus.stats().paused
        bus.pause()
        bus.pause()
        assert bus.stats().paused
        bus.resume()
        bus.resume()
        assert not bus.stats().paused

    def test_a_pause_outlives_the_bus(self, bus: Harness, open_bus: OpenBus) -> None:
        require(bus, "durable")
        bus.send()
        bus.pause("orders", "for the night")
        other = open_bus()
        assert other.stats().paused_reason == "for the night"
        assert other.receive(other.worker()) == []
        other.resume()
        assert bus.receive(bus.worker())

    def test_what_runs_finishes(self, bus: Harness) -> None:
        command_id = bus.send()
        with Gate(result="done") as gate, bus.run_worker(registry_of(ship=gate)):
            gate.wait_for(1)
            bus.pause()
            gate.open()
            assert bus.wait(command_id).result == "done"

    def test_a_running_worker_is_woken_by_a_resume(self, bus: Harness) -> None:
        bus.pause()
        command_id = bus.send()
        with bus.run_worker(registry_of(ship=Recorder())) as running:
            running.wait_until_idle()
            assert bus.get(command_id).status is CommandStatus.PENDING
            bus.resume()
            assert bus.wait(command_id).status is CommandStatus.COMPLETED
        assert "fallback" not in running.metrics.wakeups

    def test_commands_that_become_due_wait_for_the_resume(self, bus: Harness) -> None:
        bus.pause()
        command_id, worker = bus.send(delay=60), bus.worker()
        bus.advance(61)
        assert bus.receive(worker) == []
        bus.resume()
        assert bus.take(worker).command.command_id == command_id

    def test_a_command_of_a_paused_domain_may_be_canceled(self, bus: Harness) -> None:
        bus.pause()
        command_id = bus.send()
        bus.cancel(command_id)
        assert bus.get(command_id).status is CommandStatus.CANCELED

    def test_a_crash_is_rescued_into_the_paused_domain(self, bus: Harness) -> None:
        command_id = bus.send()
        bus.take(bus.worker())
        bus.pause()
        bus.advance(31)
        assert bus.receive(bus.worker()) == []
        record = bus.get(command_id)
        assert (record.status, record.crashes) == (CommandStatus.PENDING, 1)

    def test_a_reason_without_end_is_refused(self, bus: Harness) -> None:
        with pytest.raises(InvalidArgumentError, match="reason"):
            bus.pause("orders", "x" * 501)
        assert not bus.stats().paused
