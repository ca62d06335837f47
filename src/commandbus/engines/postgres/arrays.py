"""Lists as PostgreSQL array literals.

A literal is one text parameter: the same type in every call, so one prepared statement serves all
sizes; quicker to make than a driver's typed arrays; and the same for every driver.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

EMPTY = "{}"


def numbers(values: Iterable[Any]) -> str:
    """An array of numbers, booleans or ids; None becomes NULL."""
    return "{" + ",".join(["NULL" if value is None else str(value) for value in values]) + "}"


def integers(values: Iterable[int]) -> str:
    """The same for whole numbers without gaps, quicker."""
    return "{" + ",".join(map(str, values)) + "}"


def texts(values: Iterable[str | None]) -> str:
    """An array of any texts; None becomes NULL."""
    return "{" + ",".join([_quoted(value) for value in values]) + "}"


def unless(default: Any, values: list[Any], render: Any = numbers) -> str:
    """An array, or an empty one where every value is the default, which the statement fills in."""
    for value in values:
        if value != default:
            return str(render(values))
    return EMPTY


def _quoted(value: str | None) -> str:
    if value is None:
        return "NULL"
    if "\\" in value or '"' in value:
        value = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{value}"'
