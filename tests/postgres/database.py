"""One PostgreSQL per test process, started when first needed, and an empty bus in it for each test."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import Any

import psycopg
import pytest
from psycopg import sql

from commandbus.engines.postgres import schema
from commandbus.engines.postgres.schema import upgrade
from commandbus.testing import Configuration, Harness
from commandbus.testing.postgres import PostgresServer, create_database

TABLES = (
    *("audit", "batch_count", "command", "document", "domain", "lease", "outcome", "progress", "queue"),
    *("scheduled", "sleeper", "tally", "unique_key", "process", "process_step", "recorded_step"),
    *("limit_rule", "held", "permit", "touch", "bucket", "partition", "mutex", "receipt"),
)
TIMES = {
    "command": ("created_at", "due_at", "expires_at"),
    "queue": ("available_at",),
    "scheduled": ("due_at",),
    "lease": ("claimed_at", "until"),
    "outcome": ("started_at", "finished_at"),
    "receipt": ("finished_at",),
    "audit": ("at",),
    "progress": ("at",),
    "domain": ("paused_at",),
    "document": ("due_at",),
    "process": ("created_at", "updated_at", "due_at", "finished_at"),
    "process_step": ("at",),
    "held": ("available_at",),
    "touch": ("at",),
    "bucket": ("full_at",),
}


@cache
def server(_pid: int | None = None) -> PostgresServer:
    """The server of this process; it ends with it."""
    return PostgresServer.start()


@cache
def shared_url() -> str:
    """A database with the schema, for tests that empty it before use."""
    url = create_database(server(os.getpid()))
    upgrade(url)
    return url


def empty_url() -> str:
    """The shared database, with nothing in it."""
    url = shared_url()
    with upkeep(url) as connection:
        empty(connection, [("commandbus", name) for name in TABLES])
    return url


_verified = cache(schema.verify_rights)


def verify_once(patch: pytest.MonkeyPatch) -> None:
    """Let buses of a test believe that the shared database still has the schema that it had: each of
    them would look over a connection of its own."""
    patch.setattr(schema, "verify_rights", _verified)


UPKEEP = "upkeep of tests"
_idle: dict[tuple[int, str], psycopg.Connection[Any]] = {}


@contextmanager
def upkeep(url: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection of the tests themselves. It is kept, because a new one costs the server as much as
    the statements of a small test; a test may have ended it, or the server."""
    key = (os.getpid(), url)
    connection = _idle.pop(key, None)
    if connection is None or not _answers(connection):
        connection = psycopg.connect(url, autocommit=True, application_name=UPKEEP)
        connection.execute("set lock_timeout = '10s'")  # a failed test may have left a transaction open
        atexit.register(connection.close)
    try:
        yield connection
    finally:
        _idle[key] = connection


def _answers(connection: psycopg.Connection[Any]) -> bool:
    try:
        connection.execute("select")
    except psycopg.OperationalError:
        return False
    return True


def empty(connection: psycopg.Connection[Any], tables: Sequence[tuple[str, str]]) -> None:
    """Empty tables, given with their schemas, and reset the mark of the last link. Truncating a table
    takes a millisecond, so a table without a page is left as it is: nothing was ever written to it."""
    written = connection.execute(
        "select n.nspname, c.relname from pg_class c join pg_namespace n on n.oid = c.relnamespace"
        " where (n.nspname, c.relname) in (select * from unnest(%s::text[], %s::text[]))"
        " and pg_relation_size(c.oid) > 0",
        [list(names) for names in zip(*tables, strict=True)],
    ).fetchall()
    if written:
        names = sql.SQL(", ").join(sql.Identifier(*row) for row in written)
        connection.execute(sql.SQL("truncate {} restart identity").format(names))
    connection.execute("update commandbus.ledger_mark set number = 0 where number <> 0")


def tcp(url: str) -> str:
    """The same database by its loopback port, where a proxy can stand in between."""
    name = url.partition("?")[0].rpartition("/")[2]
    return server(os.getpid()).dsn(name, tcp=True)


def aging(url: str) -> Callable[[float], None]:
    """Makes everything stored look older: a server's clock cannot be moved."""

    def advance(seconds: float) -> None:
        micros = int(seconds * 1_000_000)
        older = [
            f"update commandbus.{table} set " + ", ".join(f"{c} = {c} - {micros}" for c in columns)
            for table, columns in TIMES.items()
        ]
        inside = [_older_inside("audit", "details", "received_at", micros)]
        inside.append(_older_inside("document", "body", "completed_at", micros, "kind = 'batch' and"))
        with upkeep(url) as connection:
            connection.execute(";".join(older + inside))

    return advance


def _older_inside(table: str, column: str, key: str, micros: int, among: str = "") -> str:
    """Of a moment inside a document."""
    document = f"{column}::jsonb"
    return (
        f"update commandbus.{table} set {column} = jsonb_set({document}, '{{{key}}}',"
        f" to_jsonb(({document} ->> '{key}')::bigint - {micros}))::text"
        f" where {among} {document} ->> '{key}' is not null"
    )


class BlockingTransaction:
    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection

    def commit(self) -> None:
        self.connection.commit()

    def rollback(self) -> None:
        self.connection.rollback()


class AwaitingTransaction:
    """A transaction of an asyncio connection, on the loop of a harness."""

    def __init__(self, connection: psycopg.AsyncConnection[Any], harness: Harness) -> None:
        self.connection = connection
        self._harness = harness

    def commit(self) -> None:
        self._harness.call(self.connection.commit)

    def rollback(self) -> None:
        self._harness.call(self.connection.rollback)


def postgres_configuration() -> Configuration:
    url = empty_url()
    return Configuration("postgres", url, advance=aging(url), begin=beginning(url))


def beginning(url: str) -> Callable[[Harness], AbstractContextManager[Any]]:
    """Begins callers' transactions."""

    @contextmanager
    def begin(harness: Harness) -> Iterator[Any]:
        if harness.runtime == "asyncio":
            connection = harness.call(psycopg.AsyncConnection.connect, url)
            try:
                yield AwaitingTransaction(connection, harness)
            finally:
                harness.call(connection.close)
        else:
            with psycopg.connect(url) as connection:
                yield BlockingTransaction(connection)

    return begin
