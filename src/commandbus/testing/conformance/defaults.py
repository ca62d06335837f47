"""Defaults of a command: declared once, and replaced by what a send says."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from commandbus.domain.lifecycle import CommandStatus
from commandbus.errors import ConfigurationError, HandlerNotFoundError, InvalidArgumentError
from commandbus.testing.conformance.helpers import about
from commandbus.testing.harness import DOMAIN, Harness
from commandbus.worker.handlers import HandlerRegistry

OPTIONS: dict[str, Any] = {
    "priority": "low",
    "expires": 60,
    "group_key": lambda data: f"customer-{data.customer}",
    "unique_key": lambda data: f"order-{data.order}",
    "tags": ["billing"],
}


def typed() -> Any:
    registry = HandlerRegistry(DOMAIN)

    @registry.command(**OPTIONS)
    async def charge(order: int, customer: int = 1) -> None: ...

    return charge


class DefaultsSuite:
    def test_requests_of_a_typed_command_have_them(self, bus: Harness) -> None:
        if not bus.capabilities.gates:
            pytest.skip(f"{bus.configuration.name} has no group keys")
        charge = typed()
        first = bus.get(bus.send_result(charge(order=7)).command_id)
        assert (first.priority, first.group_key, first.unique_key, first.tags) == (
            10,
            "customer-1",
            "order-7",
            ("billing",),
        )
        assert bus.seconds_until(first.expires_at) == about(60)
        assert bus.send_result(charge(order=7)).duplicate

    def test_what_a_send_says_comes_first(self, bus: Harness) -> None:
        if not bus.capabilities.gates:
            pytest.skip(f"{bus.configuration.name} has no group keys")
        later = datetime(2100, 1, 1, tzinfo=UTC)
        options: dict[str, Any] = {
            "priority": 0,
            "group_key": "mine",
            "unique_key": "one",
            "tags": ["other"],
            "expires_at": later,
        }
        record = bus.get(bus.send_result(typed()(order=7), **options).command_id)
        assert (record.priority, record.group_key, record.unique_key, record.tags) == (
            0,
            "mine",
            "one",
            ("other",),
        )
        assert record.expires_at == later

    def test_requests_by_name_have_them_as_well(self, bus: Harness) -> None:
        registry = HandlerRegistry()
        registry.register(
            DOMAIN, "ship", lambda command, context: None, unique_key=lambda data: data["order"]
        )
        request = registry.request(DOMAIN, "ship", {"order": "7"}, priority="high")
        record = bus.get(bus.send_result(request).command_id)
        assert (record.unique_key, record.priority) == ("7", 0)
        with pytest.raises(HandlerNotFoundError):
            registry.request(DOMAIN, "pack")

    def test_a_command_expires_so_long_after_it_is_due(self, bus: Harness) -> None:
        command_id = bus.send(delay=30, expires=60)
        assert bus.seconds_until(bus.get(command_id).expires_at) == about(90)
        bus.advance(95)
        assert bus.receive(bus.worker()) == []
        assert bus.get(command_id).status is CommandStatus.CANCELED

    def test_two_expiries_exclude_each_other(self, bus: Harness) -> None:
        with pytest.raises(InvalidArgumentError, match="either expires or expires_at"):
            bus.send(expires=60, expires_at=datetime(2100, 1, 1, tzinfo=UTC))
        with pytest.raises(InvalidArgumentError, match="expires must be between"):
            bus.send(expires=0)

    def test_a_key_that_cannot_be_made_sends_nothing(self, bus: Harness) -> None:
        registry = HandlerRegistry()
        registry.register(
            DOMAIN, "ship", lambda command, context: None, group_key=lambda data: data["customer"]
        )
        with pytest.raises(ConfigurationError, match=r"group_key of orders\.ship raised KeyError"):
            registry.request(DOMAIN, "ship", {})

    def test_what_cannot_be_a_default_is_refused_where_it_is_declared(self) -> None:
        registry = HandlerRegistry()
        cases: list[tuple[Any, str]] = [
            ({"group_key": "customer"}, "group_key of a declaration must be a function"),
            ({"expires": -1}, "expires must be between"),
            ({"requires": ["no spaces"]}, "no spaces"),
        ]
        for wrong, message in cases:
            with pytest.raises(ConfigurationError, match=message):
                registry.register(DOMAIN, "ship", lambda *_: None, **wrong)
        assert not registry.registered_handlers()
