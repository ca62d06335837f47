"""Batches: many commands, one completion."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

import msgspec

from commandbus.domain.command import SendRequest
from commandbus.domain.priority import Priority


class BatchStatus(StrEnum):
    """PENDING until the first of its commands is taken up; a parked command holds a batch open."""

    PENDING = "PENDING"
    IN_PROGRESS = "IN_PROGRESS"
    COMPLETED = "COMPLETED"
    COMPLETED_WITH_FAILURES = "COMPLETED_WITH_FAILURES"


class BatchCommand(msgspec.Struct, frozen=True):
    """A command of a batch; the fields are those of `send`, the domain is the batch's."""

    command_type: str
    data: Any = None
    command_id: UUID | str | None = None
    correlation_id: UUID | str | None = None
    reply_to: str | None = None
    priority: Priority | None = None
    delay: Any = None
    max_attempts: int | None = None
    tags: tuple[str, ...] | list[str] = ()

    def in_domain(self, domain: str) -> SendRequest:
        return SendRequest(
            domain,
            self.command_type,
            self.data,
            command_id=self.command_id,
            correlation_id=self.correlation_id,
            reply_to=self.reply_to,
            priority=self.priority,
            delay=self.delay,
            max_attempts=self.max_attempts,
            tags=self.tags,
        )


class BatchCounts(msgspec.Struct, frozen=True):
    """How many of a batch's commands ended how, or are parked."""

    completed: int = 0
    failed: int = 0
    canceled: int = 0
    parked: int = 0

    @property
    def ended(self) -> int:
        return self.completed + self.failed + self.canceled

    def plus(self, other: BatchCounts) -> BatchCounts:
        return BatchCounts(
            self.completed + other.completed,
            self.failed + other.failed,
            self.canceled + other.canceled,
            self.parked + other.parked,
        )


class BatchRecord(msgspec.Struct, frozen=True):
    """A batch at one moment. The counts are always those of its commands."""

    domain: str
    batch_id: UUID
    name: str | None
    custom_data: Any
    status: BatchStatus
    total: int
    completed: int
    failed: int
    canceled: int
    in_troubleshooting: int
    created_at: datetime
    completed_at: datetime | None

    @property
    def remaining(self) -> int:
        """Commands that have not ended."""
        return self.total - self.completed - self.failed - self.canceled

    @property
    def progress(self) -> float:
        """The share that has ended, from 0 to 1."""
        return 1 - self.remaining / self.total if self.total else 1.0


def is_complete(counts: BatchCounts, total: int) -> bool:
    return counts.parked == 0 and counts.ended >= total


def final_status(counts: BatchCounts) -> BatchStatus:
    if counts.failed or counts.canceled:
        return BatchStatus.COMPLETED_WITH_FAILURES
    return BatchStatus.COMPLETED
