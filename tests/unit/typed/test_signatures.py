"""Which signatures can be contracts, and where errors point."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any

import pydantic
import pytest

from commandbus import (
    HandlerRegistry,
)
from commandbus.errors import (
    ConfigurationError,
    HandlerAlreadyRegisteredError,
    InvalidArgumentError,
)
from commandbus.sync import SyncHandlerContext
from tests.unit.typed.models import Refund


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
