"""`queue`: whole domains."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from commandbus.interfaces.cli import completing, options, output, target, text
from commandbus.interfaces.cli.exits import CliError, Exit
from commandbus.interfaces.cli.lists import Found, Look, listing
from commandbus.interfaces.cli.output import Column, field_of

if TYPE_CHECKING:
    from rich.text import Text

    from commandbus.store.records import QueueStats
    from commandbus.sync import SyncCommandBus


def _number(name: str, style: str = "", *, wide: bool = False) -> Column:
    def show(stats: Any) -> Text:
        from rich.text import Text

        value = getattr(stats, name)
        return Text(f"{value:,}", style if value else "bright_black")

    return Column(name, field_of(name), show, right=True, wide=wide)


def _named(stats: Any) -> Text:
    from rich.text import Text

    name = Text(text.line(stats.domain), "bold")
    return name.append(" paused", "yellow") if stats.paused else name


COLUMNS = (
    Column("domain", field_of("domain"), _named),
    Column("state", lambda stats: "paused" if stats.paused else "open", pipe=True),
    _number("ready", "cyan"),
    _number("scheduled", "cyan"),
    _number("running", "blue"),
    _number("parked", "yellow"),
    _number("completed", "green"),
    _number("failed", "red"),
    _number("canceled", wide=True),
    Column(
        "oldest",
        lambda stats: "" if stats.oldest_ready_age is None else f"{stats.oldest_ready_age:.3f}",
        lambda stats: text.duration(stats.oldest_ready_age),
        right=True,
        key=field_of("oldest_ready_age"),
    ),
)
"""Shared with `top`. `oldest` is the age of the first ready command, in seconds in a pipe."""

EMPTY = "no domain yet: nothing was ever sent"

Named = Annotated[
    str,
    typer.Argument(metavar="DOMAIN", help="The domain.", autocompletion=completing.domains),
]


@listing()
def list_(look: Look) -> Found:
    """List all domains with their figures."""
    return Found("domains", all_stats(look.bus), COLUMNS, EMPTY)


def all_stats(bus: SyncCommandBus) -> list[QueueStats]:
    """The figures of every domain."""
    return [bus.stats(domain) for domain in bus.list_domains()]


def known(bus: SyncCommandBus, domain: str) -> QueueStats:
    """The figures of a domain that was sent to or paused; of another one, the name is a mistake."""
    found, names = bus.stats(domain), bus.list_domains()
    if domain not in names:
        there = f"there are {', '.join(names[:10])}" if names else "there is none yet"
        raise CliError(f"Nothing was ever sent to the domain {domain!r}; {there}.", Exit.NOT_FOUND)
    return found


def stats(domain: Named, url: options.Url = None, json: options.Json = False) -> None:
    """Show the figures of one domain."""
    with target.opened(url) as bus:
        found = known(bus, domain)
    if json:
        output.json_document(found)
        return
    output.table([found], COLUMNS)
    if found.paused:
        output.note(
            f"paused since {text.moment(found.paused_at)}: {found.paused_reason or 'no reason'}"
        )
