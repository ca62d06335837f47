"""Payloads of typed commands: values that mean the same, models, contracts alone."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any
from uuid import UUID

import msgspec
import pydantic
import pytest

from commandbus import HandlerRegistry, command_type
from commandbus.errors import (
    ConfigurationError,
    PayloadError,
)
from commandbus.records import CommandType
from tests.unit.typed.models import (
    Box,
    Extended,
    Keys,
    Login,
    Model,
    Opaque,
    Refund,
    Ship,
    Shortened,
    Stamped,
)


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
