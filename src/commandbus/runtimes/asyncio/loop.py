"""An event loop for workers, with timers finer than a millisecond."""

from __future__ import annotations

import asyncio
import select
import selectors
import sys

SELECT_MAX = 1024
"""Numbers of descriptors from here on are too large for `select`."""


def new_event_loop() -> asyncio.AbstractEventLoop:
    """The loop that `commandbus worker` runs on: `asyncio.Runner(loop_factory=new_event_loop)`.

    uvloop where it is installed. Else asyncio's own; on Linux with exact timers: asyncio rounds every
    wait up to a whole millisecond, which makes a sleep of 5 ms a fifth longer. On Windows it is the
    selector loop: psycopg cannot use the default, which waits for sockets in another way.
    """
    try:
        import uvloop
    except ImportError:
        selector = _ExactSelector() if sys.platform == "linux" else None
        return asyncio.SelectorEventLoop(selector)
    return uvloop.new_event_loop()


if sys.platform == "linux":

    class _ExactSelector(selectors.EpollSelector):
        """epoll waits for whole milliseconds; `select` for microseconds, also for an epoll."""

        def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
            if timeout is not None and timeout > 0 and self.fileno() < SELECT_MAX:
                select.select((self.fileno(),), (), (), timeout)
                timeout = 0
            return super().select(timeout)
