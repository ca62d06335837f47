"""Tasks of the site; what they did is seen in `done`."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from commandbus import HandlerRegistry, PermanentCommandError

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


payments = HandlerRegistry("payments")


@payments.command
def charge(order: int, amount: Decimal) -> Decimal:
    done.append(("charge", order, amount))
    return amount * 2


@payments.command
async def notify(order: int) -> str:
    done.append(("notify", order))
    return f"order {order}"


def not_a_task() -> None:
    done.append("not a task")
