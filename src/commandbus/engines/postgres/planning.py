"""How many connections there may be: a pool for handlers that use the database themselves, and a plan
that fits what the server has left."""

from __future__ import annotations

from typing import Any

import msgspec
import psycopg
from psycopg_pool import ConnectionPool

from commandbus.engines.postgres import location as locations
from commandbus.engines.postgres.failures import translate
from commandbus.errors import ConfigurationError
from commandbus.settings import STATEMENT_SECONDS, check_concurrency
from commandbus.store.sql_files import load

PACKAGE = "commandbus.engines.postgres.sql"
RESERVED = 5
"""Of a process's own: claims, settles, renewals, services, and one that single sends share."""
LISTENING = 1

POOL_SECONDS = 30.0
LIFETIME_SECONDS = 3600.0
IDLE_SECONDS = 600.0
RECONNECT_SECONDS = 300.0


class ConnectionPlan(msgspec.Struct, frozen=True):
    """How the connections of a server are divided."""

    concurrency: int
    """Slots of each worker process that fit, at most as many as were asked for."""
    wanted: int
    processes: int
    per_process: int
    """Connections that a process holds with this concurrency at most."""
    available: int
    """Connections that the server has left for these processes."""
    text: str
    """The arithmetic, in words."""

    def __str__(self) -> str:
        return self.text


def create_pool(url: str, concurrency: int, **kwargs: Any) -> ConnectionPool[Any]:
    """See `commandbus.connect.create_pool`."""
    slots = check_concurrency(concurrency)
    settings: dict[str, Any] = {
        "min_size": slots,
        "max_size": 2 * slots,
        "timeout": POOL_SECONDS,
        "max_lifetime": LIFETIME_SECONDS,
        "max_idle": IDLE_SECONDS,
        "reconnect_timeout": RECONNECT_SECONDS,
        "check": ConnectionPool.check_connection,
        "open": False,
        "name": "handlers",
    } | kwargs
    if settings["min_size"] < slots:
        raise ConfigurationError(
            f"min_size={settings['min_size']} is less than concurrency={slots}: every slot needs a "
            "connection. Raise the one, or lower the other."
        )
    conninfo = locations.plain_conninfo(url, STATEMENT_SECONDS)
    return ConnectionPool(conninfo, **settings)


def plan_connections(
    url: str, concurrency: int, *, processes: int = 1, own_pool: bool = False, strict: bool = False
) -> ConnectionPlan:
    """See `commandbus.connect.plan_connections`."""
    wanted = check_concurrency(concurrency)
    if isinstance(processes, bool) or not isinstance(processes, int) or processes < 1:
        raise ConfigurationError(f"processes must be a whole number of at least 1, not {processes!r}.")
    allowed, kept, used, limited = _ask(url)
    available = max(0, min(allowed - kept - used, limited))
    per_slot = 3 if own_pool else 1
    fitting = (available // processes - RESERVED - LISTENING) // per_slot
    planned = max(0, min(wanted, fitting))
    per_process = planned * per_slot + RESERVED + LISTENING
    text = (
        f"max_connections {allowed} - {kept} reserved - {used} in use = {allowed - kept - used}"
        + (f", of which this role and database may have {limited}" if available == limited else "")
        + f"; {processes} × ({planned} slots × {per_slot} + {RESERVED} of its own + {LISTENING} that "
        f"listens) = {processes * per_process}"
    )
    if planned < 1 or (strict and planned < wanted):
        need = processes * (wanted * per_slot + RESERVED + LISTENING)
        raise ConfigurationError(
            f"The server has too few connections for concurrency={wanted} in {processes} processes: "
            f"they need {need}, and {available} are left ({text}). Raise max_connections, lower the "
            "concurrency, or run fewer processes."
        )
    return ConnectionPlan(planned, wanted, processes, per_process, available, text)


def _ask(url: str) -> tuple[int, int, int, int]:
    """What the server allows, keeps back, has given out, and lets this role and database have."""
    place = locations.parse(url)
    try:
        with psycopg.connect(place.conninfo, autocommit=True) as connection:
            row = connection.execute(load(PACKAGE, "doctor.sql").connection_budget).fetchone()
    except psycopg.Error as error:
        raise translate(error) from error
    assert row is not None
    allowed, kept, used, limited = row
    return int(allowed), int(kept), int(used), int(limited)
