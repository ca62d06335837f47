"""Whole numbers and lists as users pass them: checked at the door."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from commandbus.errors import InvalidArgumentError

T = TypeVar("T")


def as_count(value: Any, name: str, *, highest: int) -> int:
    """A whole number within bounds; texts, fractions and booleans are refused."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= highest:
        raise InvalidArgumentError(
            f"{name} must be between 1 and {highest}, a whole number, not {value!r}."
        )
    return value


def as_items(values: Iterable[T], name: str) -> Iterable[T]:
    """Something to iterate over, but not a text, which would come apart into letters."""
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise InvalidArgumentError(f"{name} must be a list, not {values!r}.")
    return values
