"""One database with PGMQ, from its SQL alone, per test process; emptied for each test."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache

import psycopg
import pytest
from psycopg import sql

from commandbus.engines.postgres.pgmq import installation
from commandbus.engines.postgres.pgmq.installation import install
from commandbus.testing import Configuration
from commandbus.testing.postgres import create_database
from tests.postgres import database
from tests.postgres.database import TABLES, aging, beginning, empty, server, upkeep


@cache
def shared_url() -> str:
    url = create_database(server(os.getpid()))
    install(url)
    return url


_required = cache(installation.require)


def verify_once(patch: pytest.MonkeyPatch) -> None:
    """As of the PostgreSQL engine, with PGMQ."""
    database.verify_once(patch)
    patch.setattr(installation, "require", _required)


def empty_url() -> str:
    """The shared database with nothing in it. Queues stay, because making them takes long."""
    url = shared_url()
    with upkeep(url) as connection:
        ours = [("commandbus", name) for name in (*TABLES, "pgmq_message")]
        empty(connection, ours + [("pgmq", name) for name in tables(connection)])
    return url


def tables(connection: psycopg.Connection[tuple[str]], prefixes: str = "qa") -> list[str]:
    """PGMQ's tables of all queues."""
    rows = connection.execute("select queue_name from pgmq.meta").fetchall()
    return [f"{prefix}_{row[0].lower()}" for row in rows for prefix in prefixes]


def aging_messages(url: str) -> Callable[[float], None]:
    """Makes everything stored look older, messages too."""
    age = aging(url)

    def advance(seconds: float) -> None:
        age(seconds)
        with upkeep(url) as connection:
            for table in tables(connection, "q"):
                connection.execute(
                    sql.SQL(
                        "update pgmq.{} set vt = vt - {s}::interval,"
                        " enqueued_at = enqueued_at - {s}::interval"
                    ).format(sql.Identifier(table), s=sql.Literal(f"{seconds} seconds"))
                )

    return advance


def pgmq_configuration() -> Configuration:
    url = empty_url()
    return Configuration(
        "pgmq", url, advance=aging_messages(url), begin=beginning(url), transport="pgmq"
    )
