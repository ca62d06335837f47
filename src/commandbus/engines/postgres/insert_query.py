"""The statements that add commands (insert.sql): the columns of a command, and their parameters."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from operator import attrgetter
from typing import Any

from commandbus.engines.postgres.statements import ORIGIN, parts
from commandbus.engines.postgres.templates import (
    BIGINT,
    INTEGER,
    SMALLINT,
    TEXT,
    UUID_,
    Columns,
    Query,
    Values,
    compile_query,
    optional,
)
from commandbus.store.records import NewCommand

COMMANDS = Columns(
    "commands",
    command_id=UUID_,
    domain=TEXT,
    command_type=TEXT,
    data=TEXT,
    correlation_id=optional(UUID_).unless(None),
    causation_id=optional(UUID_).unless(None),
    reply_to=TEXT.unless(None),
    priority=INTEGER,
    max_attempts=optional(SMALLINT).unless(None),
    delay=BIGINT.unless(0),
    due_at=optional(BIGINT).unless(None),
    expires_at=optional(BIGINT).unless(None),
    unique_key=TEXT.unless(None),
    tags=TEXT.unless(None),
    headers=TEXT.unless(None),
    batch_id=optional(UUID_).unless(None),
    group_key=TEXT.unless(None),
    requires=TEXT.unless(None),
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
