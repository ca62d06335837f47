"""The queries of the SQLite engine, with the columns of a command where they name parts."""

from __future__ import annotations

from types import SimpleNamespace

from commandbus.store.columns import listed
from commandbus.store.records import CLAIMED, OPTIONAL
from commandbus.store.sql_files import load

_NEEDED = {column.name for column in CLAIMED} | {"expires_at"}
"""The optional columns that a claim looks at."""


def _sound(name: str, kind: str) -> str:
    if kind == "uuid":
        return f"typeof(c.{name}) = 'blob' and length(c.{name}) = 16"
    return f"typeof(c.{name}) = '{'text' if kind == 'text' else 'integer'}'"


_PARTS = {
    "places_of_optional": ", ".join("?" for _ in OPTIONAL),
    "command_of_head": "c.command_type, c.command_id, c.data, c.correlation_id, c.created_at, "
    f"c.due_at, c.expires_at, c.unique_key is not null, {listed(CLAIMED, 'c.')}",
    "sound": " and ".join(
        [
            _sound("command_id", "uuid"),
            _sound("correlation_id", "uuid"),
            _sound("command_type", "text"),
            _sound("data", "text"),
            *(
                f"(c.{column.name} is null or {_sound(column.name, column.kind)})"
                for column in OPTIONAL
                if column.name in _NEEDED
            ),
        ]
    ),
}
"""Of the query `head`: the columns of its command, and the condition that these have values of their
types."""


def load_queries(file: str) -> SimpleNamespace:
    return load("commandbus.engines.sqlite.sql", file, **_PARTS)
