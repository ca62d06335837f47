"""Capacity: a full domain refuses sends at the door, whole, and says when to come back."""

from __future__ import annotations

import pytest

from commandbus.domain.command import SendRequest
from commandbus.errors import ConfigurationError, DuplicateCommandError, QueueFull
from commandbus.testing.conformance.fixtures import OpenBus
from commandbus.testing.conformance.helpers import crash, together
from commandbus.testing.harness import DOMAIN

WARNING = "waiting commands"


def warnings(log: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in log.records if WARNING in record.getMessage()]


class CapacitySuite:
    def test_a_full_domain_refuses_a_send(self, open_bus: OpenBus) -> None:
        bus = open_bus(max_pending=2)
        bus.send()
        bus.send()
        with pytest.raises(QueueFull, match=r"'orders'.*capacity of 2") as caught:
            bus.send()
        assert caught.value.retry_after > 0
        assert bus.stats().depth == 2

    def test_a_repeated_send_is_reported_however_full_its_domain_is(self, open_bus: OpenBus) -> None:
        bus = open_bus(max_pending=1)
        sent = bus.send()
        with pytest.raises(DuplicateCommandError):
            bus.send(command_id=sent)
        with pytest.raises(DuplicateCommandError):
            bus.send_many([SendRequest(DOMAIN, "other"), SendRequest(DOMAIN, "ship", command_id=sent)])
        assert bus.stats().depth == 1

    def test_a_claim_makes_room(self, open_bus: OpenBus) -> None:
        bus = open_bus(max_pending=1)
        bus.send()
        bus.take(bus.worker())
        bus.send()
        with pytest.raises(QueueFull):
            bus.send()

    def test_a_cancellation_makes_room(self, open_bus: OpenBus) -> None:
        bus = open_bus(max_pending=1)
        bus.cancel(bus.send(delay=60))
        bus.send()
        assert bus.stats().depth == 1

    def test_delayed_commands_take_room(self, open_bus: OpenBus) -> None:
        bus = open_bus(max_pending=1)
        bus.send(delay=3_600)
        with pytest.raises(QueueFull):
            bus.send()
        assert bus.stats().depth == 1

    def test_each_domain_has_its_own_room(self, open_bus: OpenBus) -> None:
        bus = open_bus(max_pending=1)
        bus.send("orders")
        bus.send("billing")
        assert (bus.stats("orders").depth, bus.stats("billing").depth) == (1, 1)

    def test_a_bulk_send_that_does_not_fit_is_refused_whole(self, open_bus: OpenBus) -> None:
        bus = open_bus(max_pending=3)
        bus.send()
        with pytest.raises(QueueFull, match="holds 1 waiting commands; 3 more"):
            bus.send_many([SendRequest("billing", "ship"), *[SendRequest(DOMAIN, "ship")] * 3])
        assert (bus.stats(DOMAIN).depth, bus.stats("billing").depth) == (1, 0)

    def test_a_bulk_send_may_fill_the_domain_exactly(self, open_bus: OpenBus) -> None:
        bus = open_bus(max_pending=3)
        assert len(bus.send_many([SendRequest(DOMAIN, "ship")] * 3)) == 3

    def test_many_senders_at_once_never_exceed_the_capacity(self, open_bus: OpenBus) -> None:
        bus = open_bus(max_pending=5)
        results = together(12, lambda _: bus.send())
        assert sum(isinstance(result, QueueFull) for result in results) == 7, results
        assert bus.stats().depth == 5

    def test_a_duplicate_of_a_held_key_needs_no_room(self, open_bus: OpenBus) -> None:
        bus = open_bus(max_pending=1)
        bus.send(unique_key="k")
        assert bus.send_result(DOMAIN, "ship", unique_key="k").duplicate

    def test_what_was_accepted_comes_back_even_to_a_full_domain(self, open_bus: OpenBus) -> None:
        bus = open_bus(max_pending=1)
        bus.send(DOMAIN, "ship", "released")
        worker = bus.worker()
        taken = bus.take(worker)
        bus.send()
        bus.call(worker.release, taken)
        crash(bus)
        assert len(bus.receive(worker, 10)) == 2

    def test_crossing_the_warning_depth_is_logged_once(
        self, open_bus: OpenBus, caplog: pytest.LogCaptureFixture
    ) -> None:
        bus = open_bus(max_pending=100, warn_depth=3)
        for _ in range(2):
            bus.send()
        assert warnings(caplog) == []
        for _ in range(4):
            bus.send()
        assert len(warnings(caplog)) == 1
        assert "warn_depth=3" in warnings(caplog)[0]

    def test_crossing_the_warning_depth_again_is_logged_again(
        self, open_bus: OpenBus, caplog: pytest.LogCaptureFixture
    ) -> None:
        bus = open_bus(max_pending=100, warn_depth=3)
        for _ in range(3):
            bus.send()
        bus.receive(bus.worker(), 3)
        for _ in range(3):
            bus.send()
        assert len(warnings(caplog)) == 2

    def test_a_bulk_send_that_crosses_the_warning_depth_is_logged(
        self, open_bus: OpenBus, caplog: pytest.LogCaptureFixture
    ) -> None:
        bus = open_bus(max_pending=100, warn_depth=3)
        bus.send_many([*[SendRequest(DOMAIN, "ship")] * 5, SendRequest("billing", "charge")])
        assert [text.split()[1] for text in warnings(caplog)] == [DOMAIN]

    @pytest.mark.parametrize("settings", [{"max_pending": 0}, {"warn_depth": 3}])
    def test_a_capacity_that_cannot_work_is_refused(
        self, open_bus: OpenBus, settings: dict[str, int]
    ) -> None:
        with pytest.raises(ConfigurationError, match=next(iter(settings))):
            open_bus(**settings)
