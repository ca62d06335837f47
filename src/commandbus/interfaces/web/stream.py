"""Hints for open pages: "something changed", never what. The pages then ask for themselves.

One loop looks for all listeners; it begins with the first of them and ends with the last.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable

from commandbus.errors import CommandBusError
from commandbus.interfaces.web.refusals import Refused
from commandbus.interfaces.web.timeseries import Figures

LOOK_SECONDS = 1.0
REFRESH_SECONDS = 10.0
"""Ages grow also while nothing happens."""
ALIVE_SECONDS = 15.0
STREAMS_MAX, STREAMS_PER_ACCOUNT_MAX = 100, 5


class Stream:
    def __init__(self, figures: Figures) -> None:
        self._figures = figures
        self._listeners: dict[asyncio.Queue[str], str] = {}
        self._looking: asyncio.Task[None] | None = None

    def check(self, name: str) -> None:
        """Raises Refused when an account, or all together, have as many streams as they may."""
        if self._is_full(name):
            raise Refused(
                429,
                f"At most {STREAMS_PER_ACCOUNT_MAX} pages of an account and {STREAMS_MAX} in all are "
                "kept up to date at the same time; close some.",
                retry_after=10.0,
            )

    def _is_full(self, name: str) -> bool:
        own = sum(owner == name for owner in self._listeners.values())
        return own >= STREAMS_PER_ACCOUNT_MAX or len(self._listeners) >= STREAMS_MAX

    async def events(self, name: str, is_allowed: Callable[[], Awaitable[bool]]) -> AsyncIterator[str]:
        """Server-sent events for one listener of an account, as long as it is allowed. Without any
        where others, which were checked at the same time, have begun before."""
        if self._is_full(name):
            return
        queue: asyncio.Queue[str] = asyncio.Queue(maxsize=1)
        self._listeners[queue] = name
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look(), name="commandbus-dashboard")
        try:
            yield "retry: 3000\n\nevent: hint\ndata: hello\n\n"
            while True:
                try:
                    hint = await asyncio.wait_for(queue.get(), ALIVE_SECONDS)
                    event = f"event: hint\ndata: {hint}\n\n"
                except TimeoutError:
                    event = ": alive\n\n"
                if not await is_allowed():
                    return
                yield event
        finally:
            self._listeners.pop(queue, None)
            if not self._listeners and self._looking is not None:
                # It takes a moment to end, in which the next listener may come.
                self._looking.cancel()
                self._looking = None

    async def _look(self) -> None:
        last: object = None
        shown_at = time.monotonic()
        while True:
            hint = "changed"
            try:
                found = {
                    name: (s.ready, s.scheduled, s.running, s.parked, s.completed, s.failed, s.canceled)
                    for name, s in (await self._figures.now(fresh=LOOK_SECONDS / 2)).items()
                }
            except CommandBusError:  # the page shows the trouble when it asks
                found, hint = {}, "trouble"
            if found != last or time.monotonic() - shown_at > REFRESH_SECONDS:
                last, shown_at = found, time.monotonic()
                for queue in list(self._listeners):
                    if not queue.full():
                        queue.put_nowait(hint)
            await asyncio.sleep(LOOK_SECONDS)
