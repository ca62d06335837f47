"""The audit trail, put together from what is stored: the happy path is read from columns."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from commandbus.domain import payload
from commandbus.domain.audit import AuditEvent, AuditEventType
from commandbus.domain.moment import SECOND, as_datetime
from commandbus.domain.payload import Unreadable
from commandbus.store.records import NewCommand


class Facts(msgspec.Struct, frozen=True):
    """What the columns say about a command, as far as it belongs in its trail."""

    command: NewCommand
    created_at: int
    completed: tuple[int, int, str, int] | None = None
    """started_at, finished_at, worker, attempt of the run that completed it"""
    running: tuple[int, str, int] | None = None
    """claimed_at, worker, attempt of the run that goes on"""


class Kept(msgspec.Struct, frozen=True):
    """One stored audit row."""

    kind: AuditEventType
    at: int
    details: dict[str, Any]


_ATTEMPTS = frozenset(
    {
        AuditEventType.FAILED,
        AuditEventType.RELEASED,
        AuditEventType.WORKER_LOST,
        AuditEventType.BUSINESS_RULE_FAILED,
        AuditEventType.MOVED_TO_TSQ,
        AuditEventType.CANCELED,
    }
)

NOTES = frozenset(
    {
        AuditEventType.COMMENTED,
        AuditEventType.ASSIGNED,
        AuditEventType.ESCALATED,
        AuditEventType.OPERATOR_RESEND,
        AuditEventType.ERASED,
    }
)
"""What may happen to a command that has ended, too."""


def compose(facts: Facts, kept: Iterable[Kept]) -> list[AuditEvent]:
    """All events of a command in order of time; equal times keep the order of writing."""
    events: list[AuditEvent] = []
    command = facts.command

    def add(kind: AuditEventType, at: int, details: dict[str, Any]) -> None:
        events.append(AuditEvent(command.domain, command.command_id, kind, as_datetime(at), details))

    rows = list(kept)
    late = [
        row for row in rows if facts.completed and row.kind in NOTES and row.at >= facts.completed[1]
    ]
    add(AuditEventType.SENT, facts.created_at, _sent(facts))
    for row in rows:
        if row in late:
            continue
        details = dict(row.details)
        received_at = details.pop("received_at", None)
        if row.kind in _ATTEMPTS and received_at is not None:
            add(AuditEventType.RECEIVED, received_at, _received(details))
        add(row.kind, row.at, details)
        if row.kind is AuditEventType.FAILED:
            due = row.at + int(details.get("retry_in", 0) * SECOND)
            add(
                AuditEventType.RETRY_SCHEDULED,
                row.at,
                {"attempt": details.get("attempt"), "due_at": as_datetime(due).isoformat()},
            )
    if facts.completed:
        started_at, finished_at, worker, attempt = facts.completed
        add(AuditEventType.RECEIVED, started_at, {"attempt": attempt, "worker": worker})
        add(
            AuditEventType.COMPLETED,
            finished_at,
            {"attempt": attempt, "worker": worker, "ran": finished_at - started_at},
        )
    for row in late:
        add(row.kind, row.at, row.details)
    if facts.running:
        claimed_at, worker, attempt = facts.running
        add(AuditEventType.RECEIVED, claimed_at, {"attempt": attempt, "worker": worker})
    return _requests_in_their_runs(events)


def _requests_in_their_runs(events: list[AuditEvent]) -> list[AuditEvent]:
    """A request to cancel is written while the command runs, and the run when it has ended."""
    asked = [event for event in events if event.event_type is AuditEventType.CANCEL_REQUESTED]
    if not asked:
        return events
    others = [event for event in events if event.event_type is not AuditEventType.CANCEL_REQUESTED]
    for request in reversed(asked):  # of several in one run the first comes first
        runs = [
            index
            for index, event in enumerate(others)
            if event.event_type is AuditEventType.RECEIVED and event.timestamp <= request.timestamp
        ]
        others.insert(runs[-1] + 1 if runs else 1, request)
    return others


def shown(details: dict[str, Any]) -> dict[str, Any]:
    """The details of a kept event as its reader sees them by itself."""
    return {key: value for key, value in details.items() if key != "received_at"}


def _sent(facts: Facts) -> dict[str, Any]:
    command = facts.command
    return {
        "command_type": command.command_type,
        "correlation_id": str(command.correlation_id),
        "causation_id": None if command.causation_id is None else str(command.causation_id),
        "reply_to": command.reply_to,
        "priority": command.priority,
        "headers": read_details(command.headers) if command.headers else {},
    }


def read_details(text: str) -> dict[str, Any]:
    """What an entry of the audit says."""
    value = payload.read(text)
    if isinstance(value, dict):
        return value
    return {"unreadable": value.reason if isinstance(value, Unreadable) else "it is no object"}


def _received(details: dict[str, Any]) -> dict[str, Any]:
    return {"attempt": details.get("attempt"), "worker": details.get("worker")}
