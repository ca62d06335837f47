"""From what the bus recorded to the result of a Django task."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import msgspec

from commandbus.domain.audit import AuditEvent, AuditEventType
from commandbus.domain.command import CommandRecord
from commandbus.domain.failure import Failure
from commandbus.domain.lifecycle import CommandStatus
from commandbus.domain.priority import LABELS
from commandbus.integrations.django import api

NORMAL = LABELS["normal"]

_STATUS = {
    CommandStatus.PENDING: api.TaskResultStatus.READY,
    CommandStatus.IN_PROGRESS: api.TaskResultStatus.RUNNING,
    CommandStatus.COMPLETED: api.TaskResultStatus.SUCCESSFUL,
    CommandStatus.FAILED: api.TaskResultStatus.FAILED,
    CommandStatus.CANCELED: api.TaskResultStatus.FAILED,
    CommandStatus.IN_TROUBLESHOOTING_QUEUE: api.TaskResultStatus.FAILED,
}
_FAILED = (
    AuditEventType.FAILED,
    AuditEventType.BUSINESS_RULE_FAILED,
    AuditEventType.MOVED_TO_TSQ,
    AuditEventType.WORKER_LOST,
)


def bus_priority(priority: int) -> int:
    """Django's grow with urgency, from -100 to 100; those of the bus fall, and 5 is normal."""
    return NORMAL - priority


def result_of(alias: str, task: Any, record: CommandRecord, trail: Sequence[AuditEvent]) -> Any:
    """The result of a task, from its record and its trail."""
    began = [event for event in trail if event.event_type is AuditEventType.RECEIVED]
    run_after = record.data.get("run_after")
    result = api.TaskResult(
        task=task.using(
            priority=bus_priority(record.priority),
            queue_name=record.domain,
            run_after=None if run_after is None else datetime.fromisoformat(run_after),
        ),
        id=str(record.command_id),
        status=_STATUS[record.status],
        enqueued_at=record.created_at,
        started_at=began[0].timestamp if began else None,
        finished_at=record.finished_at,
        last_attempted_at=began[-1].timestamp if began else None,
        args=record.data["args"],
        kwargs=record.data["kwargs"],
        backend=alias,
        errors=list(_errors(trail)),
        worker_ids=[event.details["worker"] for event in began],
    )
    object.__setattr__(result, "_return_value", record.result)
    return result


def _errors(trail: Iterable[AuditEvent]) -> Iterable[Any]:
    for event in trail:
        noted = event.details.get("error")
        # The loss of its worker is recorded when it happens, and again when it is parked for it.
        again = event.details.get("reason") == AuditEventType.WORKER_LOST
        if event.event_type in _FAILED and noted is not None and not again:
            failure = msgspec.convert(noted, Failure)
            yield api.TaskError(
                exception_class_path=failure.exception or "builtins.Exception",
                traceback=failure.traceback or failure.message,
            )
