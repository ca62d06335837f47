"""The bus behind the dashboard: opened when the first request comes, read through a narrow door.

A mounted app never hears that its host starts or stops, so nothing is opened before it is needed. On
PostgreSQL, pages read on connections of their own that can only read and that give up soon; the
SQLite engine reads on a connection that cannot write anyway.
"""

from __future__ import annotations

import asyncio
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

from commandbus.runtimes.asyncio.bus import CommandBus

STATEMENT_MS = 5_000
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
        "notify": "off",
    }
    return urlunsplit(parts._replace(query=urlencode(query, quote_via=quote)))


class Stores:
    """`acting` does, `reading` looks."""

    def __init__(self, bus: CommandBus | str) -> None:
        self._given = bus
        self._acting: CommandBus | None = None
        self._reading: CommandBus | None = None
        self._opening = asyncio.Lock()

    @property
    def url(self) -> str:
        return self._given if isinstance(self._given, str) else self._given.url

    async def acting(self) -> CommandBus:
        await self._open()
        assert self._acting is not None
        return self._acting

    async def reading(self) -> CommandBus:
        await self._open()
        assert self._reading is not None
        return self._reading

    async def _open(self) -> None:
        if self._reading is not None:
            return
        async with self._opening:
            if self._reading is not None:
                return
            acting = self._given
            if isinstance(acting, str):
                acting = await CommandBus(acting).open()
            self._acting = acting
            url = reading_url(acting.url)
            self._reading = acting if url is None else await CommandBus(url).open()

    async def close(self) -> None:
        """Let go of what was opened here; a bus that was given stays open."""
        reading, acting = self._reading, self._acting
        self._reading = self._acting = None
        if reading is not None and reading is not acting:
            await reading.close()
        if acting is not None and acting is not self._given:
            await acting.close()
