"""The optional columns of a command: one list, from which the engines make their SQL, their parameters
and their rows, and readers their records.

`NewCommand` declares the list: each of its fields that is `Annotated` with a `Column` is one, with its
type and its default. Where else a column appears is said by the types that have a field of its name:
`Claimed` (a claim returns it), `Command` (a handler sees it), `CommandRecord` (records and the API show
it), `SendRequest` (a sender gives it).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal, get_type_hints

import msgspec

Kind = Literal["uuid", "text", "smallint", "bigint"]
"""The type of a column in PostgreSQL. SQLite keeps ids as 16 bytes, and numbers as they are."""
Content = Literal["plain", "list", "object", "moment", "words"]
"""What a value means: itself, a list or an object as JSON text, microseconds since 1970, or words with
commas between."""


class Column(msgspec.Struct, frozen=True):
    """A column that may be null."""

    kind: Kind
    content: Content = "plain"
    check: Callable[[Any, str], Any] | None = None
    """Makes the column of the argument of `send` with its name, or raises InvalidArgumentError; None
    where `send` decides more than that."""
    erased: bool = True
    """Whether erasure empties it, because it may be about a person; only of texts."""
    meaning: str = ""
    """What it is for, as the API tells; of texts that `check` takes."""
    name: str = ""


def columns_of(declaration: type[msgspec.Struct]) -> tuple[Column, ...]:
    """The optional columns that a type declares, in the order of its fields."""
    return tuple(
        msgspec.structs.replace(extra, name=name)
        for name, hint in get_type_hints(declaration, include_extras=True).items()
        for extra in getattr(hint, "__metadata__", ())
        if isinstance(extra, Column)
    )


def among(columns: Iterable[Column], owner: type[msgspec.Struct]) -> tuple[Column, ...]:
    """Those of the columns that a type has fields for."""
    return tuple(column for column in columns if column.name in owner.__struct_fields__)


def listed(columns: Iterable[Column], prefix: str = "") -> str:
    """The names of columns, in SQL."""
    return ", ".join(prefix + column.name for column in columns)


def erased(columns: Iterable[Column]) -> tuple[str, ...]:
    """The names of the columns that erasure empties."""
    return tuple(column.name for column in columns if column.kind == "text" and column.erased)
