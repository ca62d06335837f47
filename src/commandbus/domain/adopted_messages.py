"""How messages of plain JSON, of a queue that others own, become commands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from commandbus.domain.names import as_command_type, as_text
from commandbus.domain.retry import check_max_attempts
from commandbus.errors import InvalidArgumentError


class QueueMapping(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where in a message things are; a field is a key, or keys with dots between for inner objects.

    The type of the command is what `type_field` holds, translated by `types` where that names it; where
    a message has no such field, or none is given, it is `command_type`. The data is what `data_field`
    holds, or the whole message. A message whose `id_field` holds a UUID is done once, however often it
    is sent.
    """

    command_type: str | None = None
    type_field: str | None = None
    types: dict[str, str] = {}
    data_field: str | None = None
    id_field: str | None = None
    correlation_field: str | None = None
    max_attempts: int | None = None

    def check(self) -> QueueMapping:
        """Itself, or InvalidArgumentError when it can not map anything."""
        if self.command_type is None and self.type_field is None:
            raise InvalidArgumentError(
                "A mapping needs a command_type for all messages, or the type_field that holds it."
            )
        for name in (self.command_type, *self.types.values()):
            if name is not None:
                as_command_type(name)
        for field in (self.type_field, self.data_field, self.id_field, self.correlation_field):
            if field is not None:
                as_text(field, "field")
        if self.max_attempts is not None:
            check_max_attempts(self.max_attempts)
        return self

    def envelope_of(self, message: Any) -> dict[str, Any]:
        """The envelope that a message stands for."""
        kind = self.command_type
        if self.type_field is not None:
            found = _look(message, self.type_field)
            if isinstance(found, str):
                kind = self.types.get(found, found)
        return {
            "command_type": kind,
            "data": message if self.data_field is None else _look(message, self.data_field),
            "command_id": None if self.id_field is None else _look(message, self.id_field),
            "correlation_id": None
            if self.correlation_field is None
            else _look(message, self.correlation_field),
            "max_attempts": self.max_attempts,
        }


def _look(message: Any, field: str) -> Any:
    for key in field.split("."):
        if not isinstance(message, Mapping) or key not in message:
            return None
        message = message[key]
    return message
