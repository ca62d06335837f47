"""The schema: numbered migrations, each with a checksum, applied under the write lock at open."""

from __future__ import annotations

import hashlib
import sqlite3
import time

from commandbus.errors import SchemaOutdated
from commandbus.store.sql_files import read_text
from commandbus.store.versions import accepts, compatible_from

MIGRATIONS = ("0001_schema.sql",)

_TABLE = (
    "create table if not exists commandbus_schema "
    "(version integer primary key, name text not null, checksum text not null, applied_at integer, "
    "compatible_from integer not null)"
)


def upgrade(connection: sqlite3.Connection) -> None:
    """Bring the file to this version. The caller holds the write lock. A file that has it already is
    only read: the caller may have a transaction of its own open on another connection."""
    if _is_current(connection):
        return
    connection.execute("begin immediate")
    try:
        connection.execute(_TABLE)
        applied = dict(connection.execute("select version, checksum from commandbus_schema"))
        newest = max(applied, default=0)
        if not is_compatible(connection):
            raise SchemaOutdated(
                f"The file has schema version {newest}, this program knows {len(MIGRATIONS)}: it was "
                "written by a newer durable-commandbus; upgrade this installation."
            )
        now = time.time_ns() // 1000
        for version, name in enumerate(MIGRATIONS, 1):
            script = _script(name)
            checksum = _checksum(script)
            if version not in applied:
                for statement in _statements(script):
                    connection.execute(statement)
                connection.execute(
                    "insert into commandbus_schema values (?, ?, ?, ?, ?)",
                    (version, name, checksum, now, compatible_from(script, version)),
                )
            elif applied[version] != checksum:
                raise SchemaOutdated(
                    f"Migration {name} was applied to this file in another form; the file belongs to "
                    "a different build of durable-commandbus. Use that build, or a new file."
                )
        connection.execute("commit")
    except BaseException:
        connection.execute("rollback")
        raise


def _is_current(connection: sqlite3.Connection) -> bool:
    """Whether the file has exactly the migrations of this program."""
    known = "select 1 from sqlite_master where name = 'commandbus_schema'"
    if connection.execute(known).fetchone() is None:
        return False
    applied = dict(connection.execute("select version, checksum from commandbus_schema"))
    return applied == {n: _checksum(_script(name)) for n, name in enumerate(MIGRATIONS, 1)}


def _script(name: str) -> str:
    return read_text("commandbus.engines.sqlite.sql", name)


def _checksum(script: str) -> str:
    return hashlib.sha256(script.encode()).hexdigest()


def is_compatible(connection: sqlite3.Connection) -> bool:
    """Whether this program works with the migrations that a file has."""
    found = connection.execute("select version, compatible_from from commandbus_schema")
    return accepts(len(MIGRATIONS), dict(found.fetchall()))


def _statements(script: str) -> list[str]:
    lines = [line for line in script.splitlines() if not line.lstrip().startswith("--")]
    return [part.strip() for part in "\n".join(lines).split(";") if part.strip()]
