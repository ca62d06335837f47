"""What a call of a typed command checks, and the request that it makes."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import msgspec
import pytest

from commandbus import HandlerRegistry, SendRequest
from commandbus.domain.contract import command_type
from commandbus.errors import (
    PayloadError,
)
from commandbus.records import CommandType
from tests.unit.typed.models import Refund


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


def test_wrong_arguments_of_a_model_are_type_errors_in_the_words_of_its_class() -> None:
    refund: Any = command_type("payments", "refund", Refund)
    with pytest.raises(TypeError, match="nexpected keyword argument 'size'"):
        refund(order=1, size=2)


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
