"""Columns of a stored command as values. One that cannot be read becomes a marker with the reason, so
that a bad row hides neither itself nor the others of its list."""

from __future__ import annotations

from typing import Any

import msgspec

from commandbus.domain import payload
from commandbus.domain.failure import Failure, FailureKind
from commandbus.domain.payload import Unreadable

UNREADABLE = "UNREADABLE"
"""The code of an error that cannot be read."""

_failures = msgspec.json.Decoder(Failure)


class Columns(msgspec.Struct, frozen=True):
    """The columns of a command that are JSON texts."""

    data: Any
    result: Any
    tags: tuple[str, ...]
    headers: dict[str, Any]
    unreadable: tuple[str, ...]
    """What is wrong with which of them."""


def read_columns(data: str, result: str | None, tags: str | None, headers: str | None) -> Columns:
    problems: list[str] = []

    def read(name: str, text: str | None, kind: type[Any] = object) -> Any:
        if text is None:
            return None
        value = payload.read(text)
        if not isinstance(value, Unreadable) and not isinstance(value, kind):
            value = Unreadable(f"it is no {'list' if kind is list else 'object'}")
        if isinstance(value, Unreadable):
            problems.append(f"{name}: {value.reason}")
            return value if kind is object else None
        return value

    content, outcome = read("data", data), read("result", result)
    marks, extra = read("tags", tags, list), read("headers", headers, dict)
    return Columns(
        content, outcome, tuple(str(tag) for tag in marks or ()), extra or {}, tuple(problems)
    )


def read_failure(text: str | None) -> Failure | None:
    if text is None:
        return None
    try:
        return _failures.decode(text)
    except (ValueError, TypeError, RecursionError) as error:
        return _unreadable(error)


def read_details(text: str) -> dict[str, Any]:
    """What an entry of the audit says."""
    value = payload.read(text)
    if isinstance(value, dict):
        return value
    return {"unreadable": value.reason if isinstance(value, Unreadable) else "it is no object"}


def noted_failure(text: str | None) -> Failure | None:
    """The error in an entry of the audit."""
    noted = None if text is None else read_details(text).get("error")
    try:
        return None if noted is None else msgspec.convert(noted, Failure)
    except msgspec.ValidationError as error:
        return _unreadable(error)


def _unreadable(error: Exception) -> Failure:
    message = f"What the store keeps of this error cannot be read: {error}."
    return Failure(FailureKind.PERMANENT, UNREADABLE, message)
