"""The output of a command: a table for a terminal, TSV for a pipe, JSON for a program.

Results go to standard output and everything else to standard error, so that a pipe carries data only.
Nothing here interprets markup: rich gets Text objects with escaped text, never strings.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from commandbus.interfaces.cli import text

if TYPE_CHECKING:
    from logging import Logger

    from rich.console import Console
    from rich.text import Text

    from commandbus.interfaces.redaction import Redaction

T = TypeVar("T")

STATUS_STYLES = {
    "PENDING": "cyan",
    "IN_PROGRESS": "blue",
    "RUNNING": "blue",
    "COMPLETED": "green",
    "CLOSED": "green",
    "FAILED": "red",
    "COMPLETED_WITH_FAILURES": "red",
    "OPEN": "red",
    "CANCELED": "bright_black",
    "IN_TROUBLESHOOTING_QUEUE": "yellow",
    "WAITING_FOR_TROUBLESHOOTING": "yellow",
    "HALF_OPEN": "yellow",
    "COMPENSATING": "magenta",
    "COMPENSATED": "magenta",
}
"""How each status is coloured in tables; TSV and JSON use its full name."""

WIDE = 100
"""Columns of a terminal from which tables show ids in full."""
GAP = 2
NARROWEST = 9
"""A column that gives way keeps so many characters."""
READABLE = 24
"""So many characters of it say enough where another column has no room otherwise."""

logs: Logger | None = None
"""Where remarks go instead of standard error, when each of its lines is to be a document."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: its heading, its value for a pipe, and how a person sees it."""

    name: str
    value: Callable[[Any], object]
    show: Callable[[Any], str | Text] | None = None
    wide: bool = False
    """Left out of tables without room for it; pipes always get it."""
    filled: bool = False
    """Left out of tables where it has nothing to show in any row."""
    pipe: bool = False
    """Left out of all tables: pipes only."""
    keep: bool = False
    """Never shortened, because it is what one copies. Of the others, the last gives way first."""
    right: bool = False
    style: str = ""
    narrow: Callable[[Any], str] | None = None
    """How a narrow table shows it, where it has no room for all of it."""
    key: Callable[[Any], object] | None = None
    """What it is sorted by, where that is not its value."""

    def order(self, row: Any) -> object:
        """What a row is sorted by."""
        return (self.key or self.value)(row)


def console(file: TextIO | None = None, *, stderr: bool = False) -> Console:
    """A console that shows text as it is: no markup, no highlighting, no emoji codes."""
    from rich.console import Console

    return Console(
        file=file, stderr=stderr, markup=False, highlight=False, emoji=False, soft_wrap=False
    )


def is_terminal(stream: TextIO | None = None) -> bool:
    """Whether a person looks at it."""
    looked_at = sys.stdout if stream is None else stream
    return bool(looked_at and looked_at.isatty()) and os.environ.get("TERM") != "dumb"


def is_interactive() -> bool:
    """Whether a question can be asked and answered."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def table(rows: Sequence[Any], columns: Sequence[Column], *, empty: str = "nothing to show") -> None:
    """Rows as a table on a terminal, as TSV with a heading in a pipe."""
    if not is_terminal():
        tsv(rows, columns)
    elif not rows:
        note(empty)
    else:
        out = console()
        out.print(rich_table(rows, columns, out.width))


def chosen(columns: Sequence[Column], names: str | None) -> Sequence[Column]:
    """The columns that were named, in this order, each of them in every table; all, without names."""
    if names is None:
        return columns
    known = {column.name.lower(): column for column in columns}
    wanted = [name.strip().lower() for name in names.split(",") if name.strip()]
    for name in wanted:
        if name not in known:
            from commandbus.interfaces.cli.exits import CliError, Exit

            raise CliError(f"There is no column {name!r}; use {', '.join(known)}.", Exit.USAGE)
    return [replace(known[name], wide=False, pipe=False, filled=False) for name in wanted]


def tsv(rows: Iterable[Any], columns: Sequence[Column]) -> None:
    """One line per row; tabs and line breaks in values are escaped, so a line is always a row."""
    write("\t".join(column.name.lower().replace(" ", "_") for column in columns))
    for row in rows:
        write("\t".join(text.line(column.value(row)) for column in columns))


def rich_table(rows: Sequence[Any], columns: Sequence[Column], width: int) -> Any:
    """The rows as a rich table of at most `width` characters, for printing or for a live view."""
    from rich.table import Table
    from rich.text import Text

    if width < WIDE:
        columns = [replace(c, show=c.narrow) if c.narrow else c for c in columns]
    shown = _shown(columns, rows, width)
    cells = [[_cell(column, row) for column in shown] for row in rows]
    widths = _fit(shown, cells, width)
    built = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="bright_black")
    for column, fitting in zip(shown, widths, strict=True):
        built.add_column(
            Text(column.name.upper()),
            no_wrap=True,
            overflow="ellipsis",
            width=fitting,
            justify="right" if column.right else "left",
            style=column.style,
        )
    for row in cells:
        built.add_row(*row)
    return built


def _shown(columns: Sequence[Column], rows: Sequence[Any], width: int) -> list[Column]:
    """The columns of a table: the wide ones as far as there is room, the last one first; on a very
    narrow terminal as many of the others as fit beside what is never shortened."""
    columns = [column for column in columns if not column.pipe and _has_something(column, rows)]
    shown = [column for column in columns if not column.wide]
    room = width + GAP - sum(GAP + _least(column, rows, READABLE) for column in shown)
    for column in reversed([column for column in columns if column.wide]):
        if GAP + _least(column, rows) <= room:
            room -= min(room, GAP + _least(column, rows, READABLE))
            shown.append(column)
    excess = sum(GAP + _least(column, rows) for column in shown) - GAP - width
    for column in reversed([column for column in shown if not column.keep]):
        if excess > 0:
            excess -= GAP + _least(column, rows)
            shown.remove(column)
    return [column for column in columns if column in shown]


def _least(column: Column, rows: Sequence[Any], least: int = NARROWEST) -> int:
    """As narrow as it may become."""
    whole = _width(column, rows)
    return whole if column.right or column.keep else min(whole, max(len(column.name), least))


def _has_something(column: Column, rows: Sequence[Any]) -> bool:
    return not column.filled or any(_cell(column, row) for row in rows)


def _width(column: Column, rows: Sequence[Any]) -> int:
    """As wide as its widest cell."""
    return max([len(column.name), *(_cell(column, row).cell_len for row in rows)])


def _cell(column: Column, row: Any) -> Text:
    from rich.text import Text

    value = (column.show or column.value)(row)
    return value if isinstance(value, Text) else Text(text.line(value))


def _fit(columns: Sequence[Column], cells: Sequence[Sequence[Text]], width: int) -> list[int]:
    """How wide each column is: as wide as its widest cell, or less from the last one backwards."""
    widths = [
        max([len(column.name), *(row[index].cell_len for row in cells)])
        for index, column in enumerate(columns)
    ]
    excess = sum(widths) + GAP * (len(widths) - 1) - width
    for index, column in reversed(list(enumerate(columns))):
        if not column.keep and not column.right:
            given = min(max(0, excess), max(0, widths[index] - max(len(column.name), NARROWEST)))
            widths[index] -= given
            excess -= given
    return widths


@contextmanager
def progress(title: str, total: int) -> Iterator[Callable[..., None]]:
    """A bar on standard error for long work on a terminal. Call what it gives for each piece
    done, or with how many."""
    seen = console(stderr=True)
    if total < 50 or not is_terminal() or not seen.is_terminal:
        yield lambda pieces=1: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(text.line(title)), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=seen, transient=True) as shown:
        task = shown.add_task(title, total=total)
        yield lambda pieces=1: shown.advance(task, pieces)


@contextmanager
def working(title: str) -> Iterator[Callable[[str], None]]:
    """A line on standard error for a search or other work of unknown length; call what it gives with
    how far the work is."""
    seen = console(stderr=True)
    if not seen.is_terminal or os.environ.get("TERM") == "dumb":
        yield lambda words: None
        return
    from rich.status import Status
    from rich.text import Text

    with Status(Text(text.line(title)), console=seen) as shown:
        yield lambda words: shown.update(Text(text.line(f"{title}: {words}")))


def status(value: object) -> Text:
    """A status as tables show it."""
    from rich.text import Text

    return Text(text.status_word(value), STATUS_STYLES.get(str(value), ""))


def sentence(words: object) -> None:
    """A line of data for a person, broken between words where the terminal ends."""
    from rich.text import Text

    console().print(Text(text.line(words)))


def masked(record: T, reveal: bool = False) -> T:
    """A record as the dashboard shows it: values under keys that name a secret are masked."""
    shown: T = record if reveal else _redaction().shown(record)
    return shown


@cache
def _redaction() -> Redaction:
    from commandbus.interfaces.redaction import Redaction

    return Redaction()


def json_document(value: object) -> None:
    """One JSON document on standard output."""
    write(text.as_json(value))


def write(line: str) -> None:
    """A line of data on standard output."""
    print(line)


def note(message: object) -> None:
    """A remark for the person at the terminal; never part of the data."""
    if logs is not None:
        logs.info(text.line(message))
        return
    with suppress(OSError, ValueError):  # the reader is gone, which must not end a worker
        print(text.line(message), file=sys.stderr)


def done(message: object) -> None:
    """Says that something was carried out."""
    _mark("✓", "green", message, "info")


def warn(message: object) -> None:
    """Says that something deserves attention."""
    _mark("!", "yellow", message, "warning")


def error(message: object) -> None:
    """An error in one clear line."""
    _mark("error:", "bold red", message, "error")


def _mark(mark: str, style: str, message: object, level: str) -> None:
    if logs is not None:
        getattr(logs, level)(text.line(message))
        return
    with suppress(OSError, ValueError):
        if not is_terminal(sys.stderr):
            print(f"{mark} {text.line(message)}", file=sys.stderr)
            return
        from rich.text import Text

        console(stderr=True).print(Text.assemble((mark, style), " ", text.line(message)))


def id_column(heading: str, value: Callable[[Any], object], **more: Any) -> Column:
    """The column of an id. A narrow table has its short form, by which it is found as well."""

    def narrow(row: Any) -> str:
        from commandbus.domain.ids import short_id

        whole = value(row)
        return "" if whole is None else short_id(whole)

    return Column(heading, value, keep=True, narrow=narrow, **more)


field_of = attrgetter
"""A column's value: an attribute of the row."""
