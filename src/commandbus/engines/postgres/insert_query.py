"""The statements that add commands (insert.sql): the columns of a command, and their parameters."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from operator import attrgetter
from typing import Any

from commandbus.engines.postgres.statements import ORIGIN, in_schema, parts
from commandbus.engines.postgres.templates import (
    BIGINT,
    INTEGER,
    SMALLINT,
    TEXT,
    UUID_,
    Column,
    Columns,
    Query,
    Values,
    compile_query,
    optional,
)
from commandbus.store.columns import listed
from commandbus.store.records import OPTIONAL, NewCommand

_OPTIONAL: dict[str, Column] = {
    "uuid": optional(UUID_).unless(None),
    "text": TEXT.unless(None),
    "smallint": optional(SMALLINT).unless(None),
    "bigint": optional(BIGINT).unless(None),
}
COMMANDS = Columns(
    "commands",
    command_id=UUID_,
    domain=TEXT,
    command_type=TEXT,
    data=TEXT,
    correlation_id=optional(UUID_).unless(None),
    priority=INTEGER,
    delay=BIGINT.unless(0),
    due_at=optional(BIGINT).unless(None),
    **{column.name: _OPTIONAL[column.kind] for column in OPTIONAL},
)
"""What a send writes of a command, in the order of the arguments of `add` and `send_commands`."""


_attributes = attrgetter(*COMMANDS.names)


class Insert(Query, frozen=True):
    """A statement that adds commands, and how commands become its parameters: with `announced`, who
    sleeps for them is notified."""

    def announced(self, commands: Sequence[NewCommand]) -> tuple[Any, ...]:
        return self.params(_columns(commands) | {"origin": ORIGIN, "notify": True})

    def silent(self, commands: Sequence[NewCommand]) -> tuple[Any, ...]:
        return self.params(_columns(commands) | {"origin": ORIGIN, "notify": False})

    def alone_announced(self, command: NewCommand) -> tuple[Any, ...]:
        return self.announced([command])

    def alone_silent(self, command: NewCommand) -> tuple[Any, ...]:
        return self.silent([command])


def _columns(commands: Sequence[NewCommand]) -> Values:
    columns = zip(*map(_attributes, commands), strict=True)
    values: dict[str, Any] = dict(zip(COMMANDS.names, columns, strict=True))
    values["correlation_id"] = [
        None if c.correlation_id == c.command_id else c.correlation_id for c in commands
    ]
    return COMMANDS(**values)


@cache
def insert_query(schema: str) -> Insert:
    found = parts(schema, "insert.sql")
    query = compile_query(found.insert_commands, [COMMANDS], places=found.insert_places)
    return Insert(query.sql, query.names)


@cache
def single_insert(schema: str) -> str:
    """The same for one command, by a function of the server."""
    text = parts(schema, "insert.sql").insert_command
    return compile_query(text, values=COMMANDS.scalars).sql


@cache
def limited_insert(schema: str) -> Insert:
    """The same for a role that has no rights on tables."""
    query = compile_query(parts(schema, "limited.sql").insert_commands, arrays=COMMANDS.arrays)
    return Insert(query.sql, query.names)


def one_announced(command: NewCommand) -> tuple[Any, ...]:
    """The parameters of `insert_command`."""
    return *_attributes(command), ORIGIN, True


def one_silent(command: NewCommand) -> tuple[Any, ...]:
    return *_attributes(command), ORIGIN, False


def plain_announced(command: NewCommand) -> tuple[Any, ...]:
    """The parameters of `insert_plain`."""
    c = command
    return c.command_id, c.domain, c.command_type, c.data, c.priority, ORIGIN, True


def plain_silent(command: NewCommand) -> tuple[Any, ...]:
    c = command
    return c.command_id, c.domain, c.command_type, c.data, c.priority, ORIGIN, False


@cache
def functions(schema: str) -> str:
    """The functions that contain the statement, for roles without rights on tables."""
    found = parts(schema, "insert.sql")
    own = parts(schema, "functions.sql")
    signature = ", ".join(["text"] * len(COMMANDS.names) + ["text", "boolean"])
    query = compile_query(
        own.functions,
        [COMMANDS],
        problem=own.problem,
        plainly_null=listed(OPTIONAL, "i."),
        signature=signature,
        form=in_schema(f"'commandbus.send_commands({signature})'", schema),
        insert=found.insert_commands,
        places=found.insert_places,
    )
    return query.sql
