"""Helpers of Celery that applications import."""

from __future__ import annotations

from commandbus.domain.ids import new_id


def uuid() -> str:
    """An id for `apply_async(task_id=…)`."""
    return str(new_id())
