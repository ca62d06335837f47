"""`top`: a live view of all domains."""

from __future__ import annotations

import time
from collections import deque
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any

import typer

from commandbus.interfaces.cli import options, output, target, text
from commandbus.interfaces.cli.output import Column
from commandbus.store.urls import shown_url

if TYPE_CHECKING:
    from commandbus.store.records import QueueStats


WITHOUT_KEYS = "without keys, because textual is not installed: pip install 'durable-commandbus[tui]'"


class Rates:
    """Ended commands per second of each domain, over the last few looks."""

    def __init__(self, looks: int = 5) -> None:
        self._seen: dict[str, deque[tuple[float, int]]] = {}
        self._looks = looks

    def add(self, found: list[QueueStats], now: float) -> None:
        """Take in a look at all domains."""
        for stats in found:
            ended = stats.completed + stats.failed + stats.canceled + stats.parked
            self._seen.setdefault(stats.domain, deque(maxlen=self._looks)).append((now, ended))

    def of(self, domain: str) -> float | None:
        """None until there is something to compare with."""
        seen = self._seen.get(domain)
        if seen is None or len(seen) < 2 or seen[-1][0] <= seen[0][0]:
            return None
        return max(0.0, (seen[-1][1] - seen[0][1]) / (seen[-1][0] - seen[0][0]))


def top(
    once: Annotated[bool, typer.Option("--once", help="Print it once and exit.")] = False,
    plain: Annotated[
        bool, typer.Option("--plain", help="A table without keys, also where textual is installed.")
    ] = False,
    interval: Annotated[float, typer.Option("--interval", "-i", min=0.1, help="Seconds.")] = 1.0,
    url: options.Url = None,
    json: options.Json = False,
) -> None:
    """Watch all domains live.

    What is ready, scheduled, running, parked and ended, and how fast it goes. With the extra tui it has
    keys: 1 to 5 for domains, parked commands by error or one by one, what runs, and workers; s and r
    sort, / searches, Enter opens a command, space freezes, + and - change the pace, q ends it. Without
    the extra it is a table of all domains, and Ctrl-C ends it.

    Without a terminal one look is printed, as with --once.
    """
    from commandbus.interfaces.cli.queues import COLUMNS, EMPTY, all_stats

    with target.opened(url) as bus:
        if once or json or not output.is_terminal():
            found = all_stats(bus)
            if json:
                output.json_document({"domains": found})
            else:
                output.table(found, COLUMNS, empty=EMPTY)
            return
        if not plain and find_spec("textual") is not None:
            from commandbus.interfaces.cli.tui import Top

            Top(bus, interval).run()
            return
        from rich.live import Live

        rates, out = Rates(), output.console()
        try:
            with Live(console=out, screen=True, auto_refresh=False) as live:
                while True:
                    found = all_stats(bus)
                    rates.add(found, time.monotonic())
                    live.update(view(found, rates, bus.url, out.width, plain=plain), refresh=True)
                    time.sleep(interval)
        except KeyboardInterrupt:
            return


def rate_column(rates: Rates) -> Column:
    """Ended commands per second, where there are two looks to compare."""

    def rate(stats: Any) -> str:
        value = rates.of(stats.domain)
        return "–" if value is None else f"{value:,.0f}"

    return Column("per s", rate, right=True, style="bold", key=lambda stats: rates.of(stats.domain))


def view(found: list[QueueStats], rates: Rates, url: str, width: int, *, plain: bool) -> Any:
    """One look as the table without keys draws it; unless it was asked for, it says what is missing."""
    from rich.console import Group
    from rich.text import Text

    from commandbus.interfaces.cli.queues import COLUMNS

    head = Text.assemble(
        ("commandbus top", "bold"),
        ("   " + text.line(shown_url(url)) + "   ", "bright_black"),
        (text.moment(text.after_now(0))[11:19] + " UTC", "bright_black"),
    )
    columns = [COLUMNS[0], rate_column(rates), *COLUMNS[1:]]
    body = (
        output.rich_table(found, columns, width)
        if found
        else Text("no domain yet: nothing was ever sent")
    )
    end = [Text("Ctrl-C ends", "bright_black")]
    if not plain:
        end.append(Text(WITHOUT_KEYS, "yellow"))
    return Group(head, Text(), body, Text(), *end)
