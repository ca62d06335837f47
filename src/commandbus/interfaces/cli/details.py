"""How one command is shown: its record, its payload and error, and its timeline."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

from commandbus.interfaces.cli import output, text

if TYPE_CHECKING:
    from rich.text import Text

    from commandbus.domain.audit import AuditEvent
    from commandbus.domain.command import CommandRecord
    from commandbus.domain.failure import Failure
    from commandbus.operations.parked_notes import Case

EVENT_STYLES = {
    "SENT": "cyan",
    "RECEIVED": "blue",
    "COMPLETED": "green",
    "FAILED": "red",
    "BUSINESS_RULE_FAILED": "red",
    "RETRY_SCHEDULED": "bright_black",
    "WORKER_LOST": "magenta",
    "MOVED_TO_TSQ": "yellow",
    "OPERATOR_RETRY": "cyan",
    "OPERATOR_COMPLETE": "green",
    "COMMENTED": "cyan",
    "ESCALATED": "yellow",
}
LABEL = 12
"""Width of the labels on the left."""


def print_record(record: CommandRecord, trail: list[AuditEvent], case: Case) -> None:
    """A command for a person, or for a pager."""
    from rich.text import Text

    out = output.console()
    out.print(
        Text.assemble(
            (text.line(f"{record.domain}/{record.command_type}"), "bold"),
            "  ",
            output.status(record.status),
        )
    )
    for label, value in facts(record):
        out.print(labelled(label, value), soft_wrap=True)
    if case.assignee:
        out.print(labelled("assignee", case.assignee), soft_wrap=True)
    if case.escalated_at:
        out.print(labelled("escalated", ago(case.escalated_at)), soft_wrap=True)
    document("data", record.data)
    if record.result is not None:
        document("result", record.result)
    if record.error is not None:
        _failure(record.error)
    out.print()
    out.print(Text("timeline", "bold"))
    print_events(trail, indent="  ")


def labelled(label: str, value: str) -> Text:
    """A line of a head: what it is, and what it says."""
    from rich.text import Text

    return Text.assemble((f"  {label:<{LABEL}}", "bright_black"), text.line(value))


def facts(record: CommandRecord) -> Iterator[tuple[str, str]]:
    """The lines of the head, without those that say nothing."""
    yield "id", str(record.command_id)
    # What has ended may have had fewer: a handler has a maximum of its own.
    is_open = record.status in ("PENDING", "IN_PROGRESS")
    tried = f"{record.attempts} of {record.max_attempts}" if is_open else str(record.attempts)
    if record.crashes:
        tried += f", {text.plural(record.crashes, 'worker')} lost"
    yield "attempts", tried
    yield "priority", str(record.priority)
    yield "created", ago(record.created_at)
    if record.due_at > record.created_at:
        yield "due", ago(record.due_at)
    if record.expires_at is not None:
        yield "expires", ago(record.expires_at)
    if record.started_at is not None:
        yield "started", ago(record.started_at)
    if record.finished_at is not None:
        ran = "" if record.started_at is None else _ran(record.started_at, record.finished_at)
        yield "finished", ago(record.finished_at) + ran
    for problem in record.unreadable:
        yield "unreadable", problem
    for label, value in (
        ("worker", record.worker),
        ("reason", record.reason),
        ("tags", ", ".join(record.tags)),
        ("unique key", record.unique_key),
        ("reply to", record.reply_to),
        ("caused by", record.causation_id),
    ):
        if value:
            yield label, str(value)
    if record.correlation_id != record.command_id:
        yield "correlation", str(record.correlation_id)
    for key, value in record.headers.items():
        yield "header", f"{key}: {value}"
    if record.progress is not None:
        progress = record.progress
        yield "progress", f"{progress.percent:g} % {progress.message} ({ago(progress.reported_at)})"


def ago(moment: datetime) -> str:
    """A moment, and how far it is from now."""
    age = text.age(moment)
    return f"{text.moment(moment)}  ({age if age.startswith('in ') else age + ' ago'})"


def _ran(started: datetime, finished: datetime) -> str:
    return f", ran {text.duration((finished - started).total_seconds())}"


def document(label: str, value: Any) -> None:
    """A JSON value: on its label's line when it is short, else indented below."""
    from rich.text import Text

    out, compact = output.console(), text.compact_json(value)
    if LABEL + 2 + len(compact) <= out.width:
        out.print(labelled(label, compact))
        return
    out.print(Text(f"  {label}", "bright_black"))
    for row in text.as_json(value).splitlines():
        out.print(Text(f"    {row}"), soft_wrap=True)


def _failure(error: Failure) -> None:
    from rich.text import Text

    out = output.console()
    out.print()
    head = text.line(f"{error.code}: {error.message}" if error.message else error.code)
    out.print(
        Text.assemble(
            ("error", "bold"), "  ", (head, "red"), (f"  ({error.kind.lower()})", "bright_black")
        ),
        soft_wrap=True,
    )
    if error.details is not None:
        document("details", error.details)
    if error.traceback:
        for row in text.block(error.traceback.rstrip()).splitlines():
            out.print(Text(f"  {row}", "bright_black"), soft_wrap=True)


def print_events(events: Iterable[AuditEvent], *, indent: str = "") -> None:
    """The timeline: one line per event, with what matters of its details."""
    from rich.text import Text

    out = output.console()
    for event in events:
        name = text.event(event.event_type)
        out.print(
            Text.assemble(
                indent,
                (text.moment(event.timestamp), "bright_black"),
                "  ",
                (f"{name:<17}", EVENT_STYLES.get(event.event_type, "")),
                " ",
                text.line(summary(event)),
            ),
            soft_wrap=True,
        )


def summary(event: AuditEvent) -> str:
    """The details of an event in a few words."""
    details = dict(event.details)
    match event.event_type:
        case "SENT":
            return f"{event.domain}/{details.get('command_type')}, priority {details.get('priority')}"
        case "RECEIVED":
            return f"attempt {details.get('attempt')} by {details.get('worker')}"
        case "COMPLETED":
            ran = details.get("ran")
            return f"ran {text.duration(ran / 1e6)}" if isinstance(ran, int | float) else ""
        case "RETRY_SCHEDULED":
            return f"again in {text.duration(_until(event))}"
        case "FAILED" | "BUSINESS_RULE_FAILED" | "MOVED_TO_TSQ" | "WORKER_LOST":
            return _failed(details)
        case _:
            known = {key: value for key, value in details.items() if value is not None}
            if isinstance(ran := known.get("ran"), int | float):
                known["ran"] = text.duration(ran / 1e6)
            return ", ".join(
                f"{key} {value if isinstance(value, str | int | float) else text.compact_json(value)}"
                for key, value in known.items()
            )


def _until(event: AuditEvent) -> float:
    due = datetime.fromisoformat(str(event.details.get("due_at")))
    return max(0.0, (due - event.timestamp).total_seconds())


def _failed(details: dict[str, Any]) -> str:
    error = details.get("error")
    parts: list[str] = []
    if isinstance(error, dict):
        parts.append(f"{error.get('code')}: {error.get('message') or ''}".rstrip(": "))
    if details.get("reason"):
        parts.append(f"({details['reason']})")
    return " ".join(parts) or text.compact_json(details)
