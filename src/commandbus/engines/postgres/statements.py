"""Kinds of statements, and the queries of a schema.

The port knows statements that share their op's transaction. PostgreSQL takes a commit for every
statement outside one, so a statement that is complete by itself needs no BEGIN and no COMMIT; and rows
of several senders fit into one statement, and share a commit.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

from commandbus.store.op import Autocommit, Statement
from commandbus.store.sql_files import load

__all__ = [
    "ORIGIN",
    "PACKAGE",
    "Autocommit",
    "BinaryCopy",
    "Boundary",
    "Copy",
    "Ending",
    "Listening",
    "Script",
    "Coalescing",
    "Undo",
    "Urgent",
    "bind",
    "channel_of",
    "in_schema",
    "queries",
]

PACKAGE = "commandbus.engines.postgres.sql"

ORIGIN: Any = object()
"""Stands among parameters for the process that announces work: the session puts in its own, which need
not hear about it from the server; or none, in a caller's transaction."""

BLOCK_ROWS = 100
_SCHEMA = re.compile(r"\bcommandbus\.(?=\w)")


class Urgent(Autocommit, frozen=True):
    """One that is of no use after so many seconds: better to try it again on another connection."""

    seconds: float = 0.0


class Coalescing(Autocommit, frozen=True, kw_only=True):
    """A statement whose rows may travel with those of others: `params` are rows, `pack` makes
    the statement's parameters of any number of them, and each row is answered by one row, in order.
    `single` is the statement for one row, whose parameters `pack_single` makes."""

    pack: Callable[[Sequence[Any]], tuple[Any, ...]]
    single: str
    pack_single: Callable[[Any], tuple[Any, ...]]

    def plain(self) -> tuple[str, tuple[Any, ...]]:
        """The SQL and the parameters that are to be executed."""
        if len(self.params) == 1:
            return self.single, self.pack_single(self.params[0])
        return self.sql, self.pack(self.params)


class Listening(Autocommit, frozen=True):
    """Waits, for a moment at most, until this process hears announcements; nothing is executed."""

    sql: str = ""


class Boundary(Statement, frozen=True):
    """Commits what came before, unless the whole op belongs together; nothing is executed."""

    sql: str = ""


class Undo(Statement, frozen=True):
    """Undoes what came since the last boundary, after an error that the op itself noticed."""

    sql: str = ""


class Copy(Statement, frozen=True, kw_only=True):
    """COPY … FROM STDIN; `params` are the rows, and `render` makes a line of COPY's text format of one.
    The server takes rows in while later ones are rendered."""

    render: Callable[[Any], Any]

    @property
    def binary(self) -> bool:
        return False

    def blocks(self) -> Iterator[bytes]:
        """The lines, some hundreds at a time: several times faster than one by one."""
        for first in range(0, len(self.params), BLOCK_ROWS):
            lines = [*map(self.render, self.params[first : first + BLOCK_ROWS]), ""]
            yield "\n".join(lines).encode()


class BinaryCopy(Copy, frozen=True, kw_only=True):
    """The same in COPY's binary format: `render` makes the bytes of a row."""

    @property
    def binary(self) -> bool:
        return True

    def blocks(self) -> Iterator[bytes]:
        yield b"PGCOPY\n\xff\r\n\0" + bytes(8)
        for first in range(0, len(self.params), BLOCK_ROWS):
            yield b"".join(map(self.render, self.params[first : first + BLOCK_ROWS]))
        yield b"\xff\xff"


class Script(Statement, frozen=True):
    """Several statements in one message, without parameters; rows of all of them come as texts."""


class Ending(Script, frozen=True):
    """A script whose first statement counts: when only a later one fails, the connection is closed."""


def in_schema(sql: str, schema: str) -> str:
    """SQL text for a schema. The name has passed `location.check_schema`."""
    return _SCHEMA.sub(f'"{schema}".', sql)


def channel_of(schema: str) -> str:
    """The channel that the function `wake` notifies, by the same replacement."""
    return in_schema("commandbus.wake", schema)


@cache
def queries(schema: str, *, limited: bool = False) -> SimpleNamespace:
    """All plain queries of the engine, by name; with `limited`, sends call functions in place of
    tables. Those that are made of parts are in `made`."""
    found: dict[str, str] = {}
    for file in (
        "commands.sql", "reads.sql", "documents.sql", "batches.sql", "processes.sql", "gates.sql",
        "erasing.sql", "arriving.sql",
    ):  # fmt: skip
        found |= vars(load(PACKAGE, file))
    if limited:
        found |= vars(load(PACKAGE, "limited.sql"))
        del found["insert_commands"]
    return SimpleNamespace(**{name: in_schema(sql, schema) for name, sql in found.items()})


@cache
def parts(schema: str, file: str) -> SimpleNamespace:
    """The texts of a file whose statements are made of parts, for a schema."""
    texts = vars(load(PACKAGE, file))
    return SimpleNamespace(**{name: in_schema(text, schema) for name, text in texts.items()})


def bind(params: Any, origin: str) -> list[Any]:
    """Parameters as they go to the server."""
    return [origin if value is ORIGIN else value for value in params]
