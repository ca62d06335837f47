"""Batches: many commands, one completion."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

import msgspec


class BatchStatus(StrEnum):
    """PENDING until the first of its commands is taken up; a parked command holds a batch open."""

    PENDING = "PENDING"
    IN_PROGRESS = "IN_PROGRESS"
    COMPLETED = "COMPLETED"
    COMPLETED_WITH_FAILURES = "COMPLETED_WITH_FAILURES"


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

    batch_id: UUID
    domains: tuple[str, ...]
    """Of its commands; of a batch of processes, the domain of their replies."""
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
