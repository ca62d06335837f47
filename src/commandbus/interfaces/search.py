"""Searching for commands: `status:parked domain:orders data.account:42 age:<2h` as conditions of a
query, and a look through the store that ends in time. The same for pages, API and command line."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal
from uuid import UUID

import msgspec

from commandbus.domain.ids import as_id_parts
from commandbus.domain.lifecycle import PARKED, CommandStatus
from commandbus.domain.names import RESERVED
from commandbus.domain.page import Page
from commandbus.errors import InvalidArgumentError
from commandbus.interfaces.cli.text import parse_duration

if TYPE_CHECKING:
    from commandbus.domain.command import CommandRecord

SEARCH_SECONDS = 0.12
"""A page that is not full by then says how far the search looked, and offers to go on."""
SCAN_FIRST, SCAN_MAX = 2_000, 100_000
STEP = 50
"""So many records are read at a time: each may have a large payload."""

QUALIFIERS = {
    "status": "pending, running, completed, failed, canceled or parked",
    "domain": "a domain",
    "type": "a command type",
    "tag": "a tag",
    "error": "an error code, or the name of an exception",
    "age": "sent less (<2h) or more (>1d) than so long ago",
    "batch": "the id of a batch",
    "correlation": "a correlation id",
    "id": "the id of a command",
    "internal": "yes, for commands of the bus itself, such as replies",
    "data.…": "a value in the payload, such as data.account:42",
}
"""What a search understands."""

STATUSES = {
    "pending": CommandStatus.PENDING,
    "waiting": CommandStatus.PENDING,
    "running": CommandStatus.IN_PROGRESS,
    "in_progress": CommandStatus.IN_PROGRESS,
    "completed": CommandStatus.COMPLETED,
    "failed": CommandStatus.FAILED,
    "canceled": CommandStatus.CANCELED,
    "cancelled": CommandStatus.CANCELED,
    "parked": PARKED,
    "in_troubleshooting_queue": PARKED,
}


class Search(msgspec.Struct, frozen=True):
    """Conditions, as arguments of `query_commands`; or one command's id. `parts` are digits of ids, to
    be looked up: of the command as `command`, of its batch as `batch`. `shown` are values that are
    compared with what is shown of a payload: the store would compare with what is hidden."""

    conditions: dict[str, Any]
    command_id: UUID | None = None
    parts: dict[Literal["command", "batch"], str] = {}
    shown: dict[str, str] = {}
    internal: bool = False

    @property
    def named(self) -> bool:
        """Whether internal commands are asked for, or chosen by something that they have as well."""
        return self.internal or not {"command_type", "correlation_id"}.isdisjoint(self.conditions)


def is_own(record: CommandRecord) -> bool:
    """Whether a command is one of the application, and not a reply or a control of the bus itself."""
    return not record.command_type.startswith(RESERVED)


class BoundedSearch:
    """Looks further and further back until a page is full or the time is up. A caller with a store
    passes `asked()` to `query_commands` and hands in the answer, until there is nothing to
    ask."""

    def __init__(
        self,
        conditions: dict[str, Any],
        limit: int,
        after: str | None,
        keep: Callable[[CommandRecord], bool] | None = None,
        seconds: float | None = None,
    ) -> None:
        """`keep` chooses among the records that meet the conditions. The look ends after `seconds`."""
        self.found: list[CommandRecord] = []
        self._seconds = SEARCH_SECONDS if seconds is None else seconds
        self.next = after
        self._conditions, self._limit, self._keep = conditions, limit, keep
        self._scan, self._began, self._over = SCAN_FIRST, time.monotonic(), False

    @property
    def exhausted(self) -> bool:
        """Whether the page is as full as it can be, rather than cut short by time."""
        return self.next is None or len(self.found) >= self._limit

    def asked(self) -> dict[str, Any] | None:
        if self._over:
            return None
        step = STEP if self._keep else min(STEP, self._limit - len(self.found))
        return self._conditions | {"after": self.next, "limit": step, "scan": self._scan}

    def add(self, page: Page[CommandRecord]) -> None:
        kept = page if self._keep is None else list(filter(self._keep, page))
        left = self._limit - len(self.found)
        self.found += kept[:left]
        self.next = str(kept[left - 1].sequence) if len(kept) > left else page.next
        spent = time.monotonic() - self._began
        is_full = len(kept) >= STEP  # all that was read is shown: reading, rather than searching
        self._over = self.exhausted or (spent > self._seconds and not is_full)
        # What fits into the time that is left, by the speed so far.
        faster = int(self._scan * max(1.0, self._seconds / max(spent, 0.001)))
        self._scan = min(SCAN_MAX, 4 * self._scan, faster)


def parse_search(
    text: str,
    is_secret: Callable[[str], bool] | None = None,
    now: datetime | None = None,
) -> Search:
    """What a filter asks for. Raises InvalidArgumentError that says what was not understood. With
    `is_secret`, values under such keys cannot be searched."""
    conditions: dict[str, Any] = {}
    shown: dict[str, str] = {}
    wanted: UUID | None = None
    parts: dict[Literal["command", "batch"], str] = {}
    internal = False
    for word in _words(text):
        key, colon, value = word.partition(":")
        if not colon:
            key, value = _guess(word)
        if not value:
            raise InvalidArgumentError(f"{key}: is followed by a value, such as {key}:something.")
        if key in ("id", "batch") and not _is_uuid(value) and as_id_parts(value):
            parts["command" if key == "id" else "batch"] = value
        elif key == "internal":
            internal = value.lower() in ("yes", "true", "1", "on")
        elif key == "id":
            wanted = _as_uuid(value, key)
        elif key.startswith("data."):
            path = key.removeprefix("data.")
            if is_secret is not None and _check_shown(path, value, is_secret):
                shown[path] = value
            else:
                _add(conditions.setdefault("data", {}), {path: value}, key)
        elif key == "tag" and is_secret and any(map(is_secret, re.split("[:=]", value)[:-1])):
            raise InvalidArgumentError("The tag names a secret, so it cannot be searched.")
        else:
            _add(conditions, _condition(key, value, now or datetime.now(UTC)), key)
    return Search(conditions, wanted, parts, shown, internal)


def _add(conditions: dict[str, Any], found: dict[str, Any], key: str) -> None:
    """Conditions must all hold: a second one must not take the place of the first."""
    for name, value in found.items():
        if conditions.setdefault(name, value) != value:
            raise InvalidArgumentError(f"{key}: is given with two values; give one of them.")


def _words(text: str) -> list[str]:
    """Split at blanks; quotes keep a value with blanks together."""
    try:
        return shlex.split(text.replace("\0", " ").replace("\\", "\\\\"))
    except ValueError:
        raise InvalidArgumentError(f"A quote is not closed in {text!r}.") from None


def _guess(word: str) -> tuple[str, str]:
    """A word without a qualifier: an id, a status, or else a command type."""
    if _is_uuid(word) or (as_id_parts(word) and _LIKE_AN_ID.search(word)):
        return "id", word
    return ("status", word) if word.lower() in STATUSES else ("type", word)


_LIKE_AN_ID = re.compile(r"…|\.\.|^(?=.*\d)[0-9a-fA-F-]{6,}$")
"""Digits as lists show them, or so many with a decimal among them that they are hardly a type."""


def _is_uuid(word: str) -> bool:
    try:
        UUID(word)
    except ValueError:
        return False
    return True


def _condition(key: str, value: str, now: datetime) -> dict[str, Any]:
    match key:
        case "status":
            if value.lower() not in STATUSES:
                raise InvalidArgumentError(f"Unknown status {value!r}; use {QUALIFIERS['status']}.")
            return {"status": STATUSES[value.lower()]}
        case "domain" | "tag" | "error":
            return {key: value}
        case "type":
            return {"command_type": value}
        case "batch":
            return {"batch_id": _as_uuid(value, key)}
        case "correlation":
            return {"correlation_id": _as_uuid(value, key)}
        case "age":
            return _age(value, now)
        case _:
            known = ", ".join(QUALIFIERS).replace("data.…", "or a value: data.account")
            raise InvalidArgumentError(f"{key!r} is not something to filter by; use {known}.")


def _check_shown(path: str, value: str, is_secret: Callable[[str], bool]) -> bool:
    """Whether a value has to be compared with what is shown: the value of a pair may be hidden by the
    name beside it. Raises InvalidArgumentError where the answer could confirm a hidden value."""
    parts = path.split(".")
    if any(map(is_secret, parts)):
        raise InvalidArgumentError(f"data.{path} is a secret, so it cannot be searched.")
    if value.lstrip()[:1] in ("{", "[", '"'):
        raise InvalidArgumentError(
            f"data.{path} can be searched for a text, a number, true or false, and not for an object "
            "or a list: name one value in it, such as data.customer.id:42."
        )
    return any(part.lower() in ("value", "val") or part.isdecimal() for part in parts)


def is_at(document: Any, path: str, text: str) -> bool:
    """Whether a document has a value at a path, as `query_commands` compares it."""
    for key in path.split("."):
        if isinstance(document, dict):
            document = document.get(key)
        elif isinstance(document, list) and key.isdecimal() and int(key) < len(document):
            document = document[int(key)]
        else:
            return False
    if document is None or isinstance(document, dict | list):
        return False
    return text == (document if isinstance(document, str) else msgspec.json.encode(document).decode())


def _age(value: str, now: datetime) -> dict[str, Any]:
    match = re.match(r"([<>])?=?(.*)", value)
    assert match is not None
    try:
        moment = now - timedelta(seconds=parse_duration(match[2], "age"))
    except (ValueError, OverflowError):
        raise InvalidArgumentError(f"age is written as <2h, >30m or <7d, not {value!r}.") from None
    return {"created_before" if match[1] == ">" else "created_after": moment}


def _as_uuid(value: str, key: str) -> UUID:
    try:
        return UUID(value)
    except ValueError:
        raise InvalidArgumentError(f"{key}: takes an id, and {value[:60]!r} is none.") from None
