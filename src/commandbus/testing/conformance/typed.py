"""Typed commands: what is sent is what the handler gets, and what it returns is what comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from typing import Any, Literal, NamedTuple, NotRequired, TypedDict
from uuid import UUID

import msgspec
import pytest

from commandbus.domain.command import Command
from commandbus.domain.contract import command_type
from commandbus.domain.lifecycle import PARKED, CommandStatus
from commandbus.errors import (
    BusinessRuleException,
    CommandCanceled,
    ConfigurationError,
    PayloadError,
)
from commandbus.testing.conformance.helpers import AT_ONCE
from commandbus.testing.harness import DOMAIN, Harness
from commandbus.worker.context import HandlerContext, SyncHandlerContext
from commandbus.worker.handlers import HandlerRegistry


class Speed(StrEnum):
    FAST = "fast"


class Size(IntEnum):
    LARGE = 3


class Colour(Enum):
    RED = "red"


class Point(NamedTuple):
    x: int
    y: int


class Address(msgspec.Struct):
    street: str
    number: int | None = None


class Options(TypedDict):
    gift: bool
    note: NotRequired[str]


@dataclass
class Parcel:
    """Everything that JSON has no word for."""

    weight: Decimal
    packed: datetime
    day: date
    hour: time
    lasts: timedelta
    id: UUID
    speed: Speed
    size: Size
    colour: Colour
    to: Address
    options: Options
    label: bytes
    place: Point
    kind: Literal["box", "bag"]
    parts: list[Address]
    prices: dict[str, Decimal]
    numbers: dict[int, str]
    pair: tuple[int, str]
    tags: set[str]
    either: int | str
    nothing: Address | None = None
    inner: list[Parcel] = field(default_factory=list)


PARCEL = Parcel(
    weight=Decimal("1.10"),
    packed=datetime(2026, 3, 4, 5, 6, 7, 89, tzinfo=UTC),
    day=date(2026, 3, 4),
    hour=time(5, 6),
    lasts=timedelta(days=1, seconds=2),
    id=UUID(int=7),
    speed=Speed.FAST,
    size=Size.LARGE,
    colour=Colour.RED,
    to=Address("Main", 7),
    options={"gift": True, "note": "ä"},
    label=b"\0\xff",
    place=Point(1, 2),
    kind="box",
    parts=[Address("Side"), Address("Back", 1)],
    prices={"eur": Decimal("0.1")},
    numbers={1: "one"},
    pair=(1, "a"),
    tags={"a", "b"},
    either="x",
)


@dataclass
class Receipt:
    article: int
    total: Decimal


class TypedSuite:
    @pytest.fixture
    def orders(self) -> HandlerRegistry:
        return HandlerRegistry(DOMAIN)

    def test_parameters_are_the_payload_and_the_return_type_the_result(
        self, bus: Harness, orders: HandlerRegistry
    ) -> None:
        @orders.command
        def ship(article: int, price: Decimal, *, count: int = 2) -> Receipt:
            return Receipt(article, price * count)

        sent = bus.send_result(ship(7, price=Decimal("1.50")))
        assert bus.get(sent.command_id).data == {"article": 7, "price": "1.50", "count": 2}
        with bus.run_worker(orders):
            record = bus.wait(sent)
        assert (record.status, record.result) == (
            CommandStatus.COMPLETED,
            Receipt(7, Decimal("3.00")),
        )

    def test_an_async_function_gets_its_context_first(
        self, bus: Harness, orders: HandlerRegistry
    ) -> None:
        @orders.command("ship-it", retry=AT_ONCE)
        async def ship(context: HandlerContext, article: int) -> tuple[int, int]:
            await asyncio.sleep(0)
            if context.attempt == 1:
                raise ValueError("once")
            return article, context.attempt

        with bus.run_worker(orders):
            assert bus.call(bus.bus.request, ship(article=7), timeout=10) == (7, 2)
        assert {record.command_type for record in bus.query()} == {"ship-it"}

    def test_a_def_function_gets_a_context_that_blocks(
        self, bus: Harness, orders: HandlerRegistry
    ) -> None:
        @orders.command
        def ship(context: SyncHandlerContext) -> list[int]:
            context.progress(50)
            return [context.attempt]

        with bus.run_worker(orders):
            assert bus.call(bus.bus.request, ship(), timeout=10) == [1]

    def test_every_kind_of_value_comes_back_as_it_was_sent(
        self, bus: Harness, orders: HandlerRegistry
    ) -> None:
        seen: list[Parcel] = []

        @orders.command
        def ship(parcel: Parcel) -> Parcel:
            seen.append(parcel)
            return parcel

        sent = bus.send_result(ship(PARCEL))
        with bus.run_worker(orders):
            assert bus.wait(sent).result == PARCEL
        assert seen == [PARCEL]

    def test_a_contract_without_the_code_reaches_the_handler(
        self, bus: Harness, orders: HandlerRegistry
    ) -> None:
        @orders.command
        def ship(article: int, price: Decimal) -> Receipt:
            return Receipt(article, price)

        class Ship(msgspec.Struct):
            article: int
            price: Decimal

        elsewhere = command_type(DOMAIN, "ship", Ship, Receipt)
        with bus.run_worker(orders):
            result = bus.call(bus.bus.request, elsewhere(7, Decimal(2)), timeout=10)
            again = bus.call(bus.bus.request, elsewhere(Ship(7, Decimal(2))), timeout=10)
        assert result == again == Receipt(7, Decimal(2))

    def test_typed_and_named_commands_meet(self, bus: Harness, orders: HandlerRegistry) -> None:
        @orders.command
        def ship(article: int) -> int:
            return article

        @orders.handler(DOMAIN, "weigh")
        def weigh(command: Command[Any], context: Any) -> Any:
            return command.data

        asked = command_type(DOMAIN, "weigh", Receipt, Receipt)
        with bus.run_worker(orders):
            assert bus.wait(bus.send(DOMAIN, "ship", {"article": 7})).result == 7
            result = bus.call(bus.bus.request, asked(article=7, total=Decimal(2)), timeout=10)
        assert result == Receipt(7, Decimal(2))

    def test_commands_of_an_older_sender_get_the_default_of_a_new_field(
        self, bus: Harness, orders: HandlerRegistry
    ) -> None:
        @orders.command
        def ship(article: int, express: bool = False, note: str | None = None) -> list[Any]:
            return [article, express, note]

        old = bus.send(DOMAIN, "ship", {"article": 7})
        newer = bus.send(DOMAIN, "ship", {"article": 8, "express": True, "colour": "unknown here"})
        with bus.run_worker(orders):
            assert bus.wait(old).result == [7, False, None]
            assert bus.wait(newer).result == [8, True, None]

    def test_a_stored_payload_that_does_not_fit_is_parked(
        self, bus: Harness, orders: HandlerRegistry
    ) -> None:
        @orders.command
        def ship(article: int) -> None: ...

        command_id = bus.send(DOMAIN, "ship", {"article": "secret"})
        with bus.run_worker(orders):
            record = bus.wait(command_id)
        assert (record.status, record.error_code) == (PARKED, "UNDECODABLE")
        assert "$.article" in str(record.error_message)
        assert "secret" not in str(record.error_message)

    def test_a_result_that_does_not_fit_is_parked(self, bus: Harness, orders: HandlerRegistry) -> None:
        @orders.command
        def ship(wanted: str) -> Receipt:
            return {"none": None, "text": "text"}[wanted]  # type: ignore[return-value]

        with bus.run_worker(orders):
            for wanted in ("none", "text"):
                record = bus.wait(bus.send_result(ship(wanted)))
                assert (record.status, record.error_code) == (PARKED, "RESULT_NOT_JSON")

    def test_options_of_the_request_are_replaced_by_those_of_the_send(
        self, bus: Harness, orders: HandlerRegistry
    ) -> None:
        @orders.command
        def ship(article: int) -> None: ...

        request = ship(7).options(priority="high", tags=["vip"])
        first = bus.get(bus.send_result(request).command_id)
        assert (first.priority, first.tags) == (0, ("vip",))
        second = bus.get(bus.send_result(request, priority="low").command_id)
        assert (second.priority, second.tags) == (10, ("vip",))

    def test_a_bulk_send_keeps_the_contract_of_each(
        self, bus: Harness, orders: HandlerRegistry
    ) -> None:
        @orders.command
        def ship(article: int) -> Decimal:
            return Decimal(article)

        @orders.command
        def weigh(article: int) -> set[int]:
            return {article}

        sent = bus.send_many([ship(1), weigh(2).options(delay=0)])
        with bus.run_worker(orders):
            assert [bus.wait(one).result for one in sent] == [Decimal(1), {2}]

    def test_a_request_raises_what_the_command_ended_with(
        self, bus: Harness, orders: HandlerRegistry
    ) -> None:
        @orders.command
        def ship(article: int) -> int:
            if article == 1:
                raise BusinessRuleException("SOLD_OUT", "none left", {"article": 1})
            raise CommandCanceled("not today")

        with bus.run_worker(orders):
            with pytest.raises(BusinessRuleException, match="none left") as caught:
                bus.call(bus.bus.request, ship(1), timeout=10)
            assert (caught.value.code, caught.value.details) == ("SOLD_OUT", {"article": 1})
            with pytest.raises(CommandCanceled, match="not today"):
                bus.call(bus.bus.request, ship(2), timeout=10)

    def test_a_record_without_a_result_is_not_decoded(
        self, bus: Harness, orders: HandlerRegistry
    ) -> None:
        @orders.command
        def ship(article: int) -> Receipt:
            raise BusinessRuleException("SOLD_OUT", "none left")

        with bus.run_worker(orders):
            record = bus.wait(bus.send_result(ship(1)))
        assert (record.status, record.result) == (CommandStatus.FAILED, None)

    def test_a_result_that_another_version_wrote_is_refused_by_name(
        self, bus: Harness, orders: HandlerRegistry
    ) -> None:
        @orders.handler(DOMAIN, "ship")
        def ship(command: Command[Any], context: Any) -> str:
            return "secret"

        asked = command_type(DOMAIN, "ship", Address, Receipt)
        with bus.run_worker(orders):
            sent = bus.send_result(asked("Main"))
            with pytest.raises(PayloadError, match="does not fit Receipt") as caught:
                bus.wait(sent)
            assert "secret" not in str(caught.value)
            assert bus.wait(sent.command_id).result == "secret"

    def test_a_worker_serves_the_domains_of_its_registries(self, bus: Harness) -> None:
        orders, mail = HandlerRegistry(DOMAIN), HandlerRegistry("mail")

        @orders.command
        def ship(article: int) -> int:
            return article

        @mail.command
        async def post(to: str) -> str:
            return to

        worker = bus.worker_class(bus.bus, orders, mail, concurrency=2)
        assert worker.domains == (DOMAIN, "mail")
        ended = bus.spawn(worker.run)
        try:
            assert bus.call(bus.bus.request, ship(7), timeout=10) == 7
            assert bus.call(bus.bus.request, post("ada"), timeout=10) == "ada"
        finally:
            bus.call(worker.stop)
            ended.result(10)

    def test_a_worker_needs_a_registry_that_knows_its_domain(self, bus: Harness) -> None:
        with pytest.raises(ConfigurationError, match='HandlerRegistry\\("payments"\\)'):
            bus.worker_class(bus.bus, HandlerRegistry())

    def test_middleware_and_error_rules_are_those_of_the_registry(self, bus: Harness) -> None:
        orders, mail = HandlerRegistry(DOMAIN), HandlerRegistry("mail")
        seen: list[str] = []

        @orders.middleware
        def watch(command: Command[Any], context: Any) -> Iterator[None]:
            seen.append(command.command_type)
            yield

        mail.map_exception(KeyError, BusinessRuleException)

        @orders.command
        def ship() -> None: ...

        @mail.command
        def post() -> None:
            raise KeyError("ada")

        worker = bus.worker_class(bus.bus, orders, mail)
        ended = bus.spawn(worker.run)
        try:
            assert bus.wait(bus.send_result(ship())).status is CommandStatus.COMPLETED
            assert bus.wait(bus.send_result(post())).status is CommandStatus.FAILED
        finally:
            bus.call(worker.stop)
            ended.result(10)
        assert seen == ["ship"]

    def test_a_typed_command_may_be_completed_by_hand(
        self, bus: Harness, orders: HandlerRegistry
    ) -> None:
        @orders.command
        def ship(article: int) -> Decimal:
            return Decimal(article)

        sent = bus.send_result(ship(7))
        worker = bus.worker(DOMAIN, orders)
        taken = bus.take(worker)
        with pytest.raises(PayloadError):
            bus.call(worker.complete, taken, "no number")
        bus.call(worker.complete, taken, Decimal("7.50"))
        assert bus.wait(sent).result == Decimal("7.50")

    def test_a_command_is_got_with_its_result_decoded(
        self, bus: Harness, orders: HandlerRegistry
    ) -> None:
        @orders.command
        def ship(article: int) -> Receipt:
            return Receipt(article, Decimal("1.50"))

        sent = bus.send_result(ship(7))
        get = bus.bus.get_command
        assert (bus.call(get, sent).status, bus.call(get, sent).result) == ("PENDING", None)
        with bus.run_worker(orders):
            bus.wait(sent)
        assert bus.call(get, sent).result == Receipt(7, Decimal("1.50"))
        assert bus.call(get, sent.command_id).result == {"article": 7, "total": "1.50"}
        assert bus.call(get, msgspec.structs.replace(sent, command_id=UUID(int=7))) is None
