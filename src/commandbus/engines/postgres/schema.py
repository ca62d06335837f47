"""The schema: numbered migrations, each with a checksum, applied under a lock on their table."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
import psycopg
from psycopg import RawCursor

from commandbus.engines.postgres import location as locations
from commandbus.engines.postgres.failures import translate
from commandbus.engines.postgres.insert_query import functions
from commandbus.engines.postgres.location import Location
from commandbus.engines.postgres.statements import PACKAGE, in_schema
from commandbus.errors import SchemaOutdated, StoreUnavailable
from commandbus.store.op import scalar
from commandbus.store.sql_files import read_text
from commandbus.store.versions import accepts, compatible_from

MIGRATIONS = ("0001_schema.sql",)
"""After the last of them that is missing, functions.sql is applied, too, which is made of the engine's
own statements. What changes there needs a migration to get into databases."""

_REGISTER = """
create schema if not exists "{schema}";
create table if not exists commandbus.migration (
    version         integer primary key,
    name            text not null,
    checksum        text not null,
    applied_at      timestamptz not null default clock_timestamp(),
    compatible_from integer not null
);
lock table commandbus.migration;
"""
"""The lock lets one upgrade work at a time. It is not an advisory lock, which any role that may connect
could hold."""
_ADD = "insert into commandbus.migration (version, name, checksum, compatible_from)"
_APPLIED = "select version, name, checksum, compatible_from from commandbus.migration order by 1"

CREATIONS_MAX = 5
_MAY_WRITE = "select has_table_privilege(to_regclass('commandbus.queue'), 'insert')"

_CURE = "run `commandbus db upgrade`, or open the bus with migrate=True"


class Applied(msgspec.Struct, frozen=True):
    """A migration that the database has."""

    version: int
    name: str
    checksum: str
    compatible_from: int
    """The lowest version of programs that work with it."""

    def __str__(self) -> str:
        return f"version {self.version} ({self.name.removesuffix('.sql')})"


def upgrade(dsn: str, schema: str | None = None) -> list[str]:
    """Bring a database to this version; returns the names of the migrations that were applied.

    Safe to run from many places at once: the lock on the table of migrations lets one of them work.
    All migrations are applied in one transaction. Raises SchemaOutdated when the database is newer than
    this program, and does not declare itself compatible with it.
    """
    place = _located(dsn, schema)
    for _ in range(CREATIONS_MAX):
        with connect(place) as connection:
            try:
                with connection.transaction():
                    return _upgrade(connection, place.schema)
            except psycopg.errors.UniqueViolation:
                continue  # another process has just created the schema or the table of migrations
    raise StoreUnavailable(
        f"The schema {place.schema!r} is being created by others again and again; nothing was changed. "
        "Trying again is safe."
    )


def _upgrade(connection: psycopg.Connection[Any], schema: str) -> list[str]:
    connection.execute(_script(_REGISTER.format(schema=schema), schema))
    connection.execute("set local statement_timeout = 0")
    applied = _applied(connection, schema)
    _check(applied, complete=False)
    fresh: list[str] = []
    for version, name in enumerate(MIGRATIONS, 1):
        if version in applied:
            continue
        connection.execute(_script(read_text(PACKAGE, name), schema))
        connection.execute(
            _script(f"{_ADD} values ($1, $2, $3, $4)", schema),
            [version, name, checksum_of(name), _compatible_from(name, version)],
        )
        fresh.append(name)
    if fresh:
        connection.execute(functions(schema).encode())
    return fresh


def verify(dsn: str, schema: str | None = None) -> list[Applied]:
    """The migrations that a database has; raises SchemaOutdated, naming the cure, when they are not
    those of this version, and newer ones that are compatible with it."""
    place = _located(dsn, schema)
    with connect(place) as connection:
        return _verified(connection, place.schema)


def verify_rights(dsn: str) -> bool:
    """As `verify`; whether the role may write the tables."""
    place = _located(dsn, None)
    with connect(place) as connection:
        _verified(connection, place.schema)
        try:
            return bool(scalar(connection.execute(_script(_MAY_WRITE, place.schema)).fetchall()))
        except psycopg.Error as error:
            raise translate(error) from error


def _verified(connection: psycopg.Connection[Any], schema: str) -> list[Applied]:
    applied = _applied(connection, schema)
    _check(applied, complete=True)
    return list(applied.values())


def migration_sql(schema: str = locations.DEFAULT_SCHEMA) -> str:
    """Everything that `upgrade` would execute on an empty database, for people who apply it by hand."""
    name = locations.check_schema(schema)
    parts = ["begin;", _REGISTER.format(schema=name).strip()]
    for version, migration in enumerate(MIGRATIONS, 1):
        parts.append(read_text(PACKAGE, migration).strip())
        parts.append(
            f"{_ADD} values ({version}, '{migration}', '{checksum_of(migration)}', "
            f"{_compatible_from(migration, version)});"
        )
    return in_schema("\n\n".join(parts), name) + f"\n\n{functions(name)};\n\ncommit;\n"


def checksum_of(name: str) -> str:
    return hashlib.sha256(read_text(PACKAGE, name).encode()).hexdigest()


def _compatible_from(name: str, version: int) -> int:
    return compatible_from(read_text(PACKAGE, name), version)


def _located(dsn: str, schema: str | None) -> Location:
    place = locations.parse(dsn)
    if schema is None:
        return place
    return msgspec.structs.replace(place, schema=locations.check_schema(schema))


def connect(place: Location) -> psycopg.Connection[Any]:
    """A connection for administration, in autocommit mode."""
    try:
        return psycopg.connect(place.conninfo, autocommit=True, cursor_factory=RawCursor)
    except psycopg.Error as error:
        raise translate(error) from error


def _applied(connection: psycopg.Connection[Any], schema: str) -> dict[int, Applied]:
    sql = _script(_APPLIED, schema)
    try:
        applied = [Applied(*row) for row in connection.execute(sql).fetchall()]
        return {one.version: one for one in applied}
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
        return {}
    except psycopg.Error as error:
        raise translate(error) from error


def _check(applied: dict[int, Applied], *, complete: bool) -> None:
    newest = max(applied, default=0)
    if not accepts(len(MIGRATIONS), {row.version: row.compatible_from for row in applied.values()}):
        raise SchemaOutdated(
            f"The database has schema version {newest}, this program knows {len(MIGRATIONS)}: it was "
            "upgraded by a newer durable-commandbus; upgrade this installation."
        )
    for version, name in enumerate(MIGRATIONS, 1):
        known = applied.get(version)
        if known is not None and known.checksum != checksum_of(name):
            raise SchemaOutdated(
                f"Migration {name} was applied to this database in another form; it belongs to a "
                "different build of durable-commandbus. Use that build, or another schema."
            )
        if known is None and complete:
            what = "has no tables of the bus yet" if not applied else f"lacks migration {name}"
            raise SchemaOutdated(f"The database {what}; {_CURE}.")


def _script(sql: str, schema: str) -> bytes:
    return in_schema(sql, schema).encode()
