"""Options that all lists share: columns, range of time, order, and refreshing.

A list is a function that takes a `Look` and returns what it `Found`. `@listing` makes a command of it,
with --columns, --sort, --watch, --json and --url, and where they make sense --since and --until,
--limit and --after, and --reveal.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypeVar, cast, get_type_hints

import typer

from commandbus.domain.page import Page
from commandbus.errors import StoreUnavailable
from commandbus.interfaces.cli import options, output, target, text
from commandbus.interfaces.cli.exits import CliError, Exit
from commandbus.interfaces.cli.output import Column

if TYPE_CHECKING:
    from commandbus.sync import SyncCommandBus

T = TypeVar("T")

PIECE = 500
"""So many rows are read at a time between --since and --until, which most of them may be outside of."""


@dataclass(frozen=True, slots=True)
class Look:
    """What a list is asked for, besides its own options."""

    bus: SyncCommandBus
    since: datetime | None = None
    until: datetime | None = None
    limit: int = 1000
    after: str | None = None
    json: bool = False

    @property
    def has_bounds(self) -> bool:
        return self.since is not None or self.until is not None

    def covers(self, moment: datetime | None) -> bool:
        """Whether a moment is between --since and --until; a missing one is so without bounds only."""
        if moment is None:
            return not self.has_bounds
        return not self.is_past(moment) and not self.is_ahead(moment)

    def is_past(self, moment: datetime | None) -> bool:
        return self.since is not None and moment is not None and moment < self.since

    def is_ahead(self, moment: datetime | None) -> bool:
        return self.until is not None and moment is not None and moment >= self.until

    def choose(self, rows: Iterable[T], moment: Callable[[T], datetime | None]) -> list[T]:
        """The rows whose moment is between --since and --until."""
        return [row for row in rows if self.covers(moment(row))]


@dataclass(frozen=True, slots=True)
class Found:
    """What one look found. `name` is the key of the rows in a JSON document; `document` makes other
    keys of them. `next` is the cursor of the next page, and `code` the exit code."""

    name: str
    rows: Sequence[Any]
    columns: Sequence[Column]
    empty: str = "nothing to show"
    next: str | None = None
    order: str | None = None
    """The column by which the store itself sorts, as --sort names it."""
    paged: bool = False
    document: Callable[[Sequence[Any]], dict[str, Any]] | None = None
    more: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    prints: Callable[[Sequence[Any]], None] | None = None
    """Prints the rows on a terminal, instead of a table, where no columns are chosen."""
    code: Exit = Exit.OK

    @classmethod
    def of_page(
        cls, name: str, page: Page[Any], columns: Sequence[Column], empty: str, **more: Any
    ) -> Found:
        """A page, and how to get the next."""
        notes = () if page.next is None else (f"more with --after {page.next}",)
        return cls(name, list(page), columns, empty, page.next, paged=True, notes=notes, **more)


class Fetch(Protocol):
    """Reads a page of a list, newest first."""

    def __call__(self, *, after: str | None, limit: int) -> Page[Any]: ...


def read_page(
    look: Look, fetch: Fetch, moment: Callable[[Any], datetime | None], *, ordered: bool = True
) -> Page[Any]:
    """A page of the rows between --since and --until, for lists whose store has no such condition.
    Reads until the page is full or everything was looked at; with `ordered`, moments only become
    older, and the first that is past --since is the end."""
    found: list[Any] = []
    after, looks = look.after, 0
    with output.working("reading") as tell:
        while True:
            page = fetch(after=after, limit=PIECE if look.has_bounds else look.limit)
            looks += len(page)
            places = [place for place, row in enumerate(page, 1) if look.covers(moment(row))]
            left = look.limit - len(found)
            if len(places) > left:  # read again as far as it is shown, for the cursor behind that
                page = fetch(after=after, limit=places[left - 1])
            found += look.choose(page, moment)
            after = page.next
            if ordered and page and look.is_past(moment(page[-1])):
                return Page(found)
            if after is None or len(found) >= look.limit:
                return Page(found, after)
            tell(f"{len(found):,} found, {looks:,} looked at")


def sorted_by(found: Found, names: str | None) -> Found:
    """The rows in the order of the columns that were named; `-name` is the largest first, and what is
    empty comes last. Of a page that is not all, only the page is sorted, and a note says so; unless the
    store has this order itself."""
    if names is None:
        return found
    known = {column.name.lower(): column for column in found.columns}
    rows, wanted = list(found.rows), [name.strip().lower() for name in names.split(",") if name.strip()]
    for name in reversed(wanted):
        column = known.get(name.removeprefix("-"))
        if column is None:
            raise CliError(
                f"There is no column {name!r} to sort by; use {', '.join(known)}.", Exit.USAGE
            )
        empty = [row for row in rows if _is_empty(column, row)]
        filled = [row for row in rows if not _is_empty(column, row)]
        filled.sort(key=lambda row, by=column: _sort_key(by, row), reverse=name.startswith("-"))  # type: ignore[misc]
        rows = filled + empty
    of = "all" if found.next is None or wanted == [found.order] else "page"
    notes = found.notes
    if of == "page":
        notes = (f"only the {len(rows):,} shown are sorted, and not all; raise --limit", *notes)
    return replace(
        found, rows=rows, notes=notes, more=found.more | {"sort": {"by": ",".join(wanted), "of": of}}
    )


def _is_empty(column: Column, row: Any) -> bool:
    return column.order(row) in (None, "")


def _sort_key(column: Column, row: Any) -> tuple[int, float, str]:
    value = column.order(row)
    if isinstance(value, int | float):
        return (0, float(value), "")
    return (1, 0.0, str(value).casefold())


@dataclass(frozen=True, slots=True)
class View:
    """How a list is to be printed."""

    columns: str | None
    sort: str | None
    json: bool

    def arranged(self, found: Found) -> Found:
        ordered = sorted_by(found, self.sort)
        return replace(ordered, columns=output.chosen(ordered.columns, self.columns))

    def document(self, found: Found) -> dict[str, Any]:
        made = found.document(found.rows) if found.document else {found.name: list(found.rows)}
        return made | ({"next": found.next} if found.paged else {}) | found.more

    def print(self, found: Found) -> None:
        """Once: a table, TSV or a document, and remarks on standard error."""
        found = self.arranged(found)
        if self.json:
            output.json_document(self.document(found))
            return
        if found.prints is not None and self.columns is None and output.is_terminal():
            found.prints(found.rows)
        else:
            output.table(found.rows, found.columns, empty=found.empty)
        for words in found.warnings:
            output.warn(words)
        for words in found.notes:
            output.note(words)


def watch(look: Callable[[], Found], view: View, seconds: float) -> None:
    """Look again and again, until Ctrl-C: in place on a terminal, one look after another in a pipe,
    with --json a line for each. A store that is away is said, and looked for again."""
    shown_remarks: tuple[str, ...] = ()
    with _screen(view) as draw:
        while True:
            try:
                found = view.arranged(look())
            except StoreUnavailable as error:
                problem = (text.line(error),)
                draw(None, problem) if draw else _tell(problem, shown_remarks)
                shown_remarks = problem
            else:
                if draw is not None:
                    draw(found, ())
                elif view.json:
                    print(text.as_json(view.document(found), indent=-1), flush=True)
                else:
                    output.tsv(found.rows, found.columns)
                    print(flush=True)
                    remarks = (*found.warnings, *found.notes)
                    _tell(remarks, shown_remarks)
                    shown_remarks = remarks
            time.sleep(seconds)


def _tell(remarks: tuple[str, ...], before: tuple[str, ...]) -> None:
    """Remarks beside a pipe, where they are others than before."""
    if remarks != before:
        for words in remarks:
            output.warn(words)


@contextmanager
def _screen(view: View) -> Iterator[Callable[[Found | None, tuple[str, ...]], None] | None]:
    """A function that draws in place; None where there is no terminal, or --json was given."""
    if view.json or not output.is_terminal():
        yield None
        return
    from rich.live import Live

    out, last = output.console(), None
    with Live(console=out, auto_refresh=False, vertical_overflow="ellipsis") as live:

        def draw(found: Found | None, problems: tuple[str, ...]) -> None:
            nonlocal last
            last = found or last
            live.update(_drawn(last, problems, out.width), refresh=True)

        yield draw


def _drawn(found: Found | None, problems: tuple[str, ...], width: int) -> Any:
    from rich.console import Group
    from rich.text import Text

    parts: list[Any] = []
    if found is not None:
        rows = found.rows
        parts.append(
            output.rich_table(rows, found.columns, width) if rows else Text(text.line(found.empty))
        )
        parts += [Text(text.line(words), "yellow") for words in found.warnings]
        parts += [Text(text.line(words), "bright_black") for words in found.notes]
    parts += [Text(words, "red") for words in problems]
    now = text.moment(text.after_now(0))[11:19]
    return Group(*parts, Text(f"{now} UTC, Ctrl-C ends", "bright_black"))


class Listing(Protocol):
    """A list as a command; `look` is the function that it was made of."""

    look: Callable[..., Found]

    def __call__(self, **values: Any) -> None: ...


def listing(
    *, times: str | None = None, paged: bool = False, store: bool = True, secrets: bool = False
) -> Callable[[Callable[..., Found]], Listing]:
    """A command of a function that looks. `times` says what --since and --until are compared with, such
    as Sent; without it the list has no such options. `paged` is for lists that may be long, `secrets`
    for those whose rows have payloads: secrets in them are masked, unless --reveal is given."""

    def decorate(function: Callable[..., Found]) -> Listing:
        own = list(inspect.signature(function).parameters.values())[1:]

        def command(**values: Any) -> None:
            view = View(values.pop("columns"), values.pop("sort"), values.pop("json"))
            interval = options.seconds(values.pop("watch"), "--watch")
            if interval is not None and interval < 0.1:
                raise CliError("--watch takes 0.1 seconds or more.", Exit.USAGE)
            url = values.pop("url", None)
            since, until = values.pop("since", None), values.pop("until", None)
            page = {name: values.pop(name) for name in ("limit", "after") if paged}
            reveal = values.pop("reveal", True)

            def found() -> Found:
                times = (options.moment(since, "--since"), options.moment(until, "--until"))
                seen = function(Look(bus, *times, json=view.json, **page), **values)
                return replace(seen, rows=[output.masked(row, reveal) for row in seen.rows])

            opened: Any = target.opened(url) if store else nullcontext()
            with opened as bus:
                if interval is not None:
                    with suppress(KeyboardInterrupt):
                        watch(found, view, interval)
                    return
                shown = found()
            view.print(shown)
            if shown.code:
                raise typer.Exit(shown.code)

        hints = get_type_hints(function, include_extras=True)
        made = [one.replace(annotation=hints[one.name], kind=one.KEYWORD_ONLY) for one in own]
        made += _shared(times, paged, store, secrets)
        command.__signature__ = inspect.Signature(made)  # type: ignore[attr-defined]
        command.__annotations__ = {one.name: one.annotation for one in made}
        command.__doc__ = function.__doc__
        command.__name__, command.__module__ = function.__name__, function.__module__
        command.look = function  # type: ignore[attr-defined]
        return cast("Listing", command)

    return decorate


def _shared(times: str | None, paged: bool, store: bool, secrets: bool) -> list[inspect.Parameter]:
    """The options that every such list has."""
    since = f"{times} since: 2h for two hours ago, or 2030-05-17T08:00Z."
    made: dict[str, tuple[Any, Any]] = {}
    if times is not None:
        made["since"] = (
            Annotated[str | None, typer.Option("--since", metavar="WHEN", help=since)],
            None,
        )
        made["until"] = (
            Annotated[
                str | None,
                typer.Option("--until", metavar="WHEN", help=f"{times} before: 2h, or a moment."),
            ],
            None,
        )
    made |= {"columns": (options.Columns, None), "sort": (options.Sort, None)}
    if paged:
        made |= {"limit": (options.Limit, 20), "after": (options.After, None)}
    made["watch"] = (options.Watch, None)
    if secrets:
        made["reveal"] = (options.Reveal, False)
    if store:
        made["url"] = (options.Url, None)
    made["json"] = (options.Json, False)
    return [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)
        for name, (annotation, default) in made.items()
    ]
