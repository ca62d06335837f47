"""Names that users choose: domains, command types, tags, worker names."""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum
from typing import TypeVar

from commandbus.errors import InvalidArgumentError

E = TypeVar("E", bound=StrEnum)

_is_name = re.compile(r"[A-Za-z_][A-Za-z0-9_.:-]{0,62}\Z").match
_is_queue = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,46}\Z").match

RESERVED = "commandbus."
"""Command types that begin so are the bus's own: replies, signals and controls of processes."""
KNOWN_MAX = 1_000
_known: set[str] = set()
"""Names that were found to be valid: a program has few, and every send looks at two."""
_known_types: set[str] = set()
"""The same for command types that programs may send."""


def as_name(value: object, what: str) -> str:
    """A name of at most 63 characters: a letter or underscore, then letters, digits and `_ . : -`.

    The alphabet is narrow on purpose: names become channels, metric labels, thread names and URLs.
    """
    if type(value) is str and value in _known:
        return value
    if isinstance(value, str) and _is_name(value):
        name = str.__str__(value)  # of an enumeration's member the text, whatever it calls itself
        if len(_known) < KNOWN_MAX:
            _known.add(name)
        return name
    raise InvalidArgumentError(
        f"{what} {value!r} is not a valid name: use up to 63 letters, digits and _ . : -, "
        "beginning with a letter or underscore."
    )


def as_command_type(value: object) -> str:
    """The name of a type that programs may send. Reserved ones are refused: their commands say how
    other commands ended and what operators decided, so only the bus may write them."""
    if type(value) is str and value in _known_types:
        return value
    name = as_name(value, "command_type")
    if name.startswith(RESERVED):
        raise InvalidArgumentError(
            f"command_type {name!r} is reserved: types that begin with {RESERVED!r} are written by the "
            "bus alone. Choose another name; signal_process and cancel_process reach a process."
        )
    if len(_known_types) < KNOWN_MAX:
        _known_types.add(name)
    return name


def as_text(value: object, what: str, *, longest: int = 255) -> str:
    """Free text of a bounded length that every database can keep."""
    if not isinstance(value, str) or not value or len(value) > longest:
        raise InvalidArgumentError(
            f"{what} must be text of 1 to {longest} characters, not {str(value)[:80]!r}."
        )
    if "\0" in value or not _is_unicode(value):
        raise InvalidArgumentError(f"{what} contains a NUL character or a lone surrogate.")
    return str.__str__(value)


def as_member(kind: type[E], value: str | None, what: str = "status") -> E | None:
    """A member of an enumeration, or None."""
    try:
        return None if value is None else kind(value)
    except ValueError:
        known = ", ".join(kind)
        raise InvalidArgumentError(f"Unknown {what} {value!r}; use one of {known}.") from None


def as_actor(value: object) -> str:
    """Who does something, as the audit keeps it."""
    return as_text(value, "actor", longest=200)


def as_reason(value: object) -> str | None:
    """Why something is done, or None where no reason is given."""
    return None if value is None else as_text(value, "reason", longest=500)


def as_queue(value: object) -> str:
    """The name of a PGMQ queue: at most 47 letters, digits and underscores."""
    if isinstance(value, str) and _is_queue(value):
        return value
    raise InvalidArgumentError(
        f"The queue {value!r} has no valid name: use up to 47 letters, digits and underscores, "
        "beginning with a letter or underscore."
    )


def as_tags(tags: Iterable[str]) -> tuple[str, ...]:
    if isinstance(tags, str) or not isinstance(tags, Iterable):
        raise InvalidArgumentError(f"tags must be a list of texts, not {tags!r}.")
    return tuple(dict.fromkeys(as_text(tag, "tag", longest=100) for tag in tags))


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
