"""Names, texts, tags and priorities: narrow where they become part of other systems."""

from __future__ import annotations

from enum import Enum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commandbus.domain.names import as_name, as_tags, as_text
from commandbus.domain.priority import as_priority
from commandbus.errors import InvalidArgumentError


@given(st.from_regex(r"[A-Za-z_][A-Za-z0-9_.:-]{0,62}", fullmatch=True))
def test_a_valid_name_is_kept(name: str) -> None:
    assert as_name(name, "domain") == name


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "1a",
        "-a",
        "a b",
        "a\n",
        "a/b",
        "a'; drop table x; --",
        "ä",
        "a" * 64,
        "a\0",
        "\ud800",
        None,
        5,
    ],
)
def test_an_invalid_name_is_refused_with_what_is_allowed(wrong: object) -> None:
    with pytest.raises(InvalidArgumentError, match=r"^domain .* is not a valid name: use up to 63"):
        as_name(wrong, "domain")


@pytest.mark.parametrize("wrong", ["", "x" * 256, None, 5, "a\0b", "\ud800"])
def test_free_text_is_bounded_and_storable(wrong: object) -> None:
    with pytest.raises(InvalidArgumentError, match=r"^unique_key"):
        as_text(wrong, "unique_key")


@pytest.mark.parametrize("text", ["x" * 255, "a'b\"c;--", "\N{SNOWMAN}", " "])
def test_any_other_text_is_kept(text: str) -> None:
    assert as_text(text, "unique_key") == text


class Shop(str, Enum):  # noqa: UP042 - its members do not print as their text
    ORDERS = "orders"


def test_a_member_of_an_enumeration_is_its_text() -> None:
    for plain in (as_name(Shop.ORDERS, "domain"), as_text(Shop.ORDERS, "unique_key")):
        assert (type(plain), f"{plain}") == (str, "orders")


def test_tags_keep_their_order_and_lose_their_doubles() -> None:
    assert as_tags(["b", "a", "b"]) == ("b", "a")
    assert as_tags(iter(["x"])) == ("x",)


@pytest.mark.parametrize("wrong", ["text", 5, None, [""], ["x" * 101], [None]])
def test_an_invalid_list_of_tags_is_refused(wrong: object) -> None:
    with pytest.raises(InvalidArgumentError, match="tag"):
        as_tags(wrong)  # type: ignore[arg-type]


def test_labels_stand_for_numbers() -> None:
    assert [as_priority(label) for label in ("high", "normal", "low")] == [0, 5, 10]
    assert as_priority("urgent", {"urgent": -3}) == -3
    assert as_priority(-32_768) == -32_768


def test_an_unknown_label_is_refused_with_those_that_exist() -> None:
    with pytest.raises(ValueError, match=r"'hihg'; use one of high \(0\), normal \(5\), low \(10\)"):
        as_priority("hihg")


@pytest.mark.parametrize("wrong", [True, 1.5, None, 32_768, -32_769, []])
def test_an_invalid_priority_is_refused(wrong: object) -> None:
    with pytest.raises(InvalidArgumentError, match=r"^priority must be"):
        as_priority(wrong)  # type: ignore[arg-type]
