"""Why a document does not fit a type, in paths and kinds, never in values.

Errors are stored with commands, shown to viewers and logged, and a payload may hold secrets. So the
texts of validation errors are not repeated: pydantic quotes the whole input, msgspec quotes a wrong
enum value, and the validation code of a type may quote anything.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

PROBLEMS_MAX = 5
CHARACTERS_MAX = 120

_PLACE = re.compile(r"^(.*?)(?: - at (?:`key` in )?`([^`]*)`)?$", re.DOTALL)
_QUOTES_INPUT = re.compile(r"^(Invalid (?:enum )?value)\b", re.DOTALL)


def describe_misfit(error: Exception) -> str:
    """The paths and the kinds of the problems of a validation error, such as
    `Expected int, got str at $.order`. Other exceptions are named by their class."""
    structured: Any = getattr(error, "errors", None)  # pydantic, without importing it
    if isinstance(error, ValueError) and callable(structured):
        return _describe_pydantic(structured)
    if isinstance(error, msgspec.ValidationError):
        return _describe_msgspec(error)
    if isinstance(error, msgspec.DecodeError):
        return "it is not JSON"
    return f"its validation raised {type(error).__name__}"


def _describe_pydantic(errors: Any) -> str:
    try:
        found = errors(include_url=False, include_context=False, include_input=False)
        words = [f"{problem['type']} at {_path(problem['loc'])}" for problem in found]
    except Exception as broken:  # a class of the user that only looks like one of pydantic's
        return f"its validation raised an error that cannot be read: {type(broken).__name__}"
    more = f"; and {len(words) - PROBLEMS_MAX} more" if len(words) > PROBLEMS_MAX else ""
    return "; ".join(words[:PROBLEMS_MAX]) + more


def _path(parts: tuple[int | str, ...]) -> str:
    steps = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)
    return bounded("$" + "".join(steps))


def _describe_msgspec(error: msgspec.ValidationError) -> str:
    match = _PLACE.match(str(error))
    text, place = match.groups() if match else ("", None)
    if error.__cause__ is not None:  # raised by code of the type, such as __post_init__
        text = f"its validation raised {type(error.__cause__).__name__}"
    elif quoting := _QUOTES_INPUT.match(text):
        text = quoting[1]
    return f"{bounded(text.replace('`', ''))} at {bounded(place or '$')}"


def bounded(text: str) -> str:
    """Names of fields come from the document, and may be long."""
    return text if len(text) <= CHARACTERS_MAX else text[:CHARACTERS_MAX] + "…"
