"""For applications that come from Celery: its names, on Command Bus.

    from commandbus.integrations.celery import Celery, chord, shared_task

Tasks become typed commands, queues domains, groups batches, beat entries schedules. What has no
equivalent raises NotPortable with the file and line of the user's code and what to write instead.
"""

from __future__ import annotations

from typing import Any

from commandbus.integrations.celery import states
from commandbus.integrations.celery.app import Celery, shared_task
from commandbus.integrations.celery.canvas import Signature, chain, chord, group
from commandbus.integrations.celery.current import current_app, current_task, get_current_app
from commandbus.integrations.celery.exceptions import NotPortable
from commandbus.integrations.celery.lacking import MODULES, lack
from commandbus.integrations.celery.result import AsyncResult, GroupResult
from commandbus.integrations.celery.task import Task
from commandbus.integrations.celery.utils import uuid

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
    "current_task",
    "group",
    "shared_task",
    "signature",
    "states",
    "uuid",
]


def signature(task: str, *args: Any, **options: Any) -> Signature[Any]:
    """The signature of a task of the current app, by its name."""
    return get_current_app().signature(task, *args, **options)


def __getattr__(name: str) -> Any:
    return lack("celery", name, MODULES)
