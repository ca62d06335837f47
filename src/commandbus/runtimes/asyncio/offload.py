"""Threads for `def` handlers under asyncio: one per call at a time, reused, never waited for at exit.

Unlike an executor it has no fixed size: a slot bounds how many calls run, and a call that never returns
takes its thread with it instead of a place in the pool.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any

_Work = tuple[Callable[[], Any], asyncio.AbstractEventLoop, "asyncio.Future[Any]"]


class ThreadPerCall:
    def __init__(self, name: str, returned: Callable[[], None]) -> None:
        self._name = name
        self._returned = returned
        self._idle: list[queue.SimpleQueue[_Work | None]] = []
        self._lock = threading.Lock()
        self._count = 0
        self._closed = False

    def call(self, function: Callable[[], Any]) -> asyncio.Future[Any]:
        """Run a function in a thread; the future is the running loop's."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        with self._lock:
            inbox = self._idle.pop() if self._idle else self._spawn()
        inbox.put((function, loop, future))
        return future

    def close(self) -> None:
        """Let idle threads end; those in a call end after it."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for inbox in idle:
            inbox.put(None)

    def _spawn(self) -> queue.SimpleQueue[_Work | None]:
        inbox: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._count += 1
        name = f"{self._name}-{self._count}"
        threading.Thread(target=self._run, args=(inbox,), name=name, daemon=True).start()
        return inbox

    def _run(self, inbox: queue.SimpleQueue[_Work | None]) -> None:
        while (work := inbox.get()) is not None:
            function, loop, future = work
            try:
                result, error = function(), None
            except BaseException as raised:  # the handler's, whatever it is: its slot decides
                result, error = None, raised
            with self._lock:
                keep = not self._closed
                if keep:
                    self._idle.append(inbox)
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._answer, future, result, error)
            del function, future, work, result, error
            if not keep:
                return

    def _answer(self, future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        if future.cancelled():
            self._returned()
        elif error is None:
            future.set_result(result)
        elif isinstance(error, StopIteration):
            future.set_exception(RuntimeError("a handler raised StopIteration"))
        else:
            future.set_exception(error)
