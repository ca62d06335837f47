"""A login role that may connect to the database and has no grant at all."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg

NAME = "a_stranger"  # the first of those that the doctor names


def stranger(url: str) -> psycopg.Connection[Any]:
    """A connection of the stranger to the database of a superuser's URL."""
    with psycopg.connect(url, autocommit=True) as connection:
        known = connection.execute("select 1 from pg_roles where rolname = %s", [NAME]).fetchone()
        if known is None:
            connection.execute(f"create role {NAME} login password '{NAME}'")
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return psycopg.connect(urlunsplit(parts._replace(netloc=f"{NAME}:{NAME}@{host}")), autocommit=True)
