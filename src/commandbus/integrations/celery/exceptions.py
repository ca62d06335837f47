"""The exceptions of Celery that tasks raise and catch, under the same names."""

from __future__ import annotations

import builtins
import traceback
from typing import Any

from commandbus.errors import ConfigurationError


class NotPortable(ConfigurationError):  # noqa: N818 - a fact about a program
    """Something of Celery that Command Bus has no equivalent for; the message says where it is
    written and what to write instead."""


class Ignore(Exception):  # noqa: N818 - Celery's name
    """Raised by a task to end without a result."""


class Reject(Exception):  # noqa: N818 - Celery's name
    """Raised by a task that cannot be carried out: its command is parked. With `requeue` it runs
    again at once, without using a retry."""

    def __init__(self, reason: Any = None, requeue: bool = False) -> None:
        super().__init__(reason)
        self.reason, self.requeue = reason, requeue


class Retry(Exception):  # noqa: N818 - Celery's name
    """Raised by `Task.retry`: the task runs again after `seconds`."""

    def __init__(
        self, message: str | None = None, exc: BaseException | None = None, when: float = 0.0
    ) -> None:
        super().__init__(message or (f"{exc}" if exc else "the task is to be retried"))
        self.exc, self.seconds = exc, when


class ExceptionInfo:
    """`einfo`: an exception that a hook or an errback gets, with its traceback as text."""

    def __init__(self, exception: BaseException) -> None:
        self.exception, self.type = exception, type(exception)
        self.traceback = "".join(traceback.format_exception(exception))

    def __str__(self) -> str:
        return self.traceback


class MaxRetriesExceededError(Exception):
    """The task used up its retries."""


class SoftTimeLimitExceeded(Exception):  # noqa: N818 - Celery's name
    """Raised inside a task that runs longer than its soft_time_limit."""


class TimeLimitExceeded(Exception):  # noqa: N818 - Celery's name
    """The task ran longer than its time_limit."""


class ChordError(Exception):
    """A task of the header did not succeed, so the body does not run."""


class TaskRevokedError(Exception):
    """The task was canceled, or it expired before it began."""


class TaskFailed(Exception):  # noqa: N818 - as TaskRevokedError, without repeating "Error"
    """A task failed with an exception class that this process does not know by the task's module.
    `code` is the name of that class."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}" if message else code)
        self.code, self.message = code, message


class TimeoutError(builtins.TimeoutError):  # noqa: A001 - Celery's name
    """The task has not ended in time. It goes on."""
