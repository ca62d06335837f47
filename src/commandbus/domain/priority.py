"""Priorities: a label or a number; lower numbers run first, equal ones in order of sending."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from commandbus.errors import InvalidArgumentError

Priority = str | int

LABELS: Mapping[str, int] = MappingProxyType({"high": 0, "normal": 5, "low": 10})
LOWEST, HIGHEST = 32_767, -32_768
"""The range of numbers, as wide as a small integer of the SQL engines."""


def as_priority(priority: Priority, labels: Mapping[str, int] = LABELS) -> int:
    """The number behind a label, or the number itself; anything else is refused by name."""
    if isinstance(priority, str):
        try:
            return labels[priority]
        except KeyError:
            known = ", ".join(f"{label} ({value})" for label, value in labels.items())
            raise InvalidArgumentError(
                f"Unknown priority label {priority!r}; use one of {known}, or a number."
            ) from None
    if isinstance(priority, bool) or not isinstance(priority, int):
        raise InvalidArgumentError(f"priority must be a label or a whole number, not {priority!r}.")
    if not HIGHEST <= priority <= LOWEST:
        raise InvalidArgumentError(f"priority must be between {HIGHEST} and {LOWEST}, not {priority}.")
    return int(priority)


def rank(priority: int, due_at: int, ageing: int) -> int:
    """Where a command stands when `ageing` microseconds of waiting count as one step of priority; the
    lowest is first. It does not change with time: all that wait grow more urgent at the same pace, so
    the order of two commands is that of their sum of priority and moment."""
    return priority * ageing + due_at
