"""The composition root: from a URL to an engine. Nothing else knows which engines there are."""

from __future__ import annotations

from urllib.parse import urlsplit

from commandbus.domain.moment import Clock, system_clock
from commandbus.errors import ConfigurationError
from commandbus.store.session import Engine


def create_engine(
    url: str,
    *,
    migrate: bool = False,
    transport: str | None = None,
    clock: Clock = system_clock,
) -> Engine:
    """The engine for a URL; each is imported only when it is asked for."""
    if transport is not None:
        raise ConfigurationError(
            f"transport={transport!r} does not exist for {_without_secrets(url)!r}; leave it out."
        )
    scheme = urlsplit(url).scheme if isinstance(url, str) else ""
    match scheme:
        case "memory":
            from commandbus.engines.memory import MemoryEngine

            return MemoryEngine(url, clock=clock)
        case "sqlite":
            from commandbus.engines.sqlite import SqliteEngine

            return SqliteEngine(url, clock=clock)
        case _:
            raise ConfigurationError(
                f"Unknown engine in {_without_secrets(url)!r}; use memory://, sqlite:///file.db or "
                "postgresql://user@host/database."
            )


def _without_secrets(url: object) -> str:
    text = str(url)
    head, at, tail = text.rpartition("@")
    return f"{head.split('://')[0]}://…{at}{tail}" if at else text
