"""Tasks as handlers. A task runs because the program has decorated it, never because data names it:
what a command says is looked up among the tasks of this process, and nothing is imported."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from hashlib import sha256
from inspect import iscoroutinefunction
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import autodiscover_modules, import_string

from commandbus.domain.command import Command
from commandbus.errors import BusinessRuleException, PermanentCommandError, Snooze
from commandbus.integrations.django import api
from commandbus.integrations.django.transactions import committed_with, with_orm
from commandbus.worker.handlers import HandlerRegistry

NAME_MAX = 63

_tasks: dict[str, dict[str, Any]] = {}
"""Every task that this process has made, by backend and path. A backend is made for each thread,
so it cannot be theirs."""


def remember(alias: str, task: Any) -> None:
    _tasks.setdefault(alias, {}).setdefault(task.module_path, task)


def known_task(alias: str, path: str) -> Any | None:
    return _tasks.get(alias, {}).get(path)


def command_type_of(path: str) -> str:
    """The path of a task as a command type. Where it is no valid name, too long or not of ASCII, that
    is its end, and a digest of the whole."""
    plain = "".join(one if one.isascii() else "_" for one in path)
    if plain == path and len(path) <= NAME_MAX:
        return path
    tail = plain[-(NAME_MAX - 10) :].lstrip("0123456789.")
    return f"{tail}:{sha256(path.encode()).hexdigest()[:8]}"


def registry_for(alias: str = "default", queues: Iterable[str] | None = None) -> HandlerRegistry:
    """Handlers for all tasks of a backend, on each of its queues, or of those given, and for the
    commands of its REGISTRIES. The `tasks` modules of all installed apps are imported first."""
    autodiscover_modules("tasks")
    backend = api.task_backends[alias]
    registry = HandlerRegistry()
    for path, task in _tasks.get(alias, {}).items():
        for queue in sorted(backend.queues if queues is None else queues):
            handler = _handler(backend, task)
            registry.register(queue, command_type_of(path), handler, retry=backend.retry)
    found = HandlerRegistry.union([registry, *(_registry(alias, path) for path in backend.registries)])
    return found.adapted(lambda handler: with_orm(handler, backend.database))


def _registry(alias: str, path: str) -> HandlerRegistry:
    """A registry that the settings name."""
    try:
        found = import_string(path)
    except ImportError as error:
        raise ImproperlyConfigured(f"TASKS[{alias!r}]: REGISTRIES names {path!r}: {error}") from error
    if not isinstance(found, HandlerRegistry):
        raise ImproperlyConfigured(
            f"TASKS[{alias!r}]: REGISTRIES names {path!r}, which is no HandlerRegistry but {found!r}."
        )
    return found


def _handler(backend: Any, task: Any) -> Callable[..., Any]:
    sender = type(backend)

    def begin(command: Command[Any], context: Any) -> tuple[Any, tuple[Any, ...]]:
        result = _running(backend, task, command, context)
        api.task_started.send_robust(sender, task_result=result)
        first = (api.TaskContext(task_result=result),) if task.takes_context else ()
        return result, (*first, *command.data["args"])

    def end(result: Any, status: Any) -> None:
        object.__setattr__(result, "status", status)
        object.__setattr__(result, "finished_at", datetime.now(UTC))
        api.task_finished.send_robust(sender, task_result=result)

    def failed(result: Any, context: Any, error: BaseException) -> None:
        final = isinstance(error, PermanentCommandError | BusinessRuleException)
        if final or (context.is_last_attempt and not isinstance(error, Snooze)):
            end(result, api.TaskResultStatus.FAILED)

    def run(command: Command[Any], context: Any) -> Any:
        result, arguments = begin(command, context)

        def work(command: Command[Any], context: Any) -> Any:
            return task.func(*arguments, **command.data["kwargs"])

        call = committed_with(work, backend.database) if backend.transactional else work
        try:
            value = call(command, context)
        except BaseException as error:  # the worker judges it; the signal is all that is done here
            failed(result, context, error)
            raise
        end(result, api.TaskResultStatus.SUCCESSFUL)
        return value

    async def run_async(command: Command[Any], context: Any) -> Any:
        result, arguments = begin(command, context)
        try:
            value = await task.func(*arguments, **command.data["kwargs"])
        except BaseException as error:  # as above
            failed(result, context, error)
            raise
        end(result, api.TaskResultStatus.SUCCESSFUL)
        return value

    return run_async if iscoroutinefunction(task.func) else run


def _running(backend: Any, task: Any, command: Command[Any], context: Any) -> Any:
    """What is known of a task while it runs, without asking the store."""
    now = datetime.now(UTC)
    return api.TaskResult(
        task=task.using(queue_name=command.domain),
        id=str(command.command_id),
        status=api.TaskResultStatus.RUNNING,
        enqueued_at=command.created_at,
        started_at=now,
        finished_at=None,
        last_attempted_at=now,
        args=command.data["args"],
        kwargs=command.data["kwargs"],
        backend=backend.alias,
        errors=[],
        worker_ids=[*["unknown"] * (context.attempt - 1), context.worker],
    )
