"""Handlers for tests: one that remembers, and one that stays until it is let go."""

from __future__ import annotations

import threading
from typing import Any, Self

from commandbus.domain.command import Command
from commandbus.testing.waiting import PATIENCE_SECONDS
from commandbus.worker.local import LocalHandlerContext, LocalSyncHandlerContext, local_context


class Recorder:
    """A `def` handler that remembers the commands it got and may raise a given exception.

    `failures` are raised by the first calls, one each; later calls return `result`.
    """

    def __init__(self, *failures: BaseException, result: Any = None) -> None:
        self.commands: list[Command[Any]] = []
        self.contexts: list[Any] = []
        self.result = result
        self._failures = list(failures)
        self._changed = threading.Condition()

    def __call__(self, command: Command[Any], context: Any) -> Any:
        with self._changed:
            self.commands.append(command)
            self.contexts.append(context)
            self._changed.notify_all()
            failure = self._failures.pop(0) if self._failures else None
        if failure is not None:
            raise failure
        return self.result

    def wait_for(self, count: int, timeout: float = PATIENCE_SECONDS) -> list[Command[Any]]:
        """The commands so far, once there are at least `count`."""
        with self._changed:
            enough = self._changed.wait_for(lambda: len(self.commands) >= count, timeout)
            assert enough, f"{len(self.commands)} of {count} calls came within {timeout:g} s"
            return list(self.commands)


class Gate:
    """A `def` handler that holds each call until `open()`; counts how many are inside at once.

    Use it as a context manager, so that a failing test leaves no thread behind.
    """

    def __init__(self, *, result: Any = None) -> None:
        self.result = result
        self.entered: list[Command[Any]] = []
        self.inside = 0
        self.most_inside = 0
        self._changed = threading.Condition()
        self._passes = 0
        self._open = False

    def __call__(self, command: Command[Any], context: Any) -> Any:
        with self._changed:
            self.entered.append(command)
            self.inside += 1
            self.most_inside = max(self.most_inside, self.inside)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._open or self._passes > 0, PATIENCE_SECONDS * 3)
            self._passes = max(0, self._passes - 1)
            self.inside -= 1
            self._changed.notify_all()
        return self.result

    def wait_for(self, count: int, timeout: float = PATIENCE_SECONDS) -> None:
        """Return once `count` calls have entered, in all."""
        with self._changed:
            enough = self._changed.wait_for(lambda: len(self.entered) >= count, timeout)
            assert enough, f"{len(self.entered)} of {count} calls entered within {timeout:g} s"

    def let_one_go(self) -> None:
        """One of the calls inside may return."""
        with self._changed:
            self._passes += 1
            self._changed.notify_all()

    def open(self) -> None:
        """Every call returns, now and later."""
        with self._changed:
            self._open = True
            self._changed.notify_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.open()


def handler_context(
    *, attempt: int = 1, max_attempts: int = 3, canceled: bool = False
) -> LocalHandlerContext:
    """A context for `run_with` of a typed command of an `async def`: no bus, no worker. Steps run
    once each, the lease never ends, progress goes nowhere; `sent` lists what was sent."""
    return local_context(True, attempt=attempt, max_attempts=max_attempts, canceled=canceled)


def sync_handler_context(
    *, attempt: int = 1, max_attempts: int = 3, canceled: bool = False
) -> LocalSyncHandlerContext:
    """The same for a `def`."""
    return local_context(False, attempt=attempt, max_attempts=max_attempts, canceled=canceled)
