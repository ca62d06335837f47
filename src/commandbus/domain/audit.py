"""The audit trail: what happened to a command, in order, complete."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

import msgspec


class AuditEventType(StrEnum):
    SENT = "SENT"
    RECEIVED = "RECEIVED"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    BUSINESS_RULE_FAILED = "BUSINESS_RULE_FAILED"
    RETRY_SCHEDULED = "RETRY_SCHEDULED"
    RELEASED = "RELEASED"
    WORKER_LOST = "WORKER_LOST"
    MOVED_TO_TSQ = "MOVED_TO_TSQ"
    CANCELED = "CANCELED"
    EXPIRED = "EXPIRED"
    OPERATOR_RETRY = "OPERATOR_RETRY"
    OPERATOR_CANCEL = "OPERATOR_CANCEL"
    OPERATOR_COMPLETE = "OPERATOR_COMPLETE"
    OPERATOR_CONTROL = "OPERATOR_CONTROL"
    COMMENTED = "COMMENTED"
    ASSIGNED = "ASSIGNED"
    ESCALATED = "ESCALATED"
    ERASED = "ERASED"
    MOVED = "MOVED"


class AuditEvent(msgspec.Struct, frozen=True):
    """One thing that happened. Times are the store's clock."""

    domain: str
    command_id: UUID
    event_type: AuditEventType
    timestamp: datetime
    details: dict[str, Any]
