"""From values to HTML: templates in which everything is text until it is escaped."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import jinja2
from markupsafe import Markup

from commandbus.domain.ids import short_id
from commandbus.domain.limits import rate_in_words
from commandbus.interfaces.cli import text
from commandbus.operations.history import COUNT_MAX

HERE = Path(__file__).parent

STATUS = {
    "PENDING": "pending",
    "IN_PROGRESS": "running",
    "COMPLETED": "completed",
    "FAILED": "failed",
    "CANCELED": "canceled",
    "IN_TROUBLESHOOTING_QUEUE": "parked",
    "COMPLETED_WITH_FAILURES": "failed",
    "RUNNING": "running",
    "COMPENSATING": "parked",
    "WAITING_FOR_TROUBLESHOOTING": "parked",
    "COMPENSATED": "canceled",
    "TIMED_OUT": "failed",
    "QUIET": "parked",
    "STOPPING": "canceled",
    "OPEN": "failed",
    "HALF_OPEN": "parked",
    "CLOSED": "completed",
}
"""The class of each status."""

HEALTH = {
    "ok": "Healthy",
    "idle": "Idle",
    "paused": "Paused",
    "warning": "Attention",
    "critical": "Critical",
}


@cache
def environment() -> jinja2.Environment:
    """One for all dashboards of a process, so that templates are compiled once."""
    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters |= {
        "age": age,
        "ago": ago,
        "later": later,
        "count": count,
        "duration": duration,
        "event": text.event,
        "json": text.as_json,
        "compact": compact,
        "moment": moment,
        "number": number,
        "place": place,
        "range_end": range_end,
        "rate": rate_in_words,
        "short": short_id,
        "status": status,
        "word": lambda value: text.status_word(value).capitalize(),
        "segment": segment,
    }
    env.globals |= {"HEALTH": HEALTH, "plural": text.plural}
    return env


def _finalize(value: Any) -> Any:
    """What could reverse or hide text around it is shown as an escape; Markup is our own."""
    if value is None:
        return ""
    return text.block(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def segment(value: object) -> str:
    """Text as one part of a path."""
    return quote(str(value), safe="")


def moment(value: datetime | None) -> str:
    return "" if value is None else value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def range_end(value: datetime) -> Markup:
    """A moment of a chart's range, which a script shows in the time zone of the browser."""
    shown = value.astimezone(UTC).strftime("%d %b %H:%M:%S")
    return Markup('<span data-time="{}" data-step="range">{}</span>').format(
        int(value.timestamp()), shown
    )


def age(value: datetime | None) -> str:
    return text.age(value)


def ago(value: datetime | None) -> Markup:
    """A moment as its distance, with the moment itself on hover."""
    if value is None:
        return Markup('<span class="faint">–</span>')
    shown = text.age(value)
    if not shown.startswith("in "):
        shown = f"{shown} ago"
    return Markup('<time datetime="{}" title="{}">{}</time>').format(
        value.isoformat(), moment(value), shown
    )


def later(value: object, since: datetime) -> Markup | str:
    """A moment in the trail of a command, as its distance from another one."""
    try:
        due = datetime.fromisoformat(str(value))
        seconds = (due - since).total_seconds()
    except (ValueError, TypeError):  # trails are kept as they were written
        return str(value)
    shown = f"in {duration(seconds)}" if seconds > 0 else "at once"
    return Markup('<time datetime="{}" title="{}">{}</time>').format(
        due.isoformat(), moment(due), shown
    )


def duration(seconds: float | None) -> str:
    return "< 1 ms" if seconds is not None and 0 <= seconds < 0.001 else text.duration(seconds)


def number(value: float | None) -> str:
    if value is None:
        return "–"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value else "0"


def count(value: int) -> str:
    """A number that was counted no further than a bound."""
    return f"{value:,}+" if value >= COUNT_MAX else f"{value:,}"


def place(frame: str) -> str:
    """Where in the code, without the folders above: a file's own name is at the end of its path."""
    folders, _, name = frame.rpartition("/")
    return f"…/{folders.rpartition('/')[2]}/{name}" if folders.count("/") > 1 else frame


def compact(value: object, longest: int = 120) -> str:
    shown = text.compact_json(value)
    return shown if len(shown) <= longest else shown[:longest] + " …"


def status(value: object) -> Markup:
    kind, word = STATUS.get(str(value), "pending"), text.status_word(value).capitalize()
    return Markup('<span class="status {}">{}</span>').format(kind, word)


class Links:
    """Addresses below the prefix under which the dashboard is mounted."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix.rstrip("/")

    def __call__(self, path: str, **query: Any) -> str:
        given = {key: value for key, value in query.items() if value not in (None, "")}
        tail = f"?{urlencode(given)}" if given else ""
        return f"{self._prefix}{path}{tail}"

    def command(self, domain: str, command_id: object) -> str:
        return self(f"/commands/{segment(domain)}/{segment(command_id)}")

    def batch(self, batch_id: object) -> str:
        return self(f"/batches/{segment(batch_id)}")

    def domain(self, domain: str) -> str:
        return self(f"/domains/{segment(domain)}")

    def search(self, **conditions: Any) -> str:
        words = [f"{key}:{_quoted(value)}" for key, value in conditions.items() if value is not None]
        return self("/commands", q=" ".join(words))


def _quoted(value: object) -> str:
    shown = str(value)
    return f'"{shown}"' if any(c.isspace() for c in shown) else shown
