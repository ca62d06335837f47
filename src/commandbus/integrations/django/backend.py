"""`CommandBusBackend`: Django's tasks as commands, their queues as domains."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar, Unpack

from asgiref.sync import sync_to_async
from django.core.exceptions import ImproperlyConfigured
from django.db import connections, transaction
from django.db.backends.base.creation import BaseDatabaseCreation
from django.utils import timezone

from commandbus.domain.command import SendOptions, SendRequest, SendResult
from commandbus.domain.ids import new_id
from commandbus.domain.names import as_name
from commandbus.domain.retry import RetryPolicy
from commandbus.errors import CommandBusError, InvalidArgumentError, InvalidOperationError
from commandbus.integrations.django import api
from commandbus.integrations.django.handling import command_type_of, known_task, remember
from commandbus.integrations.django.joining import DjangoBus
from commandbus.integrations.django.location import url_of
from commandbus.integrations.django.results import bus_priority, result_of
from commandbus.integrations.later import prepared
from commandbus.runtimes.threads.bus import SyncBusWithin, SyncCommandBus

R = TypeVar("R")
T = TypeVar("T")
OPTIONS = {
    "URL",
    "DATABASE",
    "PARAMETERS",
    "ON_COMMIT",
    "RETRY",
    "BUS",
    "REGISTRIES",
    "TRANSACTIONAL",
}

_buses: dict[tuple[int, str], SyncCommandBus] = {}
_opening = threading.Lock()
_destroy_test_db = BaseDatabaseCreation.destroy_test_db
_clone_test_db = BaseDatabaseCreation.clone_test_db


def _close_then_destroy(creation: Any, *args: Any, **kwargs: Any) -> Any:
    """PostgreSQL drops no database that has connections."""
    close_buses()
    return _destroy_test_db(creation, *args, **kwargs)


def _checkpoint_then_clone(creation: Any, *args: Any, **kwargs: Any) -> Any:
    """For `test --parallel` Django copies the file of an SQLite database: without its write-ahead log,
    which a bus in it has."""
    if creation.connection.vendor == "sqlite":
        with creation.connection.cursor() as cursor:
            cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return _clone_test_db(creation, *args, **kwargs)


setattr(BaseDatabaseCreation, "destroy_test_db", _close_then_destroy)  # noqa: B010 - Django's own method
setattr(BaseDatabaseCreation, "clone_test_db", _checkpoint_then_clone)  # noqa: B010


class CommandBusBackend(api.BaseTaskBackend):  # type: ignore[misc]
    """OPTIONS: `DATABASE`, the alias of the Django database in which the bus lives, so that a task
    exists when, and only when, its transaction commits, with `PARAMETERS` for options of its URL; or
    the `URL` of a bus elsewhere, with `ON_COMMIT`, the alias of a connection after whose commit a task
    is sent; `RETRY`, the arguments of a RetryPolicy; `BUS`, further settings of the bus;
    `REGISTRIES`, the paths of registries of typed commands that workers carry out beside the tasks;
    `TRANSACTIONAL`, with DATABASE, lets each `def` task run in a transaction that commits with its
    outcome.
    Raises ImproperlyConfigured when they are wrong.
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        if unknown := set(self.options) - OPTIONS:
            raise ImproperlyConfigured(
                f"TASKS[{alias!r}] has unknown OPTIONS {sorted(unknown)}; known are {sorted(OPTIONS)}."
            )
        self.database: str | None = self.options.get("DATABASE")
        self._on_commit: str | None = self.options.get("ON_COMMIT")
        self.transactional: bool = self.options.get("TRANSACTIONAL", False)
        if self.transactional and not self.database:
            raise ImproperlyConfigured(
                f"TASKS[{alias!r}] has TRANSACTIONAL without DATABASE; a task and its outcome commit "
                "together in one database only."
            )
        if self.database and self._on_commit:
            raise ImproperlyConfigured(
                f"TASKS[{alias!r}] has DATABASE and ON_COMMIT; a send is either part of a transaction "
                "or follows it."
            )
        if self.database and "URL" in self.options:
            raise ImproperlyConfigured(
                f"TASKS[{alias!r}] has DATABASE and URL; DATABASE says where the bus is, so leave URL "
                "out. Options of the URL go into PARAMETERS."
            )
        if not self.database and not self.options.get("URL") and not os.environ.get("COMMANDBUS_URL"):
            raise ImproperlyConfigured(
                f"TASKS[{alias!r}] does not say where the bus is: set OPTIONS['DATABASE'] to an alias "
                "of DATABASES, or OPTIONS['URL']."
            )
        try:
            for queue in self.queues:
                as_name(queue, "queue")
            retry = self.options.get("RETRY")
            self.retry = None if retry is None else RetryPolicy(**retry)
        except (CommandBusError, TypeError) as error:
            raise ImproperlyConfigured(f"TASKS[{alias!r}]: {error}") from None
        registries = self.options.get("REGISTRIES", ())
        if isinstance(registries, str) or not all(isinstance(path, str) for path in registries):
            raise ImproperlyConfigured(
                f"TASKS[{alias!r}]: REGISTRIES must be a list of paths, not {registries!r}."
            )
        self.registries: tuple[str, ...] = tuple(registries)

    @property
    def url(self) -> str | None:
        """Where the bus is now: during tests, Django's test database. None means COMMANDBUS_URL."""
        if self.database:
            return url_of(self.database, self.options.get("PARAMETERS", {}))
        given: str | None = self.options.get("URL")
        return given

    @property
    def bus(self) -> SyncCommandBus:
        """The bus of this process, opened when it is needed first: a process that forks afterwards
        gets one of its own."""
        url, settings = self.url, self.options.get("BUS", {})
        key = (os.getpid(), f"{url} {sorted(settings.items())}")
        with _opening:
            if key not in _buses:
                made = (
                    DjangoBus(self.database, str(url), **settings)
                    if self.database
                    else SyncCommandBus(url, **settings)
                )
                _buses[key] = made.open()
            return _buses[key]

    def validate_task(self, task: Any) -> None:
        """As Django; a task that is valid is known from now on, and may be run by a worker."""
        super().validate_task(task)
        remember(self.alias, task)

    def enqueue(self, task: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        """Send the task; the result has its id, under which it is found once it is sent."""
        self.validate_task(task)
        result = api.TaskResult(
            task=task,
            id=str(new_id()),
            status=api.TaskResultStatus.READY,
            enqueued_at=datetime.now(UTC),
            started_at=None,
            finished_at=None,
            last_attempted_at=None,
            args=list(args),
            kwargs=dict(kwargs),
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )
        if self._on_commit:
            transaction.on_commit(partial(self._send_task, self.bus, result), using=self._on_commit)
        else:
            self._now(lambda bus: self._send_task(bus, result))
        return result

    def send(self, request: SendRequest[R], /, **options: Unpack[SendOptions]) -> SendResult[R]:
        """Send a request, such as a call of a typed command makes, by the same rule as a task: in the
        transaction of `DATABASE`, after that of `ON_COMMIT`, or at once. The options are those of
        `SyncCommandBus.send`."""
        wanted = request.options(**options) if options else request
        if not self._on_commit:
            return self._now(lambda bus: bus.send(wanted))
        bus = self.bus
        later, result = prepared(bus.scope, wanted)
        transaction.on_commit(lambda: bus.send(later), using=self._on_commit)
        return result

    async def asend(self, request: SendRequest[R], /, **options: Unpack[SendOptions]) -> SendResult[R]:
        """`send` from `async def` code."""
        return await sync_to_async(self.send, thread_sensitive=True)(request, **options)

    def _now(self, send: Callable[[SyncCommandBus | SyncBusWithin], T]) -> T:
        if not self.database:
            return send(self.bus)
        with transaction.Atomic(self.database, savepoint=True, durable=False):
            return send(self.bus.within(connections[self.database]))

    def _send_task(self, bus: Any, result: Any) -> None:
        task, due_at = result.task, result.task.run_after
        if due_at is not None and timezone.is_naive(due_at):
            due_at = timezone.make_aware(due_at)
        data = {"task": task.module_path, "args": result.args, "kwargs": result.kwargs}
        if due_at is not None:
            data["run_after"] = task.run_after.isoformat()
        bus.send(
            task.queue_name,
            command_type_of(task.module_path),
            data,
            command_id=result.id,
            priority=bus_priority(task.priority),
            due_at=due_at,
        )
        api.task_enqueued.send_robust(type(self), task_result=result)

    def get_result(self, result_id: str) -> Any:
        """The result as the bus has it now. Raises TaskResultDoesNotExist, also for a task that this
        process does not know: nothing is imported because a stored name says so."""
        try:
            record = self.bus.get_command(result_id)
        except InvalidArgumentError:
            record = None
        except InvalidOperationError:  # other domains have a command with this id, too
            found = (self.bus.get_command(result_id, domain=queue) for queue in self.queues)
            record = next(filter(None, found), None)
        if record is None or (self.queues and record.domain not in self.queues):
            raise api.TaskResultDoesNotExist(result_id)
        path = record.data.get("task") if isinstance(record.data, dict) else None
        task = known_task(self.alias, str(path))
        if task is None:
            raise api.TaskResultDoesNotExist(
                f"{result_id} is a command of {record.command_type!r}, which is no task that this "
                "process has imported."
            )
        trail = self.bus.get_audit_trail(result_id, domain=record.domain)
        return result_of(self.alias, task, record, trail)


@atexit.register
def close_buses() -> None:
    """Close the buses of this process; each is opened again when it is needed."""
    with _opening:
        for key in [key for key in _buses if key[0] == os.getpid()]:
            _buses.pop(key).close()
