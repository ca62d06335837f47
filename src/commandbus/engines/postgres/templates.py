"""Statements with names in place of numbers: parameters, lists of rows and parts.

A text says `:worker` where it means a parameter, `{outcomes} as o` where it means a list of rows, and
`{places}` where it means a part that is chosen when the statement is made, such as that of a transport.
A list of rows travels as one array per column; `Columns` declares the columns and their types once, and
makes both the SQL that unpacks them and the parameters. The server gets generated numbers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import msgspec

from commandbus.engines.postgres.arrays import EMPTY, integers, numbers, texts, unless

Values = dict[str, Any]
"""Parameters by name; those of columns are called `outcomes.seq`."""

_TOKEN = re.compile(
    r"--[^\n]*|'[^']*'|\"[^\"]*\""  # comments, texts and names are left alone
    r"|(?<!:):(?P<parameter>[a-z]\w*(?:\.\w+)?)"
    r"|\{(?P<name>\w+)\}(?:(?P<ordered> with ordinality)? as (?P<alias>\w+))?"
)


class Column(msgspec.Struct, frozen=True):
    """The type of a column in SQL, and how a list of its values becomes an array."""

    kind: str
    render: Callable[[Any], str]

    def unless(self, default: Any) -> Column:
        """The same for one where a value is usual: where all rows have it, the array is empty, and the
        statement finds NULL in its place."""
        return Column(self.kind, partial(unless, default, render=self.render))


BIGINT, INTEGER, SMALLINT = (Column(kind, integers) for kind in ("bigint", "integer", "smallint"))
BOOLEAN, UUID_ = (Column(kind, numbers) for kind in ("boolean", "uuid"))
TEXT = Column("text", texts)
WORD = Column("text", numbers)
"""Texts that need no quotes, such as the names of states."""


def optional(column: Column) -> Column:
    """Of numbers, some of which may be missing."""
    return Column(column.kind, numbers)


class Columns:
    """The columns of a list of rows that is a parameter."""

    def __init__(self, name: str, **columns: Column) -> None:
        self.name = name
        self._columns = columns
        self._keys = {column: f"{name}.{column}" for column in columns}
        self.empty: Values = dict.fromkeys(self._keys.values(), EMPTY)

    def __call__(self, **lists: Iterable[Any]) -> Values:
        """The parameters, of the values of each column in the order of the rows."""
        if lists.keys() != self._columns.keys():
            odd = ", ".join(sorted(lists.keys() ^ self._columns.keys()))
            raise TypeError(f"{self.name}: these columns are missing, or not declared: {odd}.")
        columns, keys = self._columns, self._keys
        return {keys[name]: columns[name].render(values) for name, values in lists.items()}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._columns)

    @property
    def scalars(self) -> str:
        """The values of one row, in SQL, as arguments of a function. Drivers send numbers as bigint."""
        cast = {"smallint": "bigint::integer", "integer": "bigint::integer"}
        columns = self._columns.items()
        return ", ".join(f":{name}::{cast.get(c.kind, c.kind)}" for name, c in columns)

    @property
    def arrays(self) -> str:
        """The arrays one by one, in SQL, as arguments of a function."""
        return ", ".join(f":{key}::text" for key in self._keys.values())

    def unnest(self, number: Callable[[str], int], alias: str, more: str = "") -> str:
        """The rows, in SQL; `more` stands between the function and its names."""
        arrays = ", ".join(
            f"unnest(${number(key)}::text::{self._columns[column].kind}[])"
            for column, key in self._keys.items()
        )
        names = [*self._columns, "n"] if more else self._columns
        return f"rows from ({arrays}){more} as {alias} ({', '.join(names)})"


class Query(msgspec.Struct, frozen=True):
    """A statement as the server gets it, and the names of its parameters by their numbers."""

    sql: str
    names: tuple[str, ...]

    def params(self, values: Mapping[str, Any]) -> tuple[Any, ...]:
        """What the statement needs of these values, in its order."""
        return tuple([values[name] for name in self.names])


def compile_query(text: str, columns: Iterable[Columns] = (), **parts: str) -> Query:
    """The statement of a text, its lists of rows and its parts, which may have parameters, too."""
    numbered: dict[str, int] = {}
    lists = {one.name: one for one in columns}

    def number(name: str) -> int:
        return numbered.setdefault(name, len(numbered) + 1)

    def write(found: re.Match[str]) -> str:
        parameter, name, alias = found["parameter"], found["name"], found["alias"]
        if parameter is not None:
            return f"${number(parameter)}"
        if name is None:
            return found.group()
        if name in lists:
            return lists[name].unnest(number, alias, found["ordered"] or "")
        part = _TOKEN.sub(write, parts[name])
        return part if alias is None else f"{part} as {alias}"

    sql = _TOKEN.sub(write, text)
    return Query(sql, tuple(numbered))
