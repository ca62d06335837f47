"""Typed commands in use: options, runs, provided values, schemas, schedules."""

from __future__ import annotations

import inspect
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4
from zoneinfo import ZoneInfo

import pytest

from commandbus import (
    PROVIDED,
    CommandBus,
    HandlerContext,
    HandlerRegistry,
    PermanentCommandError,
    Provided,
    Schedule,
    SendRequest,
    Worker,
    command_type,
)
from commandbus.errors import (
    ConfigurationError,
    PayloadError,
)
from commandbus.records import CommandType
from commandbus.sync import SyncCommandBus, SyncHandlerContext, SyncWorker
from commandbus.testing import handler_context, sync_handler_context
from tests.unit.typed.models import Refund


def test_options_are_those_of_a_handler(payments: HandlerRegistry) -> None:
    @payments.command("charge-card", timeout=5, breaker="bank")
    def charge(order: int) -> None: ...

    found = payments.get_or_raise("payments", "charge-card")
    assert (found.timeout, found.breaker and found.breaker.target) == (5, "bank")
    with pytest.raises(ConfigurationError, match="did you mean 'timeout'"):
        payments.command("other", timout=5)(lambda: None)  # type: ignore[call-overload]


def test_options_of_a_request_are_those_of_send(charge: CommandType[..., Any]) -> None:
    request = charge(1).options(delay=5, unique_key="one")
    assert (request.delay, request.unique_key, request.data.order) == (5, "one", 1)
    with pytest.raises(TypeError, match="unexpected keyword argument 'data'"):
        charge(1).options(data=2)  # type: ignore[call-arg]


async def test_run_calls_the_plain_function(payments: HandlerRegistry) -> None:
    @payments.command
    async def charge(context: HandlerContext, order: int) -> int:
        await context.progress(10)
        await context.extend_visibility(5)
        first = await context.step("once", lambda: order)
        return await context.step("once", lambda: first + 1) + context.attempt

    @payments.command
    def refund(context: SyncHandlerContext, order: int) -> int:
        context.raise_if_canceled()
        context.send(charge(order), delay=5)
        return order + context.attempt

    @payments.command
    def plain(order: Any) -> Any:
        return order

    assert await charge.run(order=7) == 8
    assert await charge.run_with(handler_context(attempt=3), 7) == 10
    assert refund.run(7) == 8
    context = sync_handler_context(attempt=2)
    assert refund.run_with(context, order=7) == 9
    (sent,) = context.sent
    assert (sent.data, sent.delay) == (charge(7).data, 5)
    own = handler_context()
    await own.send(charge(8))
    assert [request.data for request in own.sent] == [charge(8).data]
    anything = object()
    assert plain.run(anything) is anything


class Client:
    def __init__(self, name: str) -> None:
        self.name = name


async def test_provided_values_are_no_part_of_the_contract(payments: HandlerRegistry) -> None:
    @payments.command
    def tell(to: str, client: Provided[Client] = PROVIDED) -> str:
        return f"{client.name} {to}"

    @payments.command
    async def ask(context: HandlerContext, to: str, *, client: Provided[Client]) -> str:
        return f"{client.name} {to} {context.attempt}"

    assert tell("ada").data == tell(to="ada").data
    assert list(inspect.signature(tell).parameters) == ["to"]
    with pytest.raises(TypeError, match="unexpected keyword argument 'client'"):
        tell("ada", client=Client("x"))
    assert tell.run("ada", client=Client("x")) == "x ada"
    assert await ask.run("ada", client=Client("y")) == "y ada 1"  # type: ignore[arg-type, call-arg, unused-ignore]
    context = sync_handler_context()
    context.provide(Client, Client("z"))
    assert tell.run_with(context, "ada") == "z ada"
    with pytest.raises(PermanentCommandError, match="provides no Client"):
        tell.run("ada")


def test_a_command_shows_its_own_signature_and_documentation(charge: CommandType[..., Any]) -> None:
    assert list(inspect.signature(charge).parameters) == ["order", "amount", "note", "tags"]
    assert charge.__doc__ == "Take the money."
    assert repr(charge) == "<command payments.charge: call it to make a request>"


def test_a_command_that_was_not_called_is_no_request(charge: CommandType[..., Any]) -> None:
    with (
        SyncCommandBus("memory://") as bus,
        pytest.raises(Exception, match="call it to make a request"),
    ):
        bus.send(charge)  # type: ignore[call-overload]


def test_a_request_has_its_type_and_payload_already(charge: CommandType[..., Any]) -> None:
    with SyncCommandBus("memory://") as bus, pytest.raises(TypeError, match="options by name"):
        bus.send(charge(1), "charge", {})  # type: ignore[call-overload]


@pytest.mark.parametrize("text", ["x" * 300_000, "ä" * 140_000])
def test_a_typed_payload_over_the_limit_is_refused(payments: HandlerRegistry, text: str) -> None:
    @payments.command
    def charge(text: str) -> None: ...

    with SyncCommandBus("memory://") as bus:
        with pytest.raises(PayloadError, match="more than the limit of 262,144"):
            bus.send(charge(text))
        bus.send(charge(text[:100_000]))


def test_a_worker_works_on_a_bus_of_its_runtime(payments: HandlerRegistry) -> None:
    with pytest.raises(ConfigurationError, match="Worker works on a CommandBus"):
        Worker(SyncCommandBus("memory://"), payments)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="SyncWorker works on a SyncCommandBus"):
        SyncWorker(CommandBus("memory://"), payments)  # type: ignore[arg-type]


def test_methods_show_what_a_caller_may_pass() -> None:
    for cls in (CommandBus, SyncCommandBus):
        send = inspect.signature(cls.send)
        assert list(send.parameters)[:5] == ["self", "domain", "command_type", "data", "command_id"]
        assert {"delay", "priority", "tags", "retry"} <= set(send.parameters)
        assert send.return_annotation == "SendResult[R]"
        assert "scope" not in inspect.signature(cls.wait).parameters
        assert str(cls.send.__doc__).startswith("Send a command.")


def test_schemas_say_what_a_command_takes(charge: CommandType[..., Any]) -> None:
    schema = charge.payload.schema()
    (found,) = schema["$defs"].values()
    assert found["required"] == ["order"]
    assert set(found["properties"]) == {"order", "amount", "note", "tags"}


def test_a_schedule_has_a_request_or_a_domain_and_a_type(charge: CommandType[..., Any]) -> None:
    when: dict[str, Any] = {"name": "nightly", "every": 60}
    with pytest.raises(ConfigurationError, match="needs either request or domain and command_type"):
        Schedule(**when)
    with pytest.raises(ConfigurationError, match="leave these out"):
        Schedule(request=charge(7), domain="payments", **when)
    with pytest.raises(ConfigurationError, match="leave these out"):
        Schedule(request=charge(7), data={"order": 7}, **when)
    with pytest.raises(ConfigurationError, match=r"must be a request, such as charge\(order=7\)"):
        Schedule(request=charge, **when)  # type: ignore[arg-type]
    for option, value in (
        *(("command_id", uuid4()), ("idempotency_key", "one"), ("batch_id", uuid4())),
        *(("due_at", datetime.now(UTC)), ("expires_at", datetime.now(UTC)), ("sender", "ada")),
    ):
        request = charge(7).options(**{option: value})  # type: ignore[misc]
        with pytest.raises(ConfigurationError, match=f"'nightly' has {option}: .*{option}=None"):
            Schedule(request=request, **when)
    with pytest.raises(ConfigurationError, match="leave one of them out"):
        Schedule(request=charge(7).options(unique_key="x"), overlap="skip", **when).checked()


def test_a_schedule_keeps_the_payload_as_it_was_when_the_request_was_made() -> None:
    refund = command_type("payments", "refund", Refund)
    data = Refund(7)
    request = refund(data).options(priority="low")
    data.order = 8
    schedule = Schedule(name="nightly", request=request, every=60)
    assert (schedule.data, schedule.priority) == ({"order": 7, "amount": "1"}, "low")
    assert Schedule(name="nightly", request=request, every=60, priority=1).priority == 1
    plain = Schedule(name="nightly", request=SendRequest("payments", "refund", {"order": 7}), every=60)
    assert (plain.domain, plain.command_type, plain.data) == ("payments", "refund", {"order": 7})


@pytest.mark.parametrize("fold", [0, 1])
def test_a_time_in_the_hour_that_summer_time_repeats_is_kept(fold: int) -> None:
    registry = HandlerRegistry("calendar")

    @registry.command
    def meet(at: datetime) -> datetime:
        return at

    at = datetime(2026, 10, 25, 2, 30, fold=fold, tzinfo=ZoneInfo("Europe/Berlin"))
    with SyncCommandBus("memory://") as bus, SyncWorker(bus, registry):
        back = bus.request(meet(at), timeout=10)
    assert back.astimezone(UTC) == at.astimezone(UTC)


def test_a_command_without_required_arguments_may_be_sent_without_data() -> None:
    registry = HandlerRegistry("orders")

    @registry.command
    def pack() -> str:
        return "packed"

    @registry.command
    def ship(city: str = "Oslo") -> str:
        return city

    @registry.command
    def charge(amount: int) -> None: ...

    with SyncCommandBus("memory://") as bus, SyncWorker(bus, registry):
        sent = [bus.send("orders", name) for name in ("pack", "ship", "charge")]
        packed, shipped, charged = (bus.wait(one, timeout=30) for one in sent)
    assert (packed.result, shipped.result) == ("packed", "Oslo")
    assert charged.error_code == "UNDECODABLE"
