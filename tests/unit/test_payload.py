"""Payloads: what goes in comes out bit for bit; what cannot be kept is refused, with its place."""

from __future__ import annotations

import dataclasses
import enum
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from commandbus.domain import payload
from commandbus.domain.misfit import describe_misfit
from commandbus.errors import PayloadError

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40)
numbers = st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
scalars = st.none() | st.booleans() | numbers | texts
documents = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=25,
)


@given(documents)
def test_every_json_value_comes_back_exactly(value: Any) -> None:
    back = payload.decode(payload.encode(value))
    assert back == value
    assert repr(back) == repr(value), "also signs of zero, and int or float"


@pytest.mark.parametrize(
    "text",
    [
        "\u2028\u2029",
        "\U0001f469\u200d\U0001f680",
        "e\u0301",
        "\x01\x1f\x7f",
        "\ufeff",
        '"\\/',
        "\uffff",
    ],
)
def test_odd_unicode_is_kept_as_it_is(text: str) -> None:
    assert payload.decode(payload.encode({text: [text]})) == {text: [text]}


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Point:
    x: float
    tags: list[str]


class Line(msgspec.Struct):
    start: Point
    colour: Colour


class Model:
    """Looks like a pydantic model, as far as the bus can tell."""

    def __init__(self, **fields: Any) -> None:
        self.fields = fields

    def model_dump(self, *, mode: str) -> dict[str, Any]:
        assert mode == "json"
        return self.fields


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (Point(1.5, ["a"]), {"x": 1.5, "tags": ["a"]}),
        (
            Line(Point(0.0, []), Colour.RED),
            {"start": {"x": 0.0, "tags": []}, "colour": "red"},
        ),
        (Model(name="n", inner=[1]), {"name": "n", "inner": [1]}),
        ({"points": [Point(2.0, [])]}, {"points": [{"x": 2.0, "tags": []}]}),
        ((1, "two"), [1, "two"]),
    ],
    ids=["dataclass", "Struct", "model", "nested dataclass", "tuple"],
)
def test_typed_values_become_plain_json(value: Any, kept: Any) -> None:
    assert payload.decode(payload.encode(value)) == kept


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ({"a": [1, {"b": math.nan}]}, r"data\.a\[1\]\.b is nan"),
        ([math.inf], r"data\[0\] is inf"),
        ([-math.inf], r"data\[0\] is -inf"),
        ({"a": "x\0y"}, r"data\.a contains a NUL"),
        ({"x\0y": 1}, r"data contains a NUL"),
        ({"a": ["ok", "\ud800"]}, r"data\.a\[1\] contains a lone surrogate"),
        ({"\udfff": 1}, r"data contains a lone surrogate"),
        ({"a": {1: 2}}, r"data\.a has the key 1 of type int"),
        ({None: 1}, r"data has the key None"),
        ([2**64], r"data\[0\] is a whole number beyond 64 bits"),
        ([-(2**63) - 1], r"data\[0\] is a whole number beyond 64 bits"),
        (nested(65), r"nested deeper than 64"),
        ({"a": object()}, r"data\.a of type object is not JSON"),
        (Point(math.nan, []), r"data\.x is nan"),
        ({"p": Point(1.0, ["\ud800"])}, r"data\.p\.tags\[0\] contains a lone surrogate"),
        (Model(x=math.inf), r"data\.x is inf"),
        ("x" * 262_143, r"takes 262,145 bytes"),
    ],
)
def test_what_cannot_be_kept_is_refused_with_its_place(value: Any, place: str) -> None:
    with pytest.raises(PayloadError, match=place):
        payload.encode(value)


def test_depth_64_and_the_largest_document_are_accepted() -> None:
    assert payload.decode(payload.encode(nested(64))) == nested(64)
    assert len(payload.encode("x" * 262_142)) == payload.PAYLOAD_BYTES_MAX


def test_a_document_that_contains_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(PayloadError, match="nested deeper"):
        payload.encode(loop)


def test_a_model_that_raises_is_a_payload_error() -> None:
    class Broken:
        def model_dump(self, *, mode: str) -> None:
            raise KeyError(mode)

    with pytest.raises(PayloadError, match="its model_dump raised KeyError"):
        payload.encode(Broken())


def test_a_refusal_names_what_was_refused_and_keeps_the_place_short() -> None:
    with pytest.raises(PayloadError, match=r"^result\.x is nan"):
        payload.encode({"x": math.nan}, what="result")
    with pytest.raises(PayloadError) as caught:
        payload.encode({"k" * 500: math.nan})
    assert len(str(caught.value)) < 250
    with pytest.raises(PayloadError, match=rf"^data\.{'k' * 115} is nan"):
        payload.encode({"k" * 115: math.nan})
    with pytest.raises(PayloadError, match=rf"^data\.{'k' * 115}… is nan"):
        payload.encode({"k" * 116: math.nan})


@pytest.mark.parametrize(("problems", "more"), [(5, ""), (7, "; and 2 more")])
def test_of_many_misfits_five_are_described(problems: int, more: str) -> None:
    with pytest.raises(ValueError, match="validation errors") as wrong:
        TypeAdapter(list[int]).validate_python(["x"] * problems)
    assert describe_misfit(wrong.value) == (
        "; ".join(f"int_parsing at $[{number}]" for number in range(5)) + more
    )
