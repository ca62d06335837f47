"""Searching for commands: `status:parked domain:orders data.account:42 age:<2h` as conditions of a
query, and a look through the store that ends in time. The same for pages, API and command line."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec

from commandbus.domain.lifecycle import PARKED, CommandStatus
from commandbus.errors import InvalidArgumentError
from commandbus.interfaces.cli.text import parse_duration

if TYPE_CHECKING:
    from commandbus.domain.command import CommandRecord
    from commandbus.store.records import CommandPage

SEARCH_SECONDS = 0.12
"""A search that has not filled its page by then says how far it looked."""
SCAN_FIRST, SCAN_MAX = 2_000, 100_000

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
    """Conditions, as arguments of `query_commands`; or one command's id."""

    conditions: dict[str, Any]
    command_id: UUID | None = None


class Look:
    """Looks further and further back until a page is full or the time is up. Whoever can ask the store
    passes `asked()` to `query_commands` and hands in the answer, until there is nothing to ask."""

    def __init__(self, conditions: dict[str, Any], limit: int, after: str | None) -> None:
        self.found: list[CommandRecord] = []
        self.next = after
        self._conditions, self._limit = conditions, limit
        self._scan, self._began, self._over = SCAN_FIRST, time.monotonic(), False

    @property
    def exhausted(self) -> bool:
        """Whether the page is as full as it can be, rather than cut short by time."""
        return self.next is None or len(self.found) >= self._limit

    def asked(self) -> dict[str, Any] | None:
        if self._over:
            return None
        left = self._limit - len(self.found)
        return self._conditions | {"after": self.next, "limit": left, "scan": self._scan}

    def add(self, page: CommandPage) -> None:
        self.found += page.commands
        self.next = page.next
        spent = time.monotonic() - self._began
        self._over = self.exhausted or spent > SEARCH_SECONDS
        # What fits into the time that is left, by the speed so far.
        faster = int(self._scan * max(1.0, SEARCH_SECONDS / max(spent, 0.001)))
        self._scan = min(SCAN_MAX, 4 * self._scan, faster)


def parse_search(
    text: str,
    is_secret: Callable[[str], bool] = lambda key: False,
    now: datetime | None = None,
) -> Search:
    """What a filter asks for. Raises InvalidArgumentError that says what was not understood."""
    conditions: dict[str, Any] = {}
    wanted: UUID | None = None
    for word in _words(text):
        key, colon, value = word.partition(":")
        if not colon:
            key, value = _guess(word)
        if not value:
            raise InvalidArgumentError(f"{key}: is followed by a value, such as {key}:something.")
        if key == "id":
            wanted = _as_uuid(value, key)
        elif key.startswith("data."):
            conditions.setdefault("data", {}).update(_data(key.removeprefix("data."), value, is_secret))
        else:
            conditions |= _condition(key, value, now or datetime.now(UTC))
    return Search(conditions, wanted)


def _words(text: str) -> list[str]:
    """Split at blanks; quotes keep a value with blanks together."""
    try:
        return shlex.split(text.replace("\0", " ").replace("\\", "\\\\"))
    except ValueError:
        raise InvalidArgumentError(f"A quote is not closed in {text!r}.") from None


def _guess(word: str) -> tuple[str, str]:
    """A word without a qualifier: an id, a status, or else a command type."""
    try:
        return "id", str(UUID(word))
    except ValueError:
        return ("status", word) if word.lower() in STATUSES else ("type", word)


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


def _data(path: str, value: str, is_secret: Callable[[str], bool]) -> dict[str, str]:
    if any(is_secret(part) for part in path.split(".")):
        raise InvalidArgumentError(f"data.{path} is a secret, so it cannot be searched.")
    return {path: value}


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
