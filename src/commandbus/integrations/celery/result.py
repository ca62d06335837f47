"""`AsyncResult` and `GroupResult`: what became of tasks, read from the records of their commands."""

from __future__ import annotations

import builtins
import json
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from uuid import UUID

from commandbus.domain.cause import running
from commandbus.domain.command import CommandRecord
from commandbus.domain.lifecycle import CommandStatus
from commandbus.errors import InvalidOperationError
from commandbus.integrations.celery import exceptions
from commandbus.integrations.celery.current import get_current_app
from commandbus.integrations.celery.exceptions import (
    ChordError,
    TaskFailed,
    TaskRevokedError,
    TimeoutError,  # noqa: A004 - Celery's name
)
from commandbus.integrations.celery.lacking import RESULTS, lack
from commandbus.integrations.celery.places import refused
from commandbus.integrations.celery.states import (
    FAILURE,
    PENDING,
    READY_STATES,
    RETRY,
    REVOKED,
    STARTED,
    SUCCESS,
)

if TYPE_CHECKING:
    from commandbus.integrations.celery.app import Celery

R = TypeVar("R")

_STATES = {
    CommandStatus.PENDING: PENDING,
    CommandStatus.IN_PROGRESS: STARTED,
    CommandStatus.COMPLETED: SUCCESS,
    CommandStatus.FAILED: FAILURE,
    CommandStatus.IN_TROUBLESHOOTING_QUEUE: FAILURE,
    CommandStatus.CANCELED: REVOKED,
}
_POLL_SECONDS = 0.02
"""How often a result looks for a command that a task has yet to send."""


class AsyncResult(Generic[R]):
    """The result of a task that was sent. A parked task is a FAILURE until an operator retries it."""

    def __init__(
        self,
        id: UUID | str,  # noqa: A002 - Celery's name
        app: Celery | None = None,
        parent: AsyncResult[Any] | GroupResult | None = None,
    ) -> None:
        self.id = str(id)
        self.parent = parent
        self._app = app

    def __repr__(self) -> str:
        return f"<AsyncResult: {self.id}>"

    def __str__(self) -> str:
        return self.id

    if not TYPE_CHECKING:  # a type checker knows which names there are

        def __getattr__(self, name: str) -> Any:
            return lack("AsyncResult", name, RESULTS)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AsyncResult) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    @property
    def app(self) -> Celery:
        """The app whose bus has the task."""
        if self._app is None:
            self._app = get_current_app()
        return self._app

    @property
    def task_id(self) -> str:
        return self.id

    def _record(self) -> CommandRecord[Any] | None:
        return self.app.bus.get_command(self.id)

    def _failed_before(self) -> Exception | None:
        """Why the task is never sent: one that it follows did not succeed."""
        if self.parent is None:
            return None
        return self.parent.failure()

    def failure(self) -> Exception | None:
        """The exception of the task, or of one that it follows; None where there is none."""
        record = self._record()
        if record is None:
            return self._failed_before()
        if _STATES[record.status] not in (FAILURE, REVOKED):
            return None
        return _exception_of(record, self.app)

    @property
    def state(self) -> str:
        """PENDING (also of an unknown id), STARTED, RETRY, SUCCESS, FAILURE or REVOKED, or the state
        that the task has given to `update_state`."""
        record = self._record()
        if record is None:
            return PENDING if self._failed_before() is None else FAILURE
        if record.status is CommandStatus.PENDING and record.attempts and record.error is not None:
            return RETRY
        reported = _reported(record)
        if record.status is CommandStatus.IN_PROGRESS and reported is not None:
            return str(reported["state"])
        return _STATES[record.status]

    status = state

    def ready(self) -> bool:
        """Whether the task has ended."""
        return self.state in READY_STATES

    def successful(self) -> bool:
        return self.state == SUCCESS

    def failed(self) -> bool:
        return self.state == FAILURE

    @property
    def result(self) -> Any:
        """The result, the exception of a task that failed, what it gave to `update_state`, or None."""
        record = self._record()
        if record is None:
            return self._failed_before()
        if record.status is CommandStatus.COMPLETED:
            return self.app.decode_result(record)
        if _STATES[record.status] in (FAILURE, REVOKED):
            return _exception_of(record, self.app)
        reported = _reported(record)
        return None if reported is None else reported["meta"]

    info = result

    @property
    def traceback(self) -> str | None:
        record = self._record()
        return record.error.traceback if record and record.error else None

    @property
    def name(self) -> str | None:
        record = self._record()
        return record.command_type if record else None

    @property
    def date_done(self) -> datetime | None:
        record = self._record()
        return record.finished_at if record else None

    def get(self, timeout: float | None = None, propagate: bool = True, **_: Any) -> R:
        """Wait for the end and return the result. Raises the exception of the task unless
        `propagate` is false, TaskRevokedError, and TimeoutError after `timeout` seconds. Raises
        RuntimeError inside a task, which would keep a slot while it waits for another."""
        if running.get() is not None:
            raise RuntimeError("Never call result.get() within a task: use chain, chord or link=.")
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self.ready():
            left = 1.0 if deadline is None else min(1.0, deadline - time.monotonic())
            if left <= 0:
                raise TimeoutError(
                    f"Task {self.id} is still {self.state} after {timeout:g} s; it goes on. "
                    f"`commandbus why {self.id}` says what it waits for."
                )
            self._wait(left)
        found = self.result
        if propagate and isinstance(found, Exception):
            raise found
        return found  # type: ignore[no-any-return]

    def _wait(self, seconds: float) -> None:
        if self._record() is None:  # to be sent by the task that it follows
            time.sleep(min(_POLL_SECONDS, seconds))
            return
        try:
            self.app.bus.wait(self.id, timeout=seconds)
        except builtins.TimeoutError:
            return

    wait = get

    def revoke(self, terminate: bool = False, **_: Any) -> None:
        """Cancel the task: one that waits does not begin, and one that runs is asked to end. Raises
        NotPortable for `terminate`: a thread cannot be killed."""
        if terminate:
            raise refused(
                "revoke(terminate=True)",
                "Remove it: a thread cannot be killed. A command with isolation='process' can.",
            )
        try:
            self.app.bus.cancel(self.id, reason="revoked")
        except InvalidOperationError:
            return  # it has ended


class GroupResult:
    """The results of the tasks of a group, in its order."""

    def __init__(
        self,
        id: UUID | str,  # noqa: A002 - Celery's name
        results: Sequence[AsyncResult[Any]],
        parent: AsyncResult[Any] | GroupResult | None = None,
    ) -> None:
        self.id = str(id)
        self.results = list(results)
        self.parent = parent

    def __repr__(self) -> str:
        return f"<GroupResult: {self.id} [{', '.join(one.id for one in self.results)}]>"

    if not TYPE_CHECKING:  # a type checker knows which names there are

        def __getattr__(self, name: str) -> Any:
            return lack("GroupResult", name, RESULTS)

    def __iter__(self) -> Iterator[AsyncResult[Any]]:
        return iter(self.results)

    def __len__(self) -> int:
        return len(self.results)

    def __getitem__(self, position: int) -> AsyncResult[Any]:
        return self.results[position]

    def failure(self) -> Exception | None:
        """Why the body of a chord does not run, or None."""
        for one in self.results:
            error = one.failure()
            if error is not None:
                return ChordError(f"Dependency {one.id} raised {error!r}")
        return None

    def ready(self) -> bool:
        return all(one.ready() for one in self.results)

    def successful(self) -> bool:
        return all(one.successful() for one in self.results)

    def failed(self) -> bool:
        return any(one.failed() for one in self.results)

    def waiting(self) -> bool:
        return not self.ready()

    def completed_count(self) -> int:
        return sum(one.successful() for one in self.results)

    def get(self, timeout: float | None = None, propagate: bool = True, **_: Any) -> list[Any]:
        """The results in the order of the group; see `AsyncResult.get`."""
        deadline = None if timeout is None else time.monotonic() + timeout
        return [
            one.get(None if deadline is None else max(0.0, deadline - time.monotonic()), propagate)
            for one in self.results
        ]

    join = get

    def revoke(self, **options: Any) -> None:
        for one in self.results:
            one.revoke(**options)


class EagerResult(Generic[R]):
    """What `Task.apply` returns: the task has run here."""

    def __init__(self, id: str, value: Any, state: str) -> None:  # noqa: A002 - Celery's name
        self.id = self.task_id = id
        self.result = self.info = value
        self.state = self.status = state

    def get(self, timeout: float | None = None, propagate: bool = True, **_: Any) -> R:
        if propagate and self.state == FAILURE:
            raise self.result
        return self.result  # type: ignore[no-any-return]

    def ready(self) -> bool:
        return True

    def successful(self) -> bool:
        return self.state == SUCCESS

    def failed(self) -> bool:
        return self.state == FAILURE


def _reported(record: CommandRecord[Any]) -> dict[str, Any] | None:
    """What the task gave to `update_state`."""
    if record.progress is None:
        return None
    try:
        found = json.loads(record.progress.message)
    except ValueError:  # progress of another kind
        return None
    return found if isinstance(found, dict) and {"state", "meta"} <= set(found) else None


def _exception_of(record: CommandRecord[Any], app: Celery) -> Exception:
    """The exception of a task that failed. Its class is looked up by name among Python's own, those of
    this integration and those that the module of the task has; nothing is imported for it."""
    if record.status is CommandStatus.CANCELED:
        return TaskRevokedError(record.reason or "revoked")
    code, message = (record.error.code, record.error.message) if record.error else ("UNKNOWN", "")
    task = app.find_task(record.command_type)
    known = {**vars(builtins), **vars(exceptions), **({} if task is None else task.names)}
    kind = known.get(code)
    if isinstance(kind, type) and issubclass(kind, Exception):
        try:
            return kind(message)
        except TypeError:  # it needs other arguments
            return TaskFailed(code, message)
    return TaskFailed(code, message)
