"""The quick way to encode flat payloads says what the careful way says."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Any
from uuid import UUID, uuid4

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commandbus.domain.codec import Codec
from commandbus.domain.exact import exact_check
from commandbus.errors import PayloadError

Flat = msgspec.defstruct(
    "Flat",
    [
        ("a", int),
        ("b", Decimal),
        ("c", str),
        ("d", float | None, None),
        ("e", bool, True),
        ("f", UUID | None, None),
    ],
    frozen=True,
)
QUICK, CAREFUL = Codec[Any](Flat, made_of_arguments=True), Codec[Any](Flat)

VALUES = st.one_of(
    st.integers(-(2**65), 2**65),
    st.sampled_from([2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1]),
    st.booleans(),
    st.none(),
    st.floats(),
    st.decimals(),
    st.uuids(),
    st.text(),
    st.sampled_from(["\0", "\\u0000", "\ud800", "1.50"]),
)


def said(codec: Codec[Any], value: Any) -> str:
    try:
        return codec.encode(value, "it")
    except PayloadError as error:
        return f"refused: {error}"


@given(st.tuples(VALUES, VALUES, VALUES, VALUES, VALUES, VALUES))
def test_any_values_are_encoded_or_refused_alike(values: tuple[Any, ...]) -> None:
    assert said(QUICK, Flat(*values)) == said(CAREFUL, Flat(*values))


@given(
    st.integers(-(2**63), 2**64 - 1),
    st.decimals(allow_nan=False, allow_infinity=False),
    st.text(),
    st.none() | st.floats(),
)
def test_values_of_the_right_types_are_encoded_or_refused_alike(a: Any, b: Any, c: Any, d: Any) -> None:
    assert said(QUICK, Flat(a, b, c, d)) == said(CAREFUL, Flat(a, b, c, d))


def test_equal_values_of_other_types_are_distinguished() -> None:
    is_exact = exact_check(Flat)
    assert is_exact is not None
    assert is_exact(Flat(1, Decimal(1), "x", None, False, uuid4()))
    for wrong in (
        (True, Decimal(1), "x"),
        (1, 1.0, "x"),
        (1, Decimal("NaN"), "x"),
        (1, Decimal(1), b""),
    ):
        assert not is_exact(Flat(*wrong))


@pytest.mark.parametrize("kind", [list[int], Annotated[str, msgspec.Meta(max_length=3)], Flat, Any])
def test_other_types_have_no_quick_way(kind: Any) -> None:
    assert exact_check(msgspec.defstruct("Other", [("a", int), ("b", kind)])) is None
