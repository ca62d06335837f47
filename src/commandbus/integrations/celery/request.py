"""The delivery of a task that runs, as `self.request`."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from commandbus.domain.command import Command
from commandbus.integrations.celery.lacking import REQUESTS, lack
from commandbus.worker.context import SyncHandlerContext

if TYPE_CHECKING:
    from commandbus.integrations.celery.task import Task

HEADER = "celery"
"""What this integration carries beside a payload: the rest of a chain, the tasks to call after a
failure, and how many arguments were positional."""


@dataclass(slots=True)
class Request:
    """`self.request`: the delivery of a task that runs. Headers of the call are attributes, too."""

    id: str | None = None
    task: str | None = None
    retries: int = 0
    kwargs: dict[str, Any] = field(default_factory=dict)
    args: tuple[Any, ...] = ()
    root_id: str | None = None
    parent_id: str | None = None
    hostname: str | None = None
    delivery_info: dict[str, Any] = field(default_factory=dict)
    headers: dict[str, Any] = field(default_factory=dict)
    timelimit: tuple[float | None, float | None] = (None, None)
    is_eager: bool = False
    called_directly: bool = True
    reported: str | None = None
    """The last state that the task gave to `update_state`."""

    @property
    def correlation_id(self) -> str | None:
        return self.root_id

    def get(self, name: str, default: Any = None) -> Any:
        """A field, or a header of the call."""
        return getattr(self, name, default)

    if not TYPE_CHECKING:  # a type checker knows which names there are

        def __getattr__(self, name: str) -> Any:
            if name in self.headers:
                return self.headers[name]
            return lack("self.request", name, REQUESTS)


current_request: ContextVar[Request | None] = ContextVar("commandbus_celery_request", default=None)


def request_of(
    command: Command[Any],
    context: SyncHandlerContext,
    task: Task[..., Any],
    arguments: dict[str, Any],
) -> Request:
    """The delivery of a command. Its payload has names: those that the call gave by position, as far as
    it has said so, are `args`."""
    carried = command.headers.get(HEADER, {})
    first = list(task.signature_of_function.parameters)[: carried.get("args", 0)]
    positional = [name for name in first if name in arguments]  # an operator may have edited them
    conf = task.app.conf
    return Request(
        str(command.command_id),
        task.name,
        context.attempt - context.crashes - 1,
        {name: value for name, value in arguments.items() if name not in positional},
        tuple(arguments[name] for name in positional),
        root_id=str(command.correlation_id),
        parent_id=None if command.causation_id is None else str(command.causation_id),
        hostname=context.worker,
        delivery_info={"routing_key": command.domain, "priority": command.priority},
        headers={name: value for name, value in command.headers.items() if name != HEADER},
        timelimit=(
            task.time_limit or conf.task_time_limit,
            task.soft_time_limit or conf.task_soft_time_limit,
        ),
        called_directly=False,
    )
