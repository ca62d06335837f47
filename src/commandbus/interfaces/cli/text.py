"""Text that is safe to show: data of strangers must not steer the terminal.

Payloads, names, reasons and errors come from outside. Whatever could move the cursor, change colours,
reverse the direction of writing or break a line of output is shown as an escape instead.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

_UNSAFE = (
    "\x00-\x1f\x7f-\x9f"  # C0, DEL and C1 controls
    "\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff"  # directions, separators, invisible
    "\ud800-\udfff"  # lone surrogates
    "\ufff9-\ufffb\U000e0000-\U000e007f"  # annotations and tags
)
_LINE = re.compile(f"[{_UNSAFE}]")
_BLOCK = re.compile(f"[{_UNSAFE}]".replace("\x00-\x1f", "\x00-\x09\x0b-\x1f"))
_NAMES = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_STATUSES = {
    "IN_PROGRESS": "running",
    "IN_TROUBLESHOOTING_QUEUE": "parked",
    "COMPLETED_WITH_FAILURES": "with failures",
    "WAITING_FOR_TROUBLESHOOTING": "troubleshooting",
}
"""The others are called as they are."""
_EVENTS = {
    "MOVED_TO_TSQ": "parked",
    "BUSINESS_RULE_FAILED": "refused by a rule",
    "OPERATOR_RETRY": "retried by hand",
    "OPERATOR_CANCEL": "canceled by hand",
    "OPERATOR_COMPLETE": "completed by hand",
    "OPERATOR_CONTROL": "asked by an operator",
    "OPERATOR_EDIT": "edited by an operator",
    "OPERATOR_RESEND": "sent again by an operator",
    "COMMENTED": "comment",
}


def line(value: object) -> str:
    """`value` as one line that a terminal shows as it is."""
    return _LINE.sub(_escaped, "" if value is None else str(value))


def block(value: object) -> str:
    """The same, with line breaks kept: for tracebacks and documents."""
    return _BLOCK.sub(_escaped, str(value).expandtabs(4))


def _escaped(match: re.Match[str]) -> str:
    character = match.group()
    if character in _NAMES:
        return _NAMES[character]
    number = ord(character)
    if number < 0x100:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def _escaped_json(match: re.Match[str]) -> str:
    return json.dumps(match.group())[1:-1]


def as_json(value: object, *, indent: int = 2) -> str:
    """`value` as a JSON document whose text is safe to show and equal when parsed. Times are ISO 8601
    in UTC, ids are text."""
    encoded = msgspec.json.format(msgspec.json.encode(value, enc_hook=str), indent=indent)
    return _BLOCK.sub(_escaped_json, encoded.decode())


def status_word(status: object) -> str:
    """A status in the word that the command line, the dashboard and its filters share."""
    return _STATUSES.get(str(status), line(status).replace("_", " ").lower())


def event(kind: str) -> str:
    """An event of a trail in words."""
    return _EVENTS.get(str(kind), str(kind).replace("_", " ").lower())


def event_type(word: str) -> str:
    """What such words, or the type itself however it is written, stand for."""
    word = word.replace("-", " ").replace("_", " ").lower()
    found = (kind for kind, words in _EVENTS.items() if words == word)
    return next(found, word.replace(" ", "_").upper())


def compact_json(value: object) -> str:
    """`value` as JSON on one line, for a table's cell."""
    return line(json.dumps(msgspec.to_builtins(value), ensure_ascii=False, separators=(",", ":")))


def moment(value: datetime | None) -> str:
    """ISO 8601 in UTC with milliseconds, or an empty text."""
    if value is None:
        return ""
    return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def duration(seconds: float | None) -> str:
    """A length of time in as few characters as a person needs."""
    if seconds is None:
        return "–"
    if seconds < 0.0995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 2 * 3600:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.0f} h"
    return f"{seconds / 86_400:.0f} d"


def age(value: datetime | None) -> str:
    """How long ago a moment was, or how far ahead it is."""
    if value is None:
        return "–"
    seconds = (datetime.now(UTC) - value).total_seconds()
    return f"in {duration(-seconds)}" if seconds < -0.05 else duration(max(0.0, seconds))


_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?|\.\d+)\s*([a-z]*)\s*\Z")


def parse_duration(text: str, name: str) -> float:
    """Seconds from `90`, `1.5s`, `250ms`, `5m`, `2h` or `3d`. Raises ValueError for anything else."""
    match = _DURATION.match(text.lower())
    if match is None or match.group(2) not in _UNITS:
        raise ValueError(
            f"{name} must be a duration such as 90, 1.5s, 250ms, 5m, 2h or 3d, not {text!r}"
        )
    return float(match.group(1)) * _UNITS[match.group(2)]


def after_now(seconds: float) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


def plural(count: int, noun: str, many: str | None = None) -> str:
    """`1 command`, `2,000 commands`."""
    return f"{count:,} {noun if count == 1 else many or noun + 's'}"


def plurals(noun: str) -> str:
    """`commands`, `batches`, `processes`."""
    return f"{noun}{'es' if noun.endswith(('ch', 's')) else 's'}"


def as_plain(value: object) -> Any:
    """A record as dicts and lists of JSON values, with stable keys."""
    return msgspec.to_builtins(value, enc_hook=str)
