"""An event loop in a thread, for `async def` handlers under the thread runtime. Started when the first
such handler is called; one per worker."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from commandbus.runtimes.containment import contained

STOP_SECONDS = 5.0


class LoopCall:
    """A coroutine on its way on the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._loop = loop
        self._task: asyncio.Task[Any] | None = None
        self.future: Future[Any] = asyncio.run_coroutine_threadsafe(self._run(coroutine), loop)

    def cancel(self) -> None:
        """Ask the coroutine to stop, from any thread; what it does about it is seen in the future."""
        with suppress(RuntimeError):  # the loop was closed meanwhile
            self._loop.call_soon_threadsafe(self._cancel)

    async def _run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        self._task = asyncio.current_task()
        return await contained(coroutine)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()


class LoopThread:
    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def submit(self, coroutine: Coroutine[Any, Any, Any]) -> LoopCall:
        """Run a coroutine on the loop; its result is to be read with `uncontained`."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            return LoopCall(self._loop, coroutine)

    def responds(self, seconds: float) -> bool:
        """Whether the loop runs a callback within so many seconds: no handler blocks it."""
        answered = threading.Event()
        with self._lock, suppress(RuntimeError):  # it was closed meanwhile
            if self._loop is not None:
                self._loop.call_soon_threadsafe(answered.set)
        return answered.wait(seconds)

    def close(self, seconds: float = STOP_SECONDS) -> None:
        """Cancel what still runs and end the loop; waits for its end for so long."""
        with self._lock:
            loop, thread = self._loop, self._thread
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(seconds)

    def _run(self) -> None:
        assert self._loop is not None
        loop = self._loop
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
            left = asyncio.all_tasks(loop)
            for task in left:
                task.cancel()
            if left:
                loop.run_until_complete(asyncio.wait(left, timeout=1))
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            loop.close()
