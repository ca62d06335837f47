"""The registry: what it accepts, how payloads are decoded by annotation, and what it refuses."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Annotated, Any, Generic, Protocol, TypeVar

import msgspec
import pytest

import commandbus
from commandbus import Command, HandlerContext, HandlerRegistry, RetryPolicy, handler
from commandbus.errors import (
    ConfigurationError,
    HandlerAlreadyRegisteredError,
    HandlerNotFoundError,
    InvalidArgumentError,
)
from commandbus.sync import SyncHandlerContext

T = TypeVar("T")


@dataclass
class Order:
    number: int


class Line(msgspec.Struct):
    sku: str


class Model:
    """Looks like a pydantic model, as far as the registry can tell."""

    def __init__(self, text: str | bytes) -> None:
        self.text = text

    @classmethod
    def model_validate_json(cls, text: str | bytes) -> Model:
        return cls(text)


class Service(Generic[T]):
    """Methods of every sort."""

    calls: list[str]

    @handler("shop", "Order", retry=RetryPolicy(2), timeout=5)
    def order(self, command: Command[Order], context: object) -> int:
        return command.data.number

    @handler("shop", "Later")
    async def later(self, command: Command[Any], context: object) -> None: ...

    @property
    def explosive(self) -> None:
        raise AssertionError("registering must not read properties")

    def unmarked(self, command: object, context: object) -> None: ...


def typed_dataclass(command: Command[Order], context: object) -> None: ...
def typed_struct(command: Command[Line], context: object) -> None: ...
def typed_list(command: Command[list[Order]], context: object) -> None: ...
def typed_model(command: Command[Model], context: object) -> None: ...
def typed_by_module(command: commandbus.Command[Order], context: object) -> None: ...
def untyped(command, context): ...
def plain_command(command: Command, context: object) -> None: ...  # type: ignore[type-arg]
def generic_command(command: Command[T], context: object) -> None: ...
def variadic(*args: Any) -> None: ...
def with_default(command: Command[Order], context: object, extra: int = 1) -> None: ...


@pytest.mark.parametrize(
    ("function", "text", "decoded"),
    [
        (typed_dataclass, '{"number":3}', Order(3)),
        (typed_struct, '{"sku":"x"}', Line("x")),
        (typed_list, '[{"number":1}]', [Order(1)]),
        (typed_by_module, '{"number":4}', Order(4)),
        (with_default, '{"number":5}', Order(5)),
        (untyped, '{"number":3}', {"number": 3}),
        (plain_command, "[1]", [1]),
        (generic_command, "[1]", [1]),
        (variadic, '"x"', "x"),
        (functools.partial(typed_dataclass), '{"number":6}', Order(6)),
        (functools.partial(with_default, extra=2), '{"number":7}', Order(7)),
        (Service().order, '{"number":8}', Order(8)),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_payloads_are_decoded_by_the_annotation(function: Any, text: str, decoded: Any) -> None:
    registered = HandlerRegistry().register("shop", "T", function)
    assert registered.decode(text) == decoded


def test_a_payload_that_does_not_fit_is_an_error() -> None:
    registered = HandlerRegistry().register("shop", "T", typed_dataclass)
    with pytest.raises(msgspec.ValidationError, match="number"):
        registered.decode('{"number":"three"}')


def test_a_pydantic_model_is_recognised_without_importing_pydantic() -> None:
    registered = HandlerRegistry().register("shop", "T", typed_model)
    assert registered.decode('{"a":1}').text == '{"a":1}'
    assert registered.payload_type is Model


def test_a_type_from_an_enclosing_function_that_the_body_uses_is_found() -> None:
    class Local(msgspec.Struct):
        n: int

    def closes_over(command: Command[Local], context: object) -> type:
        return Local

    assert HandlerRegistry().register("shop", "T", closes_over).decode('{"n":1}') == Local(1)


def test_an_annotation_that_cannot_be_resolved_says_what_to_do() -> None:
    class Hidden(msgspec.Struct):
        n: int

    def mentions(command: Command[Hidden], context: object) -> None: ...

    with pytest.raises(ConfigurationError, match="define or import its types at the top"):
        HandlerRegistry().register("shop", "T", mentions)


def test_a_type_that_json_cannot_hold_is_refused() -> None:
    def odd(command: Command[Order | Line], context: object) -> None: ...

    with pytest.raises(ConfigurationError, match="cannot be decoded"):
        HandlerRegistry().register("shop", "T", odd)


def nothing() -> None: ...
def one(command: object) -> None: ...
def three(command: object, context: object, extra: object) -> None: ...
def keyword(command: object, context: object, *, extra: object) -> None: ...
def keywords_only(*, command: object, context: object) -> None: ...


@pytest.mark.parametrize("wrong", [nothing, one, three, keyword, keywords_only, lambda c: None])
def test_a_handler_that_cannot_be_called_with_command_and_context_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"must accept exactly \(command, context\)"):
        HandlerRegistry().register("shop", "T", wrong)


def plain_values(order: int, city: str) -> None: ...
def payload_itself(order: Order, context: object) -> None: ...
def mapping(order: dict[str, Any], context: object) -> None: ...
def not_a_command(order: int | None, context: object) -> None: ...


@pytest.mark.parametrize(
    ("wrong", "shown"),
    [
        (plain_values, "int"),
        (payload_itself, "Order"),
        (mapping, "dict"),
        (not_a_command, "int | None"),
        (functools.partial(plain_values), "int"),
    ],
)
def test_a_first_parameter_that_takes_no_command_is_refused(wrong: Any, shown: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"annotate it Command\[{re.escape(shown)}"):
        HandlerRegistry().register("shop", "T", wrong)


def city_for_context(command: Command[Order], city: str) -> None: ...


def test_a_second_parameter_that_takes_no_context_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="as str: it gets a HandlerContext if"):
        HandlerRegistry().register("shop", "T", city_for_context)


class Seen(Protocol):
    @property
    def attempt(self) -> int: ...


class OwnCommand(Command[Order]): ...


def protocols(command: object, context: Seen) -> None: ...
def unions(command: Command[Order] | None, context: HandlerContext | None) -> None: ...
def own_command(command: OwnCommand, context: SyncHandlerContext) -> None: ...
def annotated(command: Annotated[Command[Order], "text"], context: Any) -> None: ...
def unknown_name(command: Unknown, context: Unknown) -> None: ...  # type: ignore[name-defined]  # noqa: F821


def unknown_context(command: Command[Order], context: Unknown[Any]) -> None: ...  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize(
    "right", [protocols, unions, own_command, annotated, unknown_name, unknown_context]
)
def test_annotations_that_may_fit_are_accepted(right: Any) -> None:
    assert HandlerRegistry().register("shop", "T", right).function is right


def generator(command: object, context: object) -> Any:
    yield 1


async def async_generator(command: object, context: object) -> Any:
    yield 1


class GeneratorObject:
    def __call__(self, command: object, context: object) -> Any:
        yield 1


@pytest.mark.parametrize(
    "wrong", [generator, async_generator, functools.partial(generator), GeneratorObject()]
)
def test_a_generator_is_refused_because_its_call_runs_nothing(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="is a generator: calling it runs nothing"):
        HandlerRegistry().register("shop", "T", wrong)


class TwoArguments:
    def __init__(self, command: object, context: object) -> None: ...


def test_a_class_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"TwoArguments .*is a class: register a function"):
        HandlerRegistry().register("shop", "T", TwoArguments)


def test_a_variable_of_the_enclosing_function_may_be_assigned_later() -> None:
    def closes_over(command: Command[Order], context: object) -> int:
        return later

    registered = HandlerRegistry().register("shop", "T", closes_over)
    later = 1
    assert registered.payload_type is Order


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [("transactionl", "'transactional'"), ("timout", "'timeout'"), ("total_time", "'total_timeout'")],
)
def test_a_misspelt_option_is_refused_with_the_nearest_one(wrong: str, meant: str) -> None:
    options: Any = {wrong: 1}
    with pytest.raises(ConfigurationError, match=f"{wrong}=, which is no option: did you mean {meant}"):
        HandlerRegistry().register("shop", "T", untyped, **options)
    with pytest.raises(ConfigurationError, match=f"did you mean {meant}"):
        HandlerRegistry().handler("shop", "T", **options)(untyped)
    with pytest.raises(ConfigurationError, match=f"did you mean {meant}"):
        handler("shop", "T", **options)(untyped)


def test_an_option_like_no_other_is_refused_with_all_of_them() -> None:
    options: Any = {"colour": 1}
    with pytest.raises(
        ConfigurationError, match="no option: The options are breaker, concurrency, errors"
    ):
        HandlerRegistry().register("shop", "T", untyped, **options)


def test_a_refusal_names_the_file_and_line_of_the_handler() -> None:
    line = untyped.__code__.co_firstlineno
    options: Any = {"timout": 5}
    with pytest.raises(ConfigurationError, match=rf"untyped \({re.escape(__file__)}:{line}\)"):
        HandlerRegistry().register("shop", "T", untyped, **options)
    line = one.__code__.co_firstlineno
    with pytest.raises(ConfigurationError, match=rf"one \({re.escape(__file__)}:{line}\) must accept"):
        HandlerRegistry().register("shop", "T", one)


@pytest.mark.parametrize("wrong", [None, 5, "text"])
def test_what_cannot_be_called_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="must be callable"):
        HandlerRegistry().register("shop", "T", wrong)


def test_a_second_handler_of_a_type_is_refused_and_the_first_one_stays() -> None:
    registry = HandlerRegistry()
    registry.register("shop", "T", untyped)
    with pytest.raises(HandlerAlreadyRegisteredError, match="'T' in domain 'shop'"):
        registry.register("shop", "T", typed_dataclass)
    assert registry.get_or_raise("shop", "T").function is untyped
    registry.register("billing", "T", typed_dataclass)
    assert registry.registered_handlers() == [("shop", "T"), ("billing", "T")]


@pytest.mark.parametrize(
    "wrong",
    [
        {"retry": 3},
        {"breaker": 3},
        {"transactional": "yes"},
        {"transactional": None},
        {"timeout": 0},
        {"timeout": -1},
        {"timeout": "5"},
        {"timeout": float("nan")},
    ],
)
def test_wrong_options_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        HandlerRegistry().register("shop", "T", untyped, **wrong)


def test_names_are_checked_at_registration() -> None:
    with pytest.raises(InvalidArgumentError, match="command_type"):
        HandlerRegistry().register("shop", "no spaces", untyped)


class Callable_:
    def __call__(self, command: object, context: object) -> None: ...


class AsyncCallable:
    async def __call__(self, command: object, context: object) -> None: ...


async def coroutine(command: object, context: object) -> None: ...


@pytest.mark.parametrize(
    ("function", "is_async"),
    [
        (untyped, False),
        (coroutine, True),
        (functools.partial(coroutine), True),
        (Callable_(), False),
        (AsyncCallable(), True),
        (Service().later, True),
        (Service().order, False),
    ],
)
def test_it_is_known_which_handlers_must_be_awaited(function: Any, is_async: bool) -> None:
    assert HandlerRegistry().register("shop", "T", function).is_async is is_async


def test_the_decorator_returns_the_function_unchanged() -> None:
    registry = HandlerRegistry()
    assert registry.handler("shop", "T", timeout=2)(untyped) is untyped
    assert registry.get_or_raise("shop", "T").timeout == 2.0


def test_marked_methods_of_an_object_are_registered_with_their_options() -> None:
    registry = HandlerRegistry()
    found = registry.register_instance(Service())
    assert sorted(found) == [("shop", "Later"), ("shop", "Order")]
    order = registry.get_or_raise("shop", "Order")
    assert (order.retry, order.timeout, order.payload_type) == (RetryPolicy(2), 5.0, Order)


def test_an_object_without_marked_methods_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="object has no method marked"):
        HandlerRegistry().register_instance(object())


def test_a_missing_handler_is_none_or_an_error_that_says_how_to_register() -> None:
    registry = HandlerRegistry()
    assert registry.get("shop", "T") is None
    assert not registry.has_handler("shop", "T")
    with pytest.raises(HandlerNotFoundError, match=r"@registry\.handler\('shop', 'T'\)"):
        registry.get_or_raise("shop", "T")


def test_clearing_forgets_all_handlers() -> None:
    registry = HandlerRegistry()
    registry.register("shop", "T", untyped)
    registry.clear()
    assert registry.registered_handlers() == []
