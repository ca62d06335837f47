"""The demo while it runs: a live picture on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from commandbus.interfaces.cli import output, text
from commandbus.interfaces.cli.demo.scene import Figures, Scene, View
from commandbus.store.urls import shown_url

if TYPE_CHECKING:
    from rich.live import Live
    from rich.text import Text

PLAIN_SECONDS = 1.0


@contextlib.contextmanager
def view_for(scene: Scene) -> Iterator[View]:
    """The view that fits standard output."""
    if not output.is_terminal():
        yield PlainView(scene)
        return
    from rich.live import Live

    out = output.console()
    with Live(console=out, auto_refresh=False, transient=True) as live:
        yield LiveView(scene, live, out.width)


class PlainView:
    """A line a second, for logs and pipes."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._next = PLAIN_SECONDS
        self._news = ""
        output.write(
            f"Command Bus demo: {len(scene.planned):,} commands, 4 workers, "
            f"{text.line(shown_url(scene.url))}"
        )

    def update(self, figures: Figures) -> None:
        if figures.news != self._news:
            self._news = figures.news
            output.write(f"{figures.seconds:5.1f} s  {figures.news}")
        finished = figures.total_ended >= len(self._scene.planned)
        if figures.seconds < self._next and not finished:
            return
        self._next = figures.seconds + PLAIN_SECONDS
        domains = "  ".join(
            f"{domain} {figures.ended[domain]:,}/{self._scene.totals[domain]:,}"
            for domain in self._scene.domains
        )
        output.write(
            f"{figures.seconds:5.1f} s  {domains}  {figures.rate:,.0f}/s  "
            f"completed {figures.completed:,}  failed {figures.failed:,}  "
            f"parked {figures.parked:,}  retries {figures.retries:,}"
        )


class LiveView:
    """A bar per domain and the figures below, redrawn in place."""

    def __init__(self, scene: Scene, live: Live, width: int) -> None:
        self._scene = scene
        self._live = live
        self._bar = max(20, min(60, width - 38))

    def update(self, figures: Figures) -> None:
        self._live.update(self._picture(figures), refresh=True)

    def _picture(self, figures: Figures) -> Any:
        from rich.console import Group
        from rich.text import Text

        head = Text.assemble(
            ("Command Bus", "bold"),
            (f"   {len(self._scene.planned):,} commands, 4 workers, one SQLite file", "bright_black")
            if self._scene.url.startswith("sqlite:")
            else (f"   {len(self._scene.planned):,} commands, 4 workers", "bright_black"),
        )
        bars = [self._bar_of(domain, figures) for domain in self._scene.domains]
        speed = Text.assemble(
            ("  ", ""),
            (f"{figures.seconds:4.1f} s", "bold"),
            ("   ", ""),
            (f"{figures.rate:,.0f}", "bold"),
            (" per second   ", "bright_black"),
            (f"{figures.sent:,}", "bold"),
            (" sent   ", "bright_black"),
            (f"{figures.running:,}", "bold blue"),
            (" under lease", "bright_black"),
        )
        outcomes = Text.assemble(
            ("  ", ""),
            (f"{figures.completed:,}", "bold green"),
            (" completed   ", "bright_black"),
            (f"{figures.failed:,}", "bold red"),
            (" failed   ", "bright_black"),
            (f"{figures.parked:,}", "bold yellow"),
            (" parked   ", "bright_black"),
            (f"{figures.retries:,}", "bold cyan"),
            (" retries", "bright_black"),
        )
        news = Text(f"  {figures.news}", "magenta")
        return Group(Text(), head, Text(), *bars, Text(), speed, outcomes, news)

    def _bar_of(self, domain: str, figures: Figures) -> Text:
        from rich.text import Text

        total, ended = self._scene.totals[domain], figures.ended[domain]
        share = min(1.0, ended / total) if total else 1.0
        filled = int(share * self._bar)
        return Text.assemble(
            (f"  {domain:<14}", "bold"),
            ("━" * filled, "green"),
            ("━" * (self._bar - filled), "bright_black"),
            (f" {share:4.0%}", "bold"),
            (f"  {ended:,}/{total:,}", "bright_black"),
        )
