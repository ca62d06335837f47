"""For applications that come from Celery: its names, on Command Bus.

    from commandbus.integrations.celery import Celery, chord, shared_task

Tasks become typed commands, queues domains, groups batches, beat entries schedules. What has no
equivalent raises NotPortable with the file and line of the user's code and what to write instead.
"""

from __future__ import annotations

from typing import Any

from commandbus.integrations.celery.app import Celery, current_app, shared_task
from commandbus.integrations.celery.canvas import Signature, chain, chord, group
from commandbus.integrations.celery.exceptions import NotPortable
from commandbus.integrations.celery.places import refused
from commandbus.integrations.celery.result import AsyncResult, GroupResult
from commandbus.integrations.celery.task import Task

__all__ = [
    "AsyncResult",
    "Celery",
    "GroupResult",
    "NotPortable",
    "Signature",
    "Task",
    "chain",
    "chord",
    "current_app",
    "group",
    "shared_task",
    "signature",
]

_CURES = {
    "signals": "Use a base class with on_success and on_failure, or @app.middleware.",
    "chunks": "Send a group of tasks that take lists.",
    "xmap": "Send a group of tasks that take lists.",
    "xstarmap": "Send a group of tasks that take lists.",
    "bootsteps": "Use @app.lifespan.",
    "current_task": "Use bind=True, and self.",
    "states": 'Compare AsyncResult.state with the texts "PENDING", "SUCCESS" and so on.',
}


def signature(task: str, *args: Any, **options: Any) -> Signature[Any]:
    """The signature of a task of the current app, by its name."""
    return current_app().signature(task, *args, **options)


def __getattr__(name: str) -> Any:
    if name in _CURES:
        raise refused(f"celery.{name}", _CURES[name])
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
