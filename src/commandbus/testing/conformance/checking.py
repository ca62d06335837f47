"""Checking payloads: payloads that new code would refuse are found before it is deployed."""

from __future__ import annotations

from typing import Any

import pytest

from commandbus.domain.command import Command, SendRequest
from commandbus.errors import InvalidArgumentError
from commandbus.operations.payload_check import PAGE
from commandbus.testing.conformance.helpers import park, registry_of
from commandbus.testing.harness import DOMAIN, Harness
from commandbus.worker.handlers import HandlerRegistry


def ship(command: Command[dict[str, int]], context: Any) -> None:
    raise AssertionError("nothing is carried out by a check")


def check(bus: Harness, **options: Any) -> Any:
    return bus.call(bus.bus.check_payloads, registry_of(ship=ship), **options)


class CheckingSuite:
    def test_what_fits_is_only_counted(self, bus: Harness) -> None:
        bus.send(DOMAIN, "ship", {"n": 1})
        bus.send(DOMAIN, "ship", {"n": 2}, delay=60)
        bus.send("elsewhere", "paint")
        report = check(bus)
        assert (report.checked, report.misfits, report.complete) == (2, [], True)

    def test_misfits_are_reported_by_type_with_examples(self, bus: Harness) -> None:
        parked = park(bus, {"n": "one"})
        waiting = [bus.send(DOMAIN, "ship", {"n": "x"}, delay=n) for n in (0, 60, 60, 60)]
        (misfit,) = check(bus).misfits
        assert (misfit.domain, misfit.command_type) == (DOMAIN, "ship")
        assert (misfit.waiting, misfit.parked) == (4, 1)
        assert misfit.examples == waiting[:0:-1]
        assert "$[...]" in misfit.problem
        assert parked not in misfit.examples

    def test_a_type_without_a_handler_is_reported(self, bus: Harness) -> None:
        bus.send(DOMAIN, "paint")
        (misfit,) = check(bus).misfits
        assert (misfit.command_type, misfit.waiting) == ("paint", 1)
        assert "no handler" in misfit.problem

    def test_what_ended_or_runs_is_not_looked_at(self, bus: Harness) -> None:
        bus.cancel(bus.send(DOMAIN, "ship", "no"))
        bus.send(DOMAIN, "ship", "no")
        bus.take(bus.worker())
        assert check(bus).checked == 0

    def test_many_are_looked_at_or_only_a_sample(self, bus: Harness) -> None:
        bus.send_many([SendRequest(DOMAIN, "ship", {"n": n}) for n in range(PAGE + 5)])
        assert check(bus).checked == PAGE + 5
        report = check(bus, sample=7)
        assert (report.checked, report.complete) == (7, False)

    def test_an_empty_registry_is_refused(self, bus: Harness) -> None:
        with pytest.raises(InvalidArgumentError, match="no handlers"):
            bus.call(bus.bus.check_payloads, HandlerRegistry())
        with pytest.raises(InvalidArgumentError, match="sample"):
            check(bus, sample=0)

    def test_typed_commands_are_checked_by_their_contract(self, bus: Harness) -> None:
        orders = HandlerRegistry(DOMAIN)

        @orders.command
        def ship(article: int, note: str = "") -> None:
            raise AssertionError("nothing is carried out by a check")

        bus.send_result(ship(7))
        bus.send(DOMAIN, "ship", {"article": 7})
        wrong = bus.send(DOMAIN, "ship", {"article": "seven"})
        report = bus.call(bus.bus.check_payloads, orders)
        (misfit,) = report.misfits
        assert (report.checked, misfit.waiting, misfit.examples) == (3, 1, [wrong])
        assert "$.article" in misfit.problem
