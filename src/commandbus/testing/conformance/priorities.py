"""Priorities: lower numbers first, then the order of sending."""

from __future__ import annotations

import random
from typing import Any

import pytest

from commandbus.domain.command import SendRequest
from commandbus.domain.lifecycle import CommandStatus
from commandbus.errors import ConfigurationError, InvalidArgumentError
from commandbus.testing.conformance.fixtures import OpenBus
from commandbus.testing.conformance.helpers import AT_ONCE, registry_of, require
from commandbus.testing.handlers import Gate
from commandbus.testing.harness import DOMAIN, Harness
from commandbus.testing.waiting import eventually


def drain(bus: Harness) -> list[Any]:
    return [taken.command.data for taken in bus.receive(bus.worker(), 1_000)]


class PrioritiesSuite:
    def test_high_comes_before_normal_before_low(self, bus: Harness) -> None:
        for label in ("low", "normal", "high"):
            bus.send(DOMAIN, "ship", label, priority=label)
        assert drain(bus) == ["high", "normal", "low"]

    def test_labels_stand_for_numbers(self, bus: Harness) -> None:
        numbers = [bus.get(bus.send(priority=label)).priority for label in ("high", "normal", "low")]
        assert numbers == [0, 5, 10]

    def test_without_a_priority_a_command_is_normal(self, bus: Harness) -> None:
        assert bus.get(bus.send()).priority == 5

    def test_any_number_orders_among_the_labels(self, bus: Harness) -> None:
        for priority in ("low", 7, "normal", -3, "high", 32_767, -32_768):
            bus.send(DOMAIN, "ship", priority, priority=priority)
        assert drain(bus) == [-32_768, -3, "high", "normal", 7, "low", 32_767]

    def test_equal_priorities_keep_the_order_of_sending(self, bus: Harness) -> None:
        rng = random.Random(7)
        sent = [(rng.choice([0, 5, 10]), number) for number in range(200)]
        bus.send_many(SendRequest(DOMAIN, "ship", pair, priority=pair[0]) for pair in sent)
        assert [tuple(pair) for pair in drain(bus)] == sorted(sent)

    def test_order_holds_from_claim_to_claim(self, bus: Harness) -> None:
        worker = bus.worker()
        bus.send(DOMAIN, "ship", "first")
        bus.send(DOMAIN, "ship", "last")
        assert bus.take(worker).command.data == "first"
        bus.send(DOMAIN, "ship", "urgent", priority="high")
        assert [bus.take(worker).command.data for _ in range(2)] == ["urgent", "last"]

    def test_an_urgent_command_overtakes_what_was_claimed_ahead(self, bus: Harness) -> None:
        bus.send_many(SendRequest(DOMAIN, "ship", number) for number in range(7))
        with (
            Gate() as gate,
            bus.run_worker(registry_of(ship=gate), concurrency=1, prefetch=6) as running,
        ):
            eventually(lambda: running.worker.in_flight_count == 7)
            urgent = bus.send(DOMAIN, "ship", "urgent", priority="high")
            for begun in range(2, 6):
                gate.let_one_go()
                gate.wait_for(begun)
            eventually(
                lambda: (
                    bus.get(urgent).status is not CommandStatus.PENDING
                    # a machine so slow that the others went back: then it is the next one as well
                    or running.worker.in_flight_count == 1
                )
            )
            gate.open()
            gate.wait_for(8)
        order = [command.data for command in gate.entered]
        assert order.index("urgent") <= 5  # earlier, where a slow machine gave the others back
        order.remove("urgent")
        assert order == list(range(7))

    def test_a_retry_keeps_its_priority(self, bus: Harness) -> None:
        worker = bus.worker(retry_policy=AT_ONCE)
        bus.send(DOMAIN, "ship", "urgent", priority="high")
        bus.send(DOMAIN, "ship", "usual")
        bus.call(worker.fail, bus.take(worker), "busy")
        assert bus.take(worker).command.data == "urgent"

    def test_the_default_is_a_setting(self, open_bus: OpenBus) -> None:
        bus = open_bus(default_priority="low")
        assert bus.get(bus.send()).priority == 10

    def test_labels_are_a_setting(self, open_bus: OpenBus) -> None:
        bus = open_bus(priorities={"now": 1, "whenever": 99}, default_priority="whenever")
        assert bus.get(bus.send()).priority == 99
        assert bus.get(bus.send(priority="now")).priority == 1
        with pytest.raises(InvalidArgumentError, match=r"now \(1\), whenever \(99\)"):
            bus.send(priority="high")

    def test_an_unknown_label_as_default_is_refused(self, open_bus: OpenBus) -> None:
        with pytest.raises(ConfigurationError, match=r"default_priority: .*'urgent'"):
            open_bus(default_priority="urgent")

    def test_a_hook_chooses_for_sends_that_name_none(self, open_bus: OpenBus) -> None:
        def hook(request: SendRequest) -> str | None:
            return "high" if request.data == "vip" else None

        bus = open_bus(priority_hook=hook, default_priority="low")
        assert bus.get(bus.send(DOMAIN, "ship", "vip")).priority == 0
        assert bus.get(bus.send(DOMAIN, "ship", "any")).priority == 10
        assert bus.get(bus.send(DOMAIN, "ship", "vip", priority="normal")).priority == 5

    def test_an_unknown_label_is_refused_with_the_known_ones(self, bus: Harness) -> None:
        with pytest.raises(InvalidArgumentError, match=r"'urgent'.*high \(0\), normal \(5\), low"):
            bus.send(priority="urgent")
        assert bus.stats().depth == 0

    @pytest.mark.parametrize("priority", [True, 1.5, 32_768, -32_769])
    def test_a_priority_outside_smallint_is_refused(self, bus: Harness, priority: Any) -> None:
        with pytest.raises(InvalidArgumentError, match="priority must be"):
            bus.send(priority=priority)

    def test_where_waiting_cannot_count_a_worker_says_so(self, bus: Harness) -> None:
        if bus.capabilities.ageing:
            assert bus.worker(ageing=60).settings.ageing == 60
        else:
            with pytest.raises(ConfigurationError, match="leave ageing= out"):
                bus.worker(ageing=60)


class AgeingSuite:
    """Waiting makes a command more urgent, where a worker says so."""

    @pytest.fixture(autouse=True)
    def _with_ageing(self, bus: Harness) -> None:
        require(bus, "ageing")

    def test_a_waiting_command_rises_step_by_step(self, bus: Harness) -> None:
        """A low one of eleven minutes ago comes before a high one of now, one of nine does not."""
        bus.send(DOMAIN, "ship", "long ago", priority="low")
        bus.advance(120)
        bus.send(DOMAIN, "ship", "later", priority="low")
        bus.advance(540)
        for number in range(3):
            bus.send(DOMAIN, "ship", number, priority="high")
        worker = bus.worker(ageing=60)
        assert [bus.take(worker).command.data for _ in range(5)] == ["long ago", 0, 1, 2, "later"]

    def test_one_claim_has_them_in_the_same_order(self, bus: Harness) -> None:
        bus.send_many(SendRequest(DOMAIN, "ship", f"low {n}", priority="low") for n in range(3))
        bus.advance(100)
        bus.send_many(SendRequest(DOMAIN, "ship", f"normal {n}") for n in range(2))
        bus.send(DOMAIN, "ship", "high", priority="high")
        names = [taken.command.data for taken in bus.receive(bus.worker(ageing=9), 10)]
        assert names == ["low 0", "low 1", "low 2", "high", "normal 0", "normal 1"]

    def test_a_stream_of_urgent_commands_starves_no_other(self, bus: Harness) -> None:
        worker = bus.worker(ageing=1)
        bus.send(DOMAIN, "ship", "patient", priority="low")
        taken: list[Any] = []
        for number in range(30):
            bus.send_many(SendRequest(DOMAIN, "ship", number, priority="high") for _ in range(2))
            taken.append(bus.take(worker).command.data)
            bus.advance(1)
        assert "patient" in taken
        assert taken.count("patient") == 1

    def test_without_ageing_only_the_priority_counts(self, bus: Harness) -> None:
        bus.send(DOMAIN, "ship", "long ago", priority="low")
        bus.advance(86_400)
        bus.send(DOMAIN, "ship", "now", priority="high")
        assert bus.take(bus.worker()).command.data == "now"

    def test_ageing_counts_for_limited_commands_too(self, bus: Harness) -> None:
        require(bus, "gates")
        bus.call(bus.bus.set_limit, DOMAIN, "ship", concurrency=1)
        bus.send(DOMAIN, "ship", "long ago", priority="low")
        bus.advance(660)
        bus.send(DOMAIN, "ship", "now", priority="high")
        assert drain_with(bus, ageing=60) == ["long ago"]

    def test_a_group_keeps_to_its_priorities(self, bus: Harness) -> None:
        require(bus, "gates")
        bus.send(DOMAIN, "ship", "long ago", priority="low", group_key="k")
        bus.advance(660)
        bus.send(DOMAIN, "ship", "now", priority="high", group_key="k")
        assert drain_with(bus, ageing=60) == ["now"]

    def test_the_record_keeps_the_priority_that_was_sent(self, bus: Harness) -> None:
        command_id = bus.send(DOMAIN, "ship", priority="low")
        bus.advance(86_400)
        assert bus.take(bus.worker(ageing=60)).command.priority == 10
        assert bus.get(command_id).priority == 10

    @pytest.mark.parametrize("ageing", [0, -1, "soon"])
    def test_a_step_is_a_time_above_zero(self, bus: Harness, ageing: Any) -> None:
        with pytest.raises(ConfigurationError, match="ageing"):
            bus.worker(ageing=ageing)


def drain_with(bus: Harness, **options: Any) -> list[Any]:
    return [taken.command.data for taken in bus.receive(bus.worker(**options), 1_000)]
