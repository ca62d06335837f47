"""The bus behind the dashboard: opened when the first request comes, read through a narrow door.

A mounted app never hears that its host starts or stops, so nothing is opened before it is needed. On
PostgreSQL, pages read on connections of their own that can only read and that give up soon; the
SQLite engine reads on a connection that cannot write anyway. While the server is away, a request is
answered within two seconds: programs may wait longer for it, people at a page do not.
"""

from __future__ import annotations

import asyncio
import time
from urllib.parse import parse_qsl, urlsplit

from commandbus.errors import StoreUnavailable
from commandbus.runtimes.asyncio.bus import CommandBus
from commandbus.store.urls import with_query

STATEMENT_MS = 5_000
PATIENCE_SECONDS, FORGET_SECONDS = 1.5, 1.0
"""How long a page waits for a server that is away, and how long the next ones do not try again."""
_SWITCHED_ON = ("on", "true", "1")


def reading_url(url: str) -> str | None:
    """Where pages read: the same store, on connections that cannot write and do not wait long. None
    where the store's own way of reading does that already, or cannot do it."""
    parts = urlsplit(url)
    if parts.scheme not in ("postgresql", "postgres"):
        return None
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    if query.get("pooler", "").lower() in _SWITCHED_ON:
        return None
    limits = f"-c default_transaction_read_only=on -c statement_timeout={STATEMENT_MS}"
    query |= {
        "options": f"{query.get('options', '')} {limits}".strip(),
        # The bus otherwise insists on a server that can be written, and these sessions cannot write.
        "target_session_attrs": "any",
        "application_name": "commandbus-dashboard",
        "pool_size": "4",
        "pool_timeout": str(PATIENCE_SECONDS),
        "notify": "off",
    }
    return with_query(parts, query.items())


class Stores:
    """`acting` does, `reading` looks."""

    def __init__(self, bus: CommandBus | str) -> None:
        self._given = bus
        self._acting: CommandBus | None = None
        self._reading: CommandBus | None = None
        self._opening = asyncio.Lock()
        self._away: tuple[float, StoreUnavailable] | None = None

    @property
    def url(self) -> str:
        return self._given if isinstance(self._given, str) else self._given.url

    async def acting(self, *, patient: bool = False) -> CommandBus:
        """A bus that waits longer for a server that is away than a page does. So the server is asked
        first, unless the caller is as patient. Raises StoreUnavailable."""
        reading = await self.reading()
        assert self._acting is not None
        if reading is not self._acting and not patient:
            try:
                await reading.session.run(reading.scope.store.now(), read=True)
            except StoreUnavailable as error:
                self._away = (time.monotonic(), error)
                raise
        return self._acting

    async def reading(self) -> CommandBus:
        if self._away is not None and time.monotonic() - self._away[0] < FORGET_SECONDS:
            raise self._away[1].with_traceback(None)
        await self._open()
        assert self._reading is not None
        return self._reading

    async def _open(self) -> None:
        if self._reading is not None:
            return
        async with self._opening:
            if self._reading is not None:
                return
            url, acting = reading_url(self.url), self._given
            # First the one that gives up soon.
            reading = None if url is None else await CommandBus(url).open()
            try:
                if isinstance(acting, str):
                    acting = await CommandBus(acting).open()
            except BaseException:
                if reading is not None:
                    await reading.close()
                raise
            self._acting, self._reading = acting, reading or acting

    async def close(self) -> None:
        """Let go of what was opened here; a bus that was given stays open."""
        reading, acting = self._reading, self._acting
        self._reading = self._acting = None
        if reading is not None and reading is not acting:
            await reading.close()
        if acting is not None and acting is not self._given:
            await acting.close()
