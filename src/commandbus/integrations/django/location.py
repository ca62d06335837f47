"""The bus of a Django database: its URL at the moment of use, and its tables.

While tests run, Django's settings of a database name the test database. So the URL is made when it is
needed: a test neither writes into the real store nor carries out what waits there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from django.core.exceptions import ImproperlyConfigured
from django.db import connections


def url_of(alias: str, parameters: dict[str, Any]) -> str:
    """The URL of the bus in Django's database `alias`, as it is now; `parameters` are options of the
    bus's URL, such as pool_size. Raises ImproperlyConfigured where a bus cannot live there."""
    connection = connections[alias]
    if connection.vendor == "postgresql":
        return _postgresql(connection.settings_dict, parameters)
    if connection.vendor == "sqlite":
        return _sqlite(alias, connection.settings_dict, parameters)
    raise ImproperlyConfigured(
        f"DATABASES[{alias!r}] is {connection.vendor}; a bus lives in PostgreSQL or SQLite. Give TASKS "
        "a URL and ON_COMMIT instead of DATABASE."
    )


def _postgresql(settings: dict[str, Any], parameters: dict[str, Any]) -> str:
    from psycopg.pq import Conninfo

    user = quote(settings.get("USER") or "", safe="")
    if settings.get("PASSWORD"):
        user += ":" + quote(settings["PASSWORD"], safe="")
    host, port = str(settings.get("HOST") or ""), settings.get("PORT")
    place = f"{user}@" if user else ""
    options = dict(settings.get("OPTIONS") or {})
    if options.get("assume_role"):  # Django sets the role of its own connections after connecting
        role = str(options["assume_role"]).replace("\\", r"\\").replace(" ", r"\ ")
        options["options"] = f"{options.get('options') or ''} -c role={role}".strip()
    known = {option.keyword.decode() for option in Conninfo.get_defaults()}
    query = {k: value for k, value in options.items() if k in known and value not in (None, "")}
    query |= parameters
    if host.startswith("/") or "," in host:  # a folder of sockets; several servers
        query["host"] = host
        if port:
            query["port"] = port
    else:
        place += host + (f":{port}" if port else "")
    encoded = urlencode(query, quote_via=quote)
    name = quote(str(settings.get("NAME") or ""), safe="")
    return f"postgresql://{place}/{name}" + (f"?{encoded}" if encoded else "")


def _sqlite(alias: str, settings: dict[str, Any], parameters: dict[str, Any]) -> str:
    name = str(settings["NAME"])
    if name.startswith("file:") or ":memory:" in name:
        raise ImproperlyConfigured(
            f"DATABASES[{alias!r}] is in memory, where a bus cannot be. In tests, name a file: "
            f"DATABASES[{alias!r}]['TEST'] = {{'NAME': 'test.sqlite3'}}."
        )
    encoded = urlencode(parameters, quote_via=quote)
    return f"sqlite:///{quote(str(Path(name).absolute()))}" + (f"?{encoded}" if encoded else "")
