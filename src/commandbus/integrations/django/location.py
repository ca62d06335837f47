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

_QUERY_ONLY = ("service", "passfile", "sslmode", "sslcert", "sslkey", "sslrootcert", "options")
"""Options of Django's PostgreSQL backend that libpq knows by the same names."""


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
    user = quote(settings.get("USER") or "", safe="")
    if settings.get("PASSWORD"):
        user += ":" + quote(settings["PASSWORD"], safe="")
    host, port = str(settings.get("HOST") or ""), settings.get("PORT")
    place = f"{user}@" if user else ""
    options = settings.get("OPTIONS") or {}
    query = {key: options[key] for key in _QUERY_ONLY if options.get(key)} | parameters
    if host.startswith("/"):  # a folder of sockets
        query["host"] = host
    else:
        place += host
    if port:
        place += f":{port}"
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
