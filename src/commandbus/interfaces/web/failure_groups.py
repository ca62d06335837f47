"""Groups of parked commands: counted in the store, once for all requests of a moment."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime

from commandbus.interfaces.web import schemas as v
from commandbus.interfaces.web.stores import Stores
from commandbus.runtimes.asyncio.bus import TroubleshootingQueue

FRESH_SECONDS, FRESH_SECONDS_MAX = 1.0, 5.0
KEPT_MAX = 100

Conditions = tuple[str | None, str | None]


class FailureGroups:
    """A count is read by every page that is open on parked commands, and reads all of them. So it is
    kept for a second, and where it took long for four times as long, up to five seconds. An answer says
    when it was counted."""

    def __init__(self, stores: Stores) -> None:
        self._stores = stores
        self._kept: dict[Conditions, tuple[float, v.Groups]] = {}
        self._counting = asyncio.Lock()
        self._changes = 0

    async def get(self, domain: str | None, command_type: str | None) -> v.Groups:
        wanted = (domain or None, command_type or None)
        async with self._counting:
            until, counted = self._kept.get(wanted, (0.0, None))
            if counted is not None and time.monotonic() < until:
                return counted
            began, at, changes = time.monotonic(), datetime.now(UTC), self._changes
            queue = TroubleshootingQueue(await self._stores.reading())
            groups = await queue.group_failures(*wanted)
            counted = v.Groups(groups, sum(group.count for group in groups), at)
            took = time.monotonic() - began
            if len(self._kept) >= KEPT_MAX:
                self._kept.clear()
            if changes == self._changes:
                kept = min(max(FRESH_SECONDS, 4 * took), FRESH_SECONDS_MAX)
                self._kept[wanted] = (began + kept, counted)
            return counted

    def forget(self) -> None:
        """An operator changed something here, so the next answer must show it."""
        self._changes += 1
        self._kept.clear()
