"""Contracts of typed commands: what a signature may say, what a call checks, and where errors point."""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from functools import cached_property
from typing import Annotated, Any, Generic, TypedDict, TypeVar
from uuid import UUID, uuid4
from zoneinfo import ZoneInfo

import msgspec
import pydantic
import pytest

from commandbus import (
    PROVIDED,
    CommandBus,
    CommandType,
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
    HandlerAlreadyRegisteredError,
    InvalidArgumentError,
    PayloadError,
)
from commandbus.sync import SyncCommandBus, SyncHandlerContext, SyncWorker
from commandbus.testing import handler_context, sync_handler_context


@dataclass
class Refund:
    order: int
    amount: Decimal = Decimal(1)


@dataclass(eq=False)
class Opaque:
    order: int


class Ship(msgspec.Struct):
    order: int


Item = TypeVar("Item")


@dataclass
class Box(Generic[Item]):
    order: Item


class Model(pydantic.BaseModel):
    order: int
    at: datetime | None = None
    count: int = pydantic.Field(default=1, alias="howMany")


class Extended(Model):
    gift: str = "none"


class Stamped(pydantic.BaseModel):
    at: datetime

    @pydantic.field_serializer("at")
    def day(self, at: datetime) -> str:
        return at.date().isoformat()


class Shortened(pydantic.BaseModel):
    items: list[int]

    @pydantic.field_serializer("items")
    def first(self, items: list[int]) -> list[int]:
        return items[:1]


class Login(pydantic.BaseModel, extra="allow"):
    password: pydantic.SecretStr | None = None
    hidden: int = pydantic.Field(default=0, exclude=True)
    model: Model | None = None
    pair: tuple[int, ...] = ()
    anything: Any = None
    _seen: int = pydantic.PrivateAttr(default=0)
    _lock: object = pydantic.PrivateAttr(default_factory=object)

    @cached_property
    def total(self) -> int:
        return self.hidden

    def after(self, seen: int) -> Login:
        self._seen = seen
        return self


class Keys(TypedDict):
    order: int


@pytest.fixture
def payments() -> HandlerRegistry:
    return HandlerRegistry("payments")


@pytest.fixture
def charge(payments: HandlerRegistry) -> CommandType[..., Any]:
    @payments.command
    def charge(
        order: int,
        amount: Decimal = Decimal(1),
        note: float | None = None,
        *,
        tags: list[str] = [],  # noqa: B006 - each request gets a list of its own
    ) -> None:
        """Take the money."""

    return charge


def test_a_call_makes_a_request_and_runs_nothing(payments: HandlerRegistry) -> None:
    ran: list[int] = []

    @payments.command
    def charge(order: int) -> None:
        ran.append(order)

    request = charge(order=7)
    assert isinstance(request, SendRequest)
    assert (request.domain, request.command_type, request.data.order) == ("payments", "charge", 7)
    assert request == charge(7)
    assert repr(request.options(delay=5)) == "payments.charge(charge(order=7), delay=5)"
    assert ran == []


def test_a_request_keeps_the_payload_as_it_was_at_the_call(payments: HandlerRegistry) -> None:
    @payments.command
    def refund(data: Refund) -> None: ...

    mine = Refund(1)
    request: Any = refund(mine)
    mine.order = 2
    assert request.text == '{"order":1,"amount":"1"}'


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "charge() missing a required argument: 'order'"),
        ({"order": 1, "size": 2}, "charge() got an unexpected keyword argument 'size'"),
    ],
)
def test_wrong_arguments_are_type_errors_in_pythons_words(
    charge: CommandType[..., Any], arguments: dict[str, Any], words: str
) -> None:
    with pytest.raises(TypeError) as caught:
        charge(**arguments)
    assert str(caught.value) == words
    with pytest.raises(TypeError, match="too many positional arguments"):
        charge(1, Decimal(1), None, [])
    with pytest.raises(TypeError, match="multiple values for argument 'order'"):
        charge(1, order=1)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"order": "secret"}, "Expected int, got str at $.order"),
        ({"order": 7.0}, "Expected int, got float at $.order"),
        ({"order": True}, "Expected int, got bool at $.order"),
        ({"order": None}, "Expected int, got null at $.order"),
        ({"order": 2**70}, "$.order is a whole number beyond 64 bits; send it as text"),
        ({"order": 1, "amount": "9.99"}, "Expected Decimal, got str at $.amount"),
        ({"order": 1, "amount": 1.5}, "Expected Decimal, got float at $.amount"),
        ({"order": 1, "amount": Decimal("NaN")}, "a Decimal that JSON alters at $.amount"),
        ({"order": 1, "amount": Decimal("sNaN")}, "a Decimal that JSON alters at $.amount"),
        ({"order": 1, "note": float("nan")}, "Expected NoneType, got float at $.note"),
        ({"order": 1, "tags": ["a", 2]}, "Expected str, got int at $.tags[1]"),
        ({"order": 1, "tags": {"a": 1}}, "Expected array, got object at $.tags"),
        ({"order": 1, "tags": ["a\0b"]}, "$.tags[0] contains a NUL character"),
        ({"order": 1, "tags": ["\udc80"]}, "a list at $.tags cannot be written as JSON"),
        ({"order": object()}, "a object at $.order cannot be written as JSON"),
    ],
)
def test_values_that_do_not_fit_are_refused_at_the_call_by_field(
    charge: CommandType[..., Any], arguments: dict[str, Any], problem: str
) -> None:
    with pytest.raises(PayloadError) as caught:
        charge(**arguments)
    assert problem in str(caught.value)
    assert str(caught.value).startswith("The arguments of payments.charge do not fit: ")
    assert "secret" not in str(caught.value)


def test_values_that_mean_the_same_are_accepted(charge: CommandType[..., Any]) -> None:
    assert charge(1, note=3, tags=("a", "b")).data.note == 3
    deep: Any = charge(1, tags=["[" * 100])
    assert deep.text == msgspec.json.encode(deep.data).decode()


class Size(enum.IntEnum):
    SMALL = 1


@pytest.mark.parametrize(
    ("kind", "given", "arrives"),
    [
        (Any, {"a": (1, 2)}, {"a": [1, 2]}),
        (list, (1, 2), [1, 2]),
        (dict[str, Any], {"a": (1, 2)}, {"a": [1, 2]}),
        (Sequence[int], (1, 2), [1, 2]),
        (tuple[int, ...], [1, 2], (1, 2)),
        (set[int], frozenset({1}), {1}),
        (float, 1, 1.0),
        (int, Size.SMALL, 1),
    ],
)
def test_a_value_that_means_the_same_arrives_as_the_annotated_class(
    payments: HandlerRegistry, kind: Any, given: Any, arrives: Any
) -> None:
    def charge(order: int, value: Any) -> None: ...

    charge.__annotations__["value"] = kind
    made: CommandType[..., Any] = payments.command(charge)
    request: Any = made(1, given)
    value = made.payload.decode(request.text).value
    assert (type(value), value) == (type(arrives), arrives)


@pytest.mark.parametrize("kind", [Any, list[int], tuple[int, ...]])
def test_a_set_is_no_list(payments: HandlerRegistry, kind: Any) -> None:
    def charge(order: int, value: Any) -> None: ...

    charge.__annotations__["value"] = kind
    made: CommandType[..., Any] = payments.command(charge)
    with pytest.raises(PayloadError, match=r"got set at \$\.value"):
        made(1, {1})


def test_metadata_of_msgspec_is_checked_and_notes_are_accepted(payments: HandlerRegistry) -> None:
    @payments.command
    def charge(
        order: Annotated[int, msgspec.Meta(ge=0)], note: Annotated[str, "for people"]
    ) -> None: ...

    charge(0, "")
    with pytest.raises(PayloadError, match=r"at \$\.order"):
        charge(-1, "")


@pytest.mark.parametrize(
    ("kind", "given", "wrong", "problem"),
    [
        (Refund, Refund(7), Refund("x"), "Expected int, got str at $.order"),  # type: ignore[arg-type]
        (Refund, Refund(7), {"order": 7, "amount": "1"}, "Expected Refund, got dict at $"),
        (Opaque, Opaque(7), Opaque(None), "Expected int, got null at $.order"),  # type: ignore[arg-type]
        (Box[int], Box(7), Box("x"), "Expected int, got str at $.order"),
        (Ship, Ship(7), Ship("x"), "Expected int, got str at $.order"),  # type: ignore[arg-type]
        (Model, Model(order=7, howMany=3), {"order": 7}, "Expected Model, got dict at $"),
        (Keys, {"order": 7}, {"order": 7, "oder": 8}, "unknown field at $.oder"),
    ],
)
def test_one_parameter_that_is_a_model_is_the_payload(
    payments: HandlerRegistry, kind: Any, given: Any, wrong: Any, problem: str
) -> None:
    seen: list[Any] = []

    def charge(data: Any) -> None:
        seen.append(data)

    charge.__annotations__["data"] = kind
    made: CommandType[..., Any] = payments.command(charge)
    request: Any = made(given)
    assert request == made(data=given)
    assert type(made.payload.decode(request.text)) is type(given)
    assert made.payload.encode(made.payload.decode(request.text), "") == request.text
    with pytest.raises(PayloadError) as caught:
        made(wrong)
    assert problem in str(caught.value)
    with pytest.raises(TypeError, match="too many positional arguments"):
        made(given, given)


def test_a_model_inside_another_type_is_kept(payments: HandlerRegistry) -> None:
    @payments.command
    def charge(models: list[Model], by_name: dict[str, Model]) -> Model:
        return models[0]

    model = Model(order=1, at=datetime(2026, 1, 2, 3), howMany=4)
    request: Any = charge([model], {"a": model})
    assert charge.payload.decode(request.text) == request.data
    assert charge.decode_result(msgspec.json.decode(charge.encode_result(model) or "")) == model
    with pytest.raises(PayloadError, match="at "):
        charge([{"order": 1}], {})  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (Login(password=pydantic.SecretStr("s3cret")), "a SecretStr that JSON alters at $.password"),
        (Login(hidden=1234), "a int that JSON alters at $.hidden"),
        (Login().after(1234), "a int that JSON alters at $._seen"),
        (Login(anything=UUID(int=1234)), "Expected str, got UUID at $.anything"),
        (Login.model_validate({"more": UUID(int=1234)}), "Expected str, got UUID at $.more"),
        (Login(model=Extended(order=1, gift="s3cret")), "Expected Model, got Extended at $.model"),
        (Extended(order=1, gift="s3cret"), "Expected Model, got Extended at $"),
        (Stamped(at=datetime(2026, 1, 2, 3, tzinfo=UTC)), "a datetime that JSON alters at $.at"),
        (Shortened(items=[1234, 5]), "a list that JSON alters at $.items"),
    ],
)
def test_a_pydantic_model_that_json_would_alter_is_refused_by_field(
    payments: HandlerRegistry, value: pydantic.BaseModel, words: str
) -> None:
    kind: Any = Model if isinstance(value, Model) else type(value)
    alone = command_type("payments", "alone", kind, kind)

    def beside(other: int, model: Any) -> None: ...

    beside.__annotations__["model"] = kind
    inside: CommandType[..., Any] = payments.command(beside)
    inner = words.replace(" at $", " at $.model")
    for call, expected in (
        (lambda: alone(value), words),
        (lambda: alone.encode_result(value), words),
        (lambda: inside(1, value), inner),
    ):
        with pytest.raises(PayloadError) as caught:
            call()
        assert str(caught.value).endswith(f": {expected}.")
        assert "s3cret" not in str(caught.value)
        assert "1234" not in str(caught.value)


def test_a_pydantic_model_that_comes_back_equal_is_accepted() -> None:
    login = command_type("payments", "login", Login)
    value = Login(pair=(1, 2), model=Model(order=1, howMany=2), anything=[1, {"a": None}])
    assert value.total == 0  # cached in the instance, and no field
    request: Any = login(value)
    assert login.payload.decode(request.text).model_dump() == value.model_dump()


def test_a_contract_alone_takes_an_instance_or_the_arguments_of_its_class() -> None:
    charge = command_type("payments", "charge", Refund, Model)
    assert charge(order=7) == charge(Refund(7)) == charge(7)
    assert charge(7).data == Refund(7)
    box = command_type("payments", "charge", Box[int])
    assert box(order=7) == box(Box(7))
    keys = command_type("payments", "charge", Keys)
    assert keys(order=7).data == {"order": 7}
    with pytest.raises(PayloadError, match=r"int_parsing at \$\.order"):
        command_type("payments", "charge", Model)(order="x")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        charge(7, size=2)  # type: ignore[call-overload]
    for wrong in (int, dict[str, int], "Refund"):
        with pytest.raises(ConfigurationError, match="must be a dataclass, msgspec Struct"):
            command_type("payments", "charge", wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="has no JSON form"):
        command_type("payments", "charge", Refund, object())  # type: ignore[call-overload]


def positional(order: int, /) -> None: ...
def many(*orders: int) -> None: ...
def private(*, __order: int = 1) -> None: ...
def named(**orders: int) -> None: ...
def untyped(order) -> None: ...  # type: ignore[no-untyped-def]
def late(order: int, context: SyncHandlerContext) -> None: ...
def foreign(order: HandlerRegistry) -> None: ...
def foreign_result(order: int) -> HandlerRegistry: ...  # type: ignore[empty-body]
def ambiguous(order: datetime | str) -> None: ...
def unchecked(order: Annotated[int, pydantic.Field(ge=0)]) -> None: ...
def unchecked_items(orders: list[pydantic.PositiveInt] | None) -> None: ...
def unchecked_result(order: int) -> Annotated[int, pydantic.Field(ge=0)]: ...  # type: ignore[empty-body]
def unknown(order: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821
def wrong_default(order: int = "x") -> None: ...  # type: ignore[assignment]
def defaulted_model(data: Refund = Refund(1)) -> None: ...  # noqa: B008
def generator(order: int) -> Any:
    yield order


async def blocking_context(context: SyncHandlerContext) -> None: ...


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (positional, "takes 'order' by position only"),
        (many, r"takes \*orders"),
        (private, "takes '__order': a field cannot begin with two underscores"),
        (named, r"takes \*\*orders"),
        (untyped, "does not annotate 'order'"),
        (late, "takes its context as 'context': make it the first parameter"),
        (foreign, "annotates 'order' as .*HandlerRegistry.*, which has no JSON form"),
        (foreign_result, "annotates its result as .*which has no JSON form"),
        (ambiguous, "annotates 'order' as .*more than one str-like type"),
        (unchecked, "annotates 'order' with FieldInfo, .* use msgspec.Meta, or a pydantic model"),
        (
            unchecked_items,
            "annotates 'orders' with Gt, which nothing checks outside of a pydantic model",
        ),
        (unchecked_result, "annotates its result with FieldInfo"),
        (unknown, "annotates 'order' as 'Nowhere', which cannot be resolved"),
        (wrong_default, "gives 'order' a default that does not fit int"),
        (defaulted_model, "gives 'data' a default"),
        (generator, "is a generator"),
        (blocking_context, "its context is a HandlerContext"),
    ],
)
@pytest.mark.parametrize("bare", [True, False])
def test_a_signature_that_cannot_be_a_contract_is_refused_at_its_file_and_line(
    payments: HandlerRegistry, function: Callable[..., Any], problem: str, bare: bool
) -> None:
    with pytest.raises(ConfigurationError, match=problem) as caught:
        payments.command(function) if bare else payments.command("charge", timeout=5)(function)
    place = f"{function.__name__} ({__file__}:{function.__code__.co_firstlineno})"
    assert f"The command {place}" in str(caught.value)
    assert payments.registered_handlers() == []


@pytest.mark.parametrize("thing", [print, Refund, lambda: None, 7])
def test_only_functions_with_a_name_are_commands(payments: HandlerRegistry, thing: Any) -> None:
    with pytest.raises((ConfigurationError, ValueError)):
        payments.command(thing)


def test_an_empty_name_is_refused(payments: HandlerRegistry) -> None:
    with pytest.raises(InvalidArgumentError, match="command_type"):

        @payments.command("")
        def charge(order: int) -> None: ...


def test_two_commands_of_one_name_are_refused_with_both_places(payments: HandlerRegistry) -> None:
    @payments.command
    def charge(order: int) -> None: ...

    first = charge.function.__code__.co_firstlineno
    with pytest.raises(HandlerAlreadyRegisteredError) as caught:

        @payments.command("charge")
        def bill(order: int) -> None: ...

    assert f"{__file__}:{first}" in str(caught.value)
    assert "bill" in str(caught.value)
    other = HandlerRegistry("payments")
    other.register("payments", "charge", lambda command, context: None)
    with pytest.raises(HandlerAlreadyRegisteredError):
        HandlerRegistry.union([payments, other])


def test_a_registry_without_a_domain_has_no_typed_commands() -> None:
    with pytest.raises(ConfigurationError, match=r'HandlerRegistry\("payments"\)'):

        @HandlerRegistry().command
        def charge(order: int) -> None: ...


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
        packed, shipped, charged = (bus.wait(one, timeout=10) for one in sent)
    assert (packed.result, shipped.result) == ("packed", "Oslo")
    assert charged.error_code == "UNDECODABLE"
