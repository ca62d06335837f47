"""Figures as tables: on the terminal, and in Markdown."""

import platform
import sqlite3
import sys
from collections.abc import Sequence
from importlib.util import find_spec

from bench.measure import METRICS, Figures, Metric, Subject

Table = tuple[str, list[str], list[list[str]]]
"""Title, headings, rows."""


def tables(figures: Figures, subjects: Sequence[Subject]) -> list[Table]:
    """One table per group: subjects down, metrics across."""
    found: list[Table] = []
    for group in dict.fromkeys(subject.group for subject in subjects):
        members = [subject for subject in subjects if subject.group == group]
        metrics = [
            metric
            for metric in METRICS.values()
            if any((subject.name, metric.name) in figures.values for subject in members)
        ]
        rows = [
            [
                subject.name,
                *(
                    [cell(figures, subject, metric) for metric in metrics]
                    if not subject.missing
                    else [subject.missing, *[""] * (len(metrics) - 1)][: len(metrics)]
                ),
            ]
            for subject in members
        ]
        headings = ["", *(f"{metric.heading} {metric.unit}" for metric in metrics)]
        if metrics:
            found.append((group, headings, rows))
    return found


def cell(figures: Figures, subject: Subject, metric: Metric) -> str:
    """The median, and the spread where there is one."""
    median = figures.median(subject.name, metric.name)
    if median is None:
        return "failed" if (subject.name, metric.name) in figures.failures else "–"
    spread = figures.spread(subject.name, metric.name)
    if spread is None or spread[0] == spread[1]:
        return number(median)
    return f"{number(median)} ({number(spread[0])}..{number(spread[1])})"


def number(value: float) -> str:
    if value >= 10_000:
        return f"{value / 1_000:.0f}k"
    if value >= 1_000:
        return f"{value / 1_000:.1f}k"
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}"


def notes(figures: Figures, subjects: Sequence[Subject], repeat: int) -> list[str]:
    versions = f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}"
    lines = [f"{versions}; medians of {repeat} interleaved repetitions (smallest..largest)."]
    lines += [f"{metric.heading}: {metric.about}." for metric in used(figures)]
    lines += [f"{subject.name}: {subject.note}." for subject in subjects if subject.note]
    lines += [
        f"FAILED {subject}, {metric}: {why}" for (subject, metric), why in figures.failures.items()
    ]
    return lines


def used(figures: Figures) -> list[Metric]:
    names = {metric for _, metric in figures.values}
    return [metric for metric in METRICS.values() if metric.name in names]


def show(found: Sequence[Table], lines: Sequence[str]) -> None:
    """On the terminal: with rich where it is installed."""
    if find_spec("rich"):
        _show_rich(found, lines)
        return
    for title, headings, rows in found:
        print(f"\n{title}")
        widths = [max(len(row[i]) for row in [headings, *rows]) for i in range(len(headings))]
        for row in [headings, *rows]:
            print("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)))
    print()
    print("\n".join(lines))


def _show_rich(found: Sequence[Table], lines: Sequence[str]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table as RichTable

    console = Console(width=None if sys.stdout.isatty() else 150, highlight=False)
    for title, headings, rows in found:
        table = RichTable(title=title, title_justify="left", box=box.SIMPLE_HEAD, title_style="bold")
        for position, heading in enumerate(headings):
            table.add_column(heading, justify="right" if position else "left", no_wrap=not position)
        for row in rows:
            # The spread goes below its median: the table stays narrow.
            table.add_row(*(text.replace(" (", "\n(") if i else text for i, text in enumerate(row)))
        console.print(table)
    for line in lines:
        console.print(line, style="dim", soft_wrap=True, markup=False)


def markdown(found: Sequence[Table], lines: Sequence[str]) -> str:
    parts: list[str] = []
    for title, headings, rows in found:
        parts.append(f"## {title.capitalize()}\n")
        parts.append("| " + " | ".join(headings) + " |")
        parts.append("|---" + "|---:" * (len(headings) - 1) + "|")
        parts += ["| " + " | ".join(row) + " |" for row in rows]
        parts.append("")
    return "\n".join(["# Benchmarks\n", *parts, *(f"- {line}" for line in lines), ""])
