"""Statistics: a domain at one moment, in numbers that add up."""

from __future__ import annotations

from typing import Any

import pytest

from commandbus.domain.command import SendRequest
from commandbus.errors import BusinessRuleException
from commandbus.testing.conformance.helpers import about, complete, crash, park, require
from commandbus.testing.harness import DOMAIN, Harness


def counts(bus: Harness) -> tuple[int, ...]:
    """ready, scheduled, running, parked, completed, failed, canceled"""
    s = bus.stats()
    return (s.ready, s.scheduled, s.running, s.parked, s.completed, s.failed, s.canceled)


class StatisticsSuite:
    def test_an_unknown_domain_is_empty(self, bus: Harness) -> None:
        stats = bus.stats("nowhere")
        assert (stats.domain, stats.depth, stats.running) == ("nowhere", 0, 0)
        assert (stats.oldest_ready_age, stats.paused) == (None, False)

    def test_each_command_is_counted_in_one_place(self, bus: Harness) -> None:
        worker = bus.worker()
        park(bus)
        complete(bus)
        bus.send()
        bus.call(worker.fail, bus.take(worker), BusinessRuleException("NO"))
        bus.cancel(bus.send())
        bus.send()
        bus.take(worker)
        bus.send()
        bus.send(delay=60)
        assert counts(bus) == (1, 1, 1, 1, 1, 1, 1)
        assert bus.stats().depth == 2

    def test_every_command_under_a_lease_is_running(self, bus: Harness) -> None:
        bus.send_many([SendRequest(DOMAIN, "ship")] * 5)
        worker = bus.worker()
        batch = bus.receive(worker, 5)
        assert bus.stats().running == 5
        bus.call(worker.complete, batch[0])
        assert counts(bus) == (0, 0, 4, 0, 1, 0, 0)

    def test_a_delayed_command_is_ready_when_it_is_due(self, bus: Harness) -> None:
        bus.send(delay=60)
        assert (bus.stats().ready, bus.stats().scheduled) == (0, 1)
        bus.advance(61)
        assert (bus.stats().ready, bus.stats().scheduled) == (1, 0)

    def test_a_retry_is_scheduled(self, bus: Harness) -> None:
        bus.send()
        worker = bus.worker()
        bus.call(worker.fail, bus.take(worker), "busy")
        assert counts(bus) == (0, 1, 0, 0, 0, 0, 0)

    def test_a_crash_is_ready_once_it_was_noticed(self, bus: Harness) -> None:
        bus.send()
        crash(bus)
        bus.receive(bus.worker("elsewhere"))
        assert (bus.stats().ready, bus.stats().running) == (1, 0)

    @pytest.mark.parametrize("held", [{"group_key": "g"}, {"requires": ["gpu"]}], ids=str)
    def test_what_is_held_back_has_an_age_too(self, bus: Harness, held: dict[str, Any]) -> None:
        require(bus, "gates")
        bus.send(**held)
        bus.advance(90)
        bus.send()
        assert bus.stats().oldest_ready_age == about(90)

    def test_the_age_is_that_of_the_oldest_ready_command(self, bus: Harness) -> None:
        bus.send()
        bus.advance(90)
        bus.send()
        assert bus.stats().oldest_ready_age == about(90)
        bus.take(bus.worker())
        assert bus.stats().oldest_ready_age == about(0)

    def test_the_age_of_a_delayed_command_counts_from_its_moment(self, bus: Harness) -> None:
        bus.send(delay=60)
        assert bus.stats().oldest_ready_age is None
        bus.advance(100)
        assert bus.stats().oldest_ready_age == about(40)

    def test_operators_move_the_numbers(self, bus: Harness) -> None:
        ids = [park(bus) for _ in range(4)]
        bus.operator_retry(ids[0])
        bus.operator_cancel(ids[1])
        bus.operator_complete(ids[2])
        assert counts(bus) == (1, 0, 0, 1, 1, 0, 1)
        assert bus.stats().operator_actions == {"retry": 1, "cancel": 1, "complete": 1}

    def test_domains_are_counted_apart(self, bus: Harness) -> None:
        bus.send("orders")
        bus.send("billing", delay=60)
        assert (bus.stats("orders").ready, bus.stats("orders").scheduled) == (1, 0)
        assert (bus.stats("billing").ready, bus.stats("billing").scheduled) == (0, 1)

    def test_reading_changes_nothing(self, bus: Harness) -> None:
        command_id = bus.send(delay=60)
        bus.advance(61)
        before = bus.get(command_id), bus.kinds(command_id), counts(bus), len(bus.query())
        after = bus.get(command_id), bus.kinds(command_id), counts(bus), len(bus.query())
        assert before == after
