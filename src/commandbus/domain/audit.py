"""The audit trail: what happened to a command, in order, complete."""

from __future__ import annotations

from collections.abc import Mapping
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
    CANCEL_REQUESTED = "CANCEL_REQUESTED"
    """It ran, and was asked to stop."""
    CANCELED = "CANCELED"
    EXPIRED = "EXPIRED"
    OPERATOR_RETRY = "OPERATOR_RETRY"
    OPERATOR_CANCEL = "OPERATOR_CANCEL"
    OPERATOR_COMPLETE = "OPERATOR_COMPLETE"
    OPERATOR_CONTROL = "OPERATOR_CONTROL"
    OPERATOR_EDIT = "OPERATOR_EDIT"
    """Another due time or priority."""
    OPERATOR_RESEND = "OPERATOR_RESEND"
    COMMENTED = "COMMENTED"
    ASSIGNED = "ASSIGNED"
    ESCALATED = "ESCALATED"
    ERASED = "ERASED"
    MOVED = "MOVED"
    UNREADABLE = "UNREADABLE"
    """An entry of a kind that this version does not know; `kind` of its details names it."""


LINKED = frozenset(
    {
        AuditEventType.OPERATOR_RETRY,
        AuditEventType.OPERATOR_CANCEL,
        AuditEventType.OPERATOR_COMPLETE,
        AuditEventType.OPERATOR_CONTROL,
        AuditEventType.OPERATOR_EDIT,
        AuditEventType.OPERATOR_RESEND,
        AuditEventType.COMMENTED,
        AuditEventType.ASSIGNED,
        AuditEventType.ERASED,
    }
)
"""Entries that only operators make, so that none may be without a link of the ledger. Entries of other
kinds that name an operator are linked, too; but workers also write cancellations in an actor's name."""


def is_of_operator(kind: str, details: Mapping[str, Any]) -> bool:
    """Whether the ledger has a link for such an entry."""
    return kind in LINKED or bool(details.get("actor"))


class AuditEvent(msgspec.Struct, frozen=True):
    """One thing that happened. Times are the store's clock."""

    domain: str
    command_id: UUID
    event_type: AuditEventType
    timestamp: datetime
    details: dict[str, Any]
