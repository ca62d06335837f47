"""The demo's last word: what happened, and where to look next."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commandbus.interfaces.cli import output, text
from commandbus.interfaces.cli.demo.scene import Report
from commandbus.interfaces.cli.output import Column
from commandbus.operations.history import percentile
from commandbus.store.urls import shown_url

if TYPE_CHECKING:
    from rich.console import Console

    from commandbus.domain.command import CommandRecord

BAR = 24
LABELS = {0: "high", 5: "normal", 10: "low"}
OUTCOMES = (
    ("COMPLETED", "completed", "green"),
    ("FAILED", "failed", "red"),
    ("IN_TROUBLESHOOTING_QUEUE", "parked", "yellow"),
    ("PENDING", "pending", "cyan"),
    ("IN_PROGRESS", "running", "blue"),
)


def print_summary(report: Report, url: str) -> None:
    """Everything on one screen, for a terminal or a log."""
    out = output.console()
    if not output.is_terminal():
        out.width = max(out.width, 100)
    out.print()
    _headline(out, report)
    out.print()
    _outcomes(out, report.records)
    out.print()
    _waits(out, report.records)
    out.print()
    _shares(out, report)
    _parked(out, report.records)
    _next_steps(out, report.records, url)


def _say(out: Console, *parts: str | tuple[str, str]) -> None:
    from rich.text import Text

    out.print(Text.assemble(*parts), soft_wrap=True)


def _headline(out: Console, report: Report) -> None:
    count = len(report.records)
    rate = count / report.seconds if report.seconds else 0.0
    verdict = (
        ("all accounted for", "bold green") if not report.problems else ("NOT in order", "bold red")
    )
    _say(
        out,
        (f"{count:,} commands", "bold"),
        f" in {report.seconds:.1f} s, {rate:,.0f} per second: ",
        verdict,
    )


def _outcomes(out: Console, records: list[CommandRecord]) -> None:
    ends = Counter(str(record.status) for record in records)
    for status, label, style in OUTCOMES:
        number = ends[status]
        if not number and status in ("PENDING", "IN_PROGRESS"):
            continue
        share = number / len(records) if records else 0.0
        bar = "█" * max(1, round(share * BAR)) if number else ""
        _say(
            out,
            f"  {label:<11}",
            (f"{number:>7,}", f"bold {style}"),
            f" {share:>6.1%}  ",
            (f"{bar:<{BAR}}", style),
            ("  " + _remark(status, records), "bright_black"),
        )


def _remark(status: str, records: list[CommandRecord]) -> str:
    chosen = [record for record in records if record.status == status]
    match status:
        case "COMPLETED":
            late = sum(record.attempts - record.crashes > 1 for record in chosen)
            return f"{late:,} of them after a retry"
        case "FAILED":
            return "a business rule said no"
        case "IN_TROUBLESHOOTING_QUEUE":
            return "wait for an operator"
        case _:
            return ""


def _waits(out: Console, records: list[CommandRecord]) -> None:
    """How long commands waited, from due to begun, by priority; first attempts only."""
    by_priority: dict[int, list[float]] = {}
    for record in records:
        if record.attempts == 1 and record.started_at is not None:
            waited = (record.started_at - record.due_at).total_seconds()
            by_priority.setdefault(record.priority, []).append(max(0.0, waited))
    rows = [(LABELS.get(key, str(key)), sorted(waits)) for key, waits in sorted(by_priority.items())]
    _print_table(
        out,
        rows,
        (
            Column("priority", lambda row: row[0]),
            Column("commands", lambda row: f"{len(row[1]):,}", right=True),
            Column("waited p50", lambda row: text.duration(percentile(row[1], 0.5)), right=True),
            Column("p95", lambda row: text.duration(percentile(row[1], 0.95)), right=True),
        ),
    )


def _shares(out: Console, report: Report) -> None:
    records = report.records
    retries = sum(max(0, record.attempts - record.crashes - 1) for record in records)
    workers = Counter(_short(record.worker) for record in records if record.worker)
    rescued = sum(record.crashes > 0 for record in records)
    shares = ", ".join(f"{name} {number:,}" for name, number in sorted(workers.items()))
    _say(out, "  retries    ", (f"{retries:,}", "bold cyan"), ("  with growing delays", "bright_black"))
    _say(out, "  workers    ", shares)
    if report.crashed:
        _say(
            out,
            "  crash      ",
            ("one worker process was killed", "magenta"),
            f"; {text.plural(rescued, 'command')} that it ran came back"
            if rescued
            else "; it ran nothing at that moment",
        )


def _short(worker: str) -> str:
    """The name of a worker without its boot id."""
    return worker.rpartition("-")[0] or worker


def _by_error(records: list[CommandRecord]) -> list[tuple[tuple[str, str, str, str], int]]:
    """Parked commands by what went wrong, the most frequent first; each with one of its messages."""
    counts: Counter[tuple[str, str, str]] = Counter()
    messages: dict[tuple[str, str, str], str] = {}
    for record in records:
        key = (record.domain, record.command_type, record.error_code or "")
        counts[key] += 1
        messages.setdefault(key, record.error_message or "")
    return [((*key, messages[key]), count) for key, count in counts.most_common()]


def _parked(out: Console, records: list[CommandRecord]) -> None:
    parked = [record for record in records if record.status == "IN_TROUBLESHOOTING_QUEUE"]
    if not parked:
        return
    groups = _by_error(parked)
    shown = groups[:8]
    _say(out)
    _say(out, ("In the troubleshooting queue", "bold"))
    _print_table(
        out,
        shown,
        (
            Column("count", lambda group: f"{group[1]:,}", right=True),
            Column("type", lambda group: f"{group[0][0]}/{group[0][1]}"),
            Column("error", lambda group: group[0][2], style="yellow"),
            Column("message", lambda group: group[0][3]),
        ),
    )
    rest = sum(number for _, number in groups[8:])
    if rest:
        _say(out, (f"  and {rest:,} more of {len(groups) - 8} kinds", "bright_black"))


def _print_table(out: Console, rows: Iterable[Any], columns: Sequence[Column]) -> None:
    from rich.padding import Padding

    built = output.rich_table(list(rows), columns, out.width - 2)
    out.print(Padding(built, (0, 0, 0, 2), expand=False))


def _next_steps(out: Console, records: list[CommandRecord], url: str) -> None:
    """Commands to copy: they work as they stand, wherever this one was started from."""
    program, shown = _program(), shown_url(url)
    # A password is not shown, so the commands must get the URL in another way.
    where = f" --url {shlex.quote(url)}" if shown == url else ""
    hint = "" if where else "; set COMMANDBUS_URL to it"
    bug = next((record for record in records if record.error_code == "ZeroDivisionError"), None)
    steps = [("what waits for an operator", f"{program} tsq list{where}")]
    if bug is not None:
        steps.append(("one of them, with its traceback", f"{program} show {bug.command_id}{where}"))
    steps.append(("all figures", f"{program} queue list{where}"))
    steps.append(("the same in a browser", f"{program} dashboard{where}"))
    _say(out)
    _say(out, ("Look at it", "bold"), (f"  (kept in {text.line(shown)}{hint})", "bright_black"))
    for label, command in steps:
        _say(out, (f"  {label}", "bright_black"))
        _say(out, (f"    {text.line(command)}", "cyan"))


def _program() -> str:
    """How to call this program from here: its name where the shell finds it, else its path."""
    started = Path(sys.argv[0])
    found = shutil.which("commandbus")
    if started.name != "commandbus":
        return "commandbus" if found else f"{shlex.quote(sys.executable)} -m commandbus"
    if found is not None and Path(found).resolve() == started.resolve():
        return "commandbus"
    try:
        return shlex.quote(str(started.absolute().relative_to(Path.cwd())))
    except ValueError:
        return shlex.quote(str(started.absolute()))
