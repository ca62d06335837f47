"""Tasks of the site; what they did is seen in `done`."""

from __future__ import annotations

from typing import Any

from commandbus import PermanentCommandError

try:
    from django.tasks import task
except ImportError:
    from django_tasks import task

done: list[Any] = []


@task
def add(a: int, b: int = 0) -> int:
    done.append(("add", a, b))
    return a + b


@task(queue_name="mail", priority=10)
async def greet(name: str) -> str:
    done.append(("greet", name))
    return f"Hello {name}"


@task(takes_context=True)
def fail_once(context: Any) -> int:
    attempt: int = context.attempt
    if attempt == 1:
        raise ConnectionError("the first time always fails")
    return attempt


@task
def refuse() -> None:
    raise PermanentCommandError("NO", "never")


def not_a_task() -> None:
    done.append("not a task")
