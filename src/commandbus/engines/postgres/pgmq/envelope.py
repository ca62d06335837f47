"""Messages of other senders as commands: the documented envelope, or a mapping of plain JSON."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from commandbus.domain import payload
from commandbus.domain.adopted_messages import QueueMapping
from commandbus.domain.ids import as_optional_id, new_id
from commandbus.domain.moment import as_microseconds
from commandbus.domain.names import as_command_type, as_name, as_tags
from commandbus.domain.retry import check_max_attempts
from commandbus.errors import CommandBusError

TOKEN = "commandbus"  # noqa: S105 - the name of a header
"""The header in which the bus keeps what it knows of a message."""


class Refusal(Exception):  # noqa: N818 - says why a message is no command; never leaves the engine
    """A message cannot be made a command."""


class Envelope(msgspec.Struct, frozen=True):
    """A checked message; `data`, `tags` and `headers` are JSON text."""

    command_type: str
    command_id: UUID
    data: str
    correlation_id: UUID
    causation_id: UUID | None = None
    reply_to: str | None = None
    max_attempts: int | None = None
    expires_at: int | None = None
    tags: str | None = None
    headers: str | None = None


def read_envelope(message: str | None, headers: str | None, mapping: str | None) -> Envelope:
    """A message, with its headers, as JSON text. Raises Refusal."""
    try:
        content = None if message is None else payload.decode(message)
        if mapping is not None:
            content = msgspec.json.decode(mapping, type=QueueMapping).envelope_of(content)
        return _checked(content, None if headers is None else payload.decode(headers))
    except (CommandBusError, TypeError, ValueError, RecursionError) as error:
        raise Refusal(f"MALFORMED: {error}") from error


def _checked(content: Any, headers: Any) -> Envelope:
    if not isinstance(content, Mapping):
        raise TypeError("a message must be a JSON object with a command_type")
    if content.get("command_type") is None:
        raise ValueError("the message has no command_type")
    command_id = as_optional_id(content.get("command_id"), "command_id") or new_id()
    reply_to, expires_at = content.get("reply_to"), content.get("expires_at")
    max_attempts, tags = content.get("max_attempts"), content.get("tags")
    own = {k: v for k, v in headers.items() if k != TOKEN} if isinstance(headers, Mapping) else {}
    return Envelope(
        command_type=as_command_type(content["command_type"]),
        command_id=command_id,
        data=payload.encode(content.get("data")),
        correlation_id=as_optional_id(content.get("correlation_id"), "correlation_id") or command_id,
        causation_id=as_optional_id(content.get("causation_id"), "causation_id"),
        reply_to=None if reply_to is None else as_name(reply_to, "reply_to"),
        max_attempts=None if max_attempts is None else check_max_attempts(max_attempts),
        expires_at=None if expires_at is None else _moment(expires_at),
        tags=payload.encode(list(as_tags(tags))) if tags else None,
        headers=payload.encode(own, what="headers") if own else None,
    )


def _moment(text: Any) -> int:
    if not isinstance(text, str):
        raise TypeError("expires_at must be a time in ISO 8601, such as 2030-01-31T12:00:00Z")
    return as_microseconds(datetime.fromisoformat(text), "expires_at")
