"""The composition root: from a URL to an engine. Nothing else knows which engines there are."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

from commandbus.domain.moment import Clock, system_clock
from commandbus.errors import ConfigurationError
from commandbus.store.administration import Administration
from commandbus.store.session import Engine
from commandbus.store.urls import shown_url, without_driver

if TYPE_CHECKING:
    from psycopg_pool import ConnectionPool

    from commandbus.engines.postgres.planning import ConnectionPlan


def create_engine(
    url: str,
    *,
    migrate: bool = False,
    transport: str | None = None,
    listen_url: str | None = None,
    clock: Clock = system_clock,
) -> Engine:
    """The engine for a URL; each is imported only when it is asked for."""
    url = without_driver(url)
    if _scheme(url) in ("postgresql", "postgres"):
        listen_url = _direct(listen_url)
        transport = transport or dict(parse_qsl(urlsplit(url).query)).get("transport")
        if transport == "pgmq":
            _need_psycopg()
            from commandbus.engines.postgres.pgmq.engine import PgmqEngine

            return PgmqEngine(url, migrate=migrate, listen_url=listen_url)
    elif listen_url is not None:
        raise ConfigurationError(
            f"listen_url does not exist for {shown_url(url)!r}; leave it out. It is for postgresql://."
        )
    if transport is not None:
        raise ConfigurationError(
            f"transport={transport!r} does not exist for {shown_url(url)!r}; leave it out. "
            'There is transport="pgmq", for postgresql:// only.'
        )
    match _scheme(url):
        case "memory":
            from commandbus.engines.memory import MemoryEngine

            return MemoryEngine(url, clock=clock)
        case "sqlite":
            from commandbus.engines.sqlite import SqliteEngine

            return SqliteEngine(url, clock=clock)
        case "postgresql" | "postgres":
            _need_psycopg()
            from commandbus.engines.postgres import PostgresEngine

            return PostgresEngine(url, migrate=migrate, listen_url=listen_url)
        case _:
            raise ConfigurationError(
                f"Unknown engine in {shown_url(url)!r}; use memory://, sqlite:///file.db or "
                "postgresql://user@host/database."
            )


def create_pgmq_engine(url: str) -> Engine:
    """The engine under a PGMQ client: sessions and nothing else."""
    url = without_driver(url)
    if _scheme(url) not in ("postgresql", "postgres"):
        raise _not_postgresql(url)
    _need_psycopg()
    from commandbus.engines.postgres.pgmq.engine import PgmqClientEngine

    return PgmqClientEngine(url)


def install_pgmq(url: str, file: str | None = None) -> str:
    """Bring PGMQ into a PostgreSQL database, unless it is there, and what the bus needs to use it;
    returns what there is then."""
    url = without_driver(url)
    if _scheme(url) not in ("postgresql", "postgres"):
        raise _not_postgresql(url)
    _need_psycopg()
    from commandbus.engines.postgres.pgmq import installation

    return str(installation.install(url, file))


def create_administration(url: str) -> Administration:
    """What an administrator can do to the store of a URL; nothing is opened yet."""
    url = without_driver(url)
    match _scheme(url):
        case "sqlite":
            from commandbus.engines.sqlite.doctor import SqliteAdministration

            return SqliteAdministration(url)
        case "postgresql" | "postgres":
            _need_psycopg()
            from commandbus.engines.postgres.administration import PostgresAdministration

            return PostgresAdministration(url)
        case "memory":
            raise ConfigurationError(
                "memory:// lives inside one process and has nothing to look after; name an SQLite file "
                "or a PostgreSQL database."
            )
        case _:
            raise ConfigurationError(
                f"Unknown engine in {shown_url(url)!r}; use sqlite:///file.db or "
                "postgresql://user@host/database."
            )


def _not_postgresql(url: str) -> ConfigurationError:
    return ConfigurationError(
        f"PGMQ lives in PostgreSQL, not in {shown_url(url)!r}; use postgresql://user@host/database."
    )


def create_pool(url: str, concurrency: int, **kwargs: Any) -> ConnectionPool[Any]:
    """A psycopg pool, not open yet, for handlers that use PostgreSQL themselves. Its minimum is
    `concurrency`, one connection for each slot, and its maximum twice that; connections are waited for
    up to 30 s, checked before use, replaced after an hour, closed when idle for ten minutes, and
    brought back for five minutes after a server was away. `kwargs` are further arguments of psycopg's
    ConnectionPool and count more; a `min_size` below `concurrency` raises ConfigurationError."""
    _need_psycopg()
    from commandbus.engines.postgres import planning

    return planning.create_pool(without_driver(url), concurrency, **kwargs)


def plan_connections(
    url: str, concurrency: int, *, processes: int = 1, own_pool: bool = False, strict: bool = False
) -> ConnectionPlan:
    """How many slots each of `processes` workers may have, given what the PostgreSQL server has left.

    Each slot may hold a connection (three with `own_pool`, a pool of `create_pool` beside it); a
    process holds five more for its own work (claims, settles, renewals, services, single sends), and
    one that listens. Fewer slots than wanted are planned
    where the server has too few; raises ConfigurationError, with the arithmetic, when not even one
    fits, or with `strict` when not all do.
    """
    _need_psycopg()
    from commandbus.engines.postgres import planning

    return planning.plan_connections(
        without_driver(url), concurrency, processes=processes, own_pool=own_pool, strict=strict
    )


def _direct(listen_url: str | None) -> str | None:
    """The argument, else COMMANDBUS_LISTEN_URL, which programs that use other engines may have, too."""
    found: str | None = without_driver(listen_url or os.environ.get("COMMANDBUS_LISTEN_URL") or None)
    if found is not None and _scheme(found) not in ("postgresql", "postgres"):
        raise ConfigurationError(
            f"listen_url {shown_url(found)!r} is not the URL of a PostgreSQL database; write "
            "postgresql://user@host/database, the same one as that of the bus."
        )
    return found


def _scheme(url: object) -> str:
    try:
        return urlsplit(url).scheme if isinstance(url, str) else ""
    except ValueError:  # such as a bracket that is not closed
        return ""


def _need_psycopg() -> None:
    for name in ("psycopg", "psycopg_pool"):
        if find_spec(name) is None:
            raise ConfigurationError(
                f"postgresql:// needs the package {name}, which is not installed; "
                "`pip install 'durable-commandbus[postgres]'` brings it."
            )
