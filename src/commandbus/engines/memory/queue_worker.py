"""`QueueWorker`: one daemon thread that works off a `PriorityDelayQueue`."""

from __future__ import annotations

import contextvars
import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

from commandbus.domain.moment import Duration, as_seconds
from commandbus.engines.memory.queue import PriorityDelayQueue, QueueItem
from commandbus.errors import ConfigurationError, InvalidOperationError

T = TypeVar("T")
logger = logging.getLogger("commandbus.queue")

EXCEPTIONS_KEPT = 100


class QueueException(msgspec.Struct, Generic[T], frozen=True):
    """An exception that a handler raised, and for which item."""

    item: QueueItem[T]
    error: str
    type: str
    exception: BaseException


class QueueWorker(Generic[T]):
    """Calls `handle` with one item after another, in a daemon thread of its own.

    An exception is logged and kept in `last_exceptions`, and the next item follows; the queue is in
    memory, so nothing is retried. Each call gets a fresh copy of the context in which the worker was
    started. For work that must not be lost or needs retries, send commands to a bus instead.
    """

    def __init__(
        self,
        queue: PriorityDelayQueue[T],
        handle: Callable[[T], object],
        *,
        poll_timeout: Duration = 5.0,
        name: str = "commandbus-queue",
    ) -> None:
        if not callable(handle):
            raise ConfigurationError(f"handle must be a function of one item, not {handle!r}.")
        self._queue = queue
        self._handle = handle
        self._poll_timeout = as_seconds(poll_timeout, "poll_timeout", minimum=0.001)
        self._stopping = threading.Event()
        self._exceptions: deque[QueueException[T]] = deque(maxlen=EXCEPTIONS_KEPT)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    @property
    def last_exceptions(self) -> list[QueueException[T]]:
        """The newest exceptions of the handler, oldest first."""
        return list(self._exceptions)

    def start(self) -> None:
        """Begin in the background. Raises InvalidOperationError when it was started before."""
        if self._thread.ident is not None:
            raise InvalidOperationError("This QueueWorker was started before; make another one.")
        self._context = contextvars.copy_context()
        self._thread.start()

    def stop(self, timeout: Duration | None = None) -> bool:
        """Handle what is ready and end; returns whether the worker has ended after `timeout` seconds
        (default: however long that takes). Delayed items stay in the queue."""
        self._stopping.set()
        self._queue.wake()
        if self._thread.ident is None or self._thread is threading.current_thread():
            return self._thread.ident is None
        return self.join(timeout)

    def join(self, timeout: Duration | None = None) -> bool:
        """Wait until the worker has ended, because its queue was shut down and is empty; returns
        whether it has after `timeout` seconds."""
        self._thread.join(None if timeout is None else as_seconds(timeout, "timeout"))
        return not self._thread.is_alive()

    def __enter__(self) -> QueueWorker[T]:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self) -> None:
        while True:
            entry = self._queue.take(timeout=self._poll_timeout, stopping=self._stopping)
            if entry is not None:
                self._call(entry)
            elif self._stopping.is_set() or self._queue.is_drained:
                return

    def _call(self, entry: QueueItem[T]) -> None:
        try:
            self._context.copy().run(self._handle, entry.item)
        except BaseException as error:  # the thread goes on with the next item
            logger.exception("the handler of queue item %d failed", entry.seq)
            self._exceptions.append(QueueException(entry, str(error), type(error).__name__, error))
