"""Commands that no handler knows: never dropped, so that a rolling deploy can catch up."""

from __future__ import annotations

from uuid import UUID

from commandbus.domain.lifecycle import PARKED, CommandStatus
from commandbus.testing.conformance.helpers import about, registry_of
from commandbus.testing.handlers import Recorder
from commandbus.testing.harness import DOMAIN, Harness, RunningWorker
from commandbus.testing.waiting import eventually

PATIENCE = 20
"""Deliveries to workers without the handler before the command is parked."""


def wait_for_releases(bus: Harness, command_id: UUID, count: int) -> None:
    eventually(lambda: bus.kinds(command_id).count("RELEASED") >= count)


def wait_for_settles(running: RunningWorker, count: int) -> None:
    eventually(lambda: running.metrics.commands_settled >= count)


class UnknownHandlersSuite:
    def test_an_unknown_command_goes_back_without_using_an_attempt(self, bus: Harness) -> None:
        command_id = bus.send(DOMAIN, "novel", max_attempts=1)
        with bus.run_worker(registry_of(ship=Recorder())):
            wait_for_releases(bus, command_id, 1)
            record = bus.get(command_id)
        assert (record.status, record.attempts) == (CommandStatus.PENDING, 0)

    def test_its_delay_grows_up_to_a_minute_and_then_it_is_parked(self, bus: Harness) -> None:
        command_id = bus.send(DOMAIN, "novel")
        waits = []
        with bus.run_worker(registry_of(ship=Recorder())) as running:
            for settled in range(1, PATIENCE + 1):
                wait_for_settles(running, settled)
                waits.append(bus.seconds_until(bus.get(command_id).due_at))
                bus.advance(61)
            record = bus.wait(command_id)
        assert waits[0] < 1
        assert waits[5] < waits[7] < waits[9]
        assert waits[-1] == about(60)
        assert (record.status, record.reason) == (PARKED, "HANDLER_NOT_FOUND")
        assert "'novel'" in str(record.error_message)
        assert f"given back {PATIENCE} times" in str(record.error_message)

    def test_its_audit_has_few_of_the_deliveries_and_how_many_there_were(self, bus: Harness) -> None:
        command_id = bus.send(DOMAIN, "novel")
        with bus.run_worker(registry_of(ship=Recorder())) as running:
            for settled in range(1, PATIENCE + 1):
                wait_for_settles(running, settled)
                bus.advance(61)
            bus.wait(command_id)
        released = [e.details for e in bus.trail(command_id) if e.event_type == "RELEASED"]
        assert [details["releases"] for details in released] == [1, 2, 4, 8, 16]
        assert bus.kinds(command_id)[-2:] == ["RECEIVED", "MOVED_TO_TSQ"]

    def test_a_worker_that_knows_it_takes_over(self, bus: Harness) -> None:
        command_id = bus.send(DOMAIN, "novel")
        with bus.run_worker(registry_of(ship=Recorder())):
            wait_for_releases(bus, command_id, 1)
        bus.advance(61)
        with bus.run_worker(registry_of(novel=Recorder(result="caught up"))):
            record = bus.wait(command_id)
        assert (record.result, record.attempts) == ("caught up", 1)

    def test_known_commands_are_not_held_up(self, bus: Harness) -> None:
        for _ in range(5):
            bus.send(DOMAIN, "novel")
        known = bus.send(DOMAIN, "ship")
        with bus.run_worker(registry_of(ship=Recorder()), concurrency=1):
            assert bus.wait(known).status is CommandStatus.COMPLETED

    def test_a_handler_of_another_domain_does_not_count(self, bus: Harness) -> None:
        command_id = bus.send("billing", "ship")
        handler = Recorder()
        with bus.run_worker(registry_of(ship=handler), ["orders", "billing"]):
            wait_for_releases(bus, command_id, 1)
        assert handler.commands == []
