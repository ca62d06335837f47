"""PGMQ in a database: whether it is there, as what and in which version; and how it gets there.

PGMQ is an extension where the server's host offers it. Elsewhere its SQL alone does the same; that
leaves no version behind, so the version that we install is noted as the comment of its schema.
"""

from __future__ import annotations

import hashlib
import re
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import psycopg

from commandbus.engines.postgres import schema as schemas
from commandbus.engines.postgres.failures import translate
from commandbus.engines.postgres.location import Location, parse
from commandbus.engines.postgres.pgmq.queues import PACKAGE
from commandbus.engines.postgres.statements import in_schema
from commandbus.errors import CommandBusError, ConfigurationError, SchemaOutdated
from commandbus.store.sql_files import load, read_text

OLDEST = (1, 5)
"""Messages have headers since then."""

_NOTE = re.compile(r"PGMQ (\S+), SQL only")
_VERSION = re.compile(r"\d+(\.\d+)*\Z")
_HOW = "run `commandbus db install-pgmq`, or `CREATE EXTENSION pgmq` where the server's host offers it"


class Installed(msgspec.Struct, frozen=True):
    """The PGMQ of a database."""

    is_extension: bool
    version: str | None
    """None where only its SQL was run, by someone who left no note."""
    columns: tuple[str, ...]
    """Of a message."""
    is_ready: bool
    """The tables of our transport are there, in this version."""

    def __str__(self) -> str:
        kind = "extension" if self.is_extension else "SQL only"
        return f"{kind}, version {self.version or 'not noted'}"


def look(connection: psycopg.Connection[Any], place: Location) -> Installed | None:
    """The PGMQ of a database, or None."""
    sql = in_schema(load(PACKAGE, "installation.sql").look, place.schema)
    try:
        row = connection.execute(sql.encode(), [f'"{place.schema}".pgmq_queue']).fetchone()
    except psycopg.Error as error:
        raise translate(error) from error
    if row is None:
        return None
    present, version, comment, columns, mark = row
    if not present:
        return None
    noted = _NOTE.match(comment or "")
    known = noted[1] if version is None and noted is not None else version
    return Installed(version is not None, known, tuple(columns), mark == _mark())


def present(url: str) -> Installed:
    """The PGMQ of a database; else an error that says how to get it."""
    place = parse(url)
    with schemas.connect(place) as connection:
        installed = look(connection, place)
    if installed is None:
        raise ConfigurationError(f"The database has no PGMQ; {_HOW}.")
    return installed


def require(url: str) -> Installed:
    """The PGMQ of a database that is ready for the transport; else an error that says what to do."""
    installed = present(url)
    if "headers" not in installed.columns:
        wanted = ".".join(str(part) for part in OLDEST)
        raise ConfigurationError(
            f"The database has PGMQ as {installed}, whose messages have no headers; upgrade it to "
            f"{wanted} or newer (`ALTER EXTENSION pgmq UPDATE`)."
        )
    if not installed.is_ready:
        raise SchemaOutdated(
            "The database lacks the tables of the PGMQ transport in this version; run `commandbus db "
            "install-pgmq`, or open the bus with migrate=True."
        )
    return installed


def prepare(url: str) -> None:
    """Create the transport's own tables and functions. Safe to repeat, and from many places at once."""
    place = parse(url)
    with schemas.connect(place) as connection:
        if look(connection, place) is None:
            return  # and `require` says what to do
        with connection.transaction():
            connection.execute("set local client_min_messages = warning")
            lock = "lock table commandbus.migration in share row exclusive mode"
            connection.execute(in_schema(lock, place.schema).encode())
            text = read_text(PACKAGE, "schema.sql")
            text += f"\ncomment on table commandbus.pgmq_queue is '{_mark()}';"
            connection.execute(in_schema(text, place.schema).encode())


def install(url: str, file: str | None = None) -> Installed:
    """Bring PGMQ into a database, unless it is there, and our tables for it: from an SQL file, else
    as the extension, where the server has it, else from the package `pgmq`."""
    place = parse(url)
    schemas.upgrade(url)
    with schemas.connect(place) as connection:
        if look(connection, place) is None:
            try:
                with connection.transaction():
                    _create(connection, file)
            except psycopg.Error as error:
                raise _failed(error) from error
    prepare(url)
    return require(url)


def _create(connection: psycopg.Connection[Any], file: str | None) -> None:
    offered = connection.execute("select 1 from pg_available_extensions where name = 'pgmq'").fetchone()
    if file is None and offered is not None:
        connection.execute("create extension pgmq")
        return
    text, version = _script(file)
    connection.execute("set local statement_timeout = 0")
    connection.execute(text.encode())
    connection.execute(f"comment on schema pgmq is 'PGMQ {version}, SQL only'".encode())


def _script(file: str | None) -> tuple[str, str]:
    """PGMQ's SQL, and its version."""
    if file is not None:
        try:
            text = Path(file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"The SQL file {file} cannot be read: {error}.") from error
        found = re.search(r"\d+\.\d+(\.\d+)?", Path(file).stem)
        return text, found[0] if found else "unknown"
    if find_spec("pgmq") is None:
        raise ConfigurationError(
            "The server does not offer the extension pgmq, and its SQL is not here: `pip install pgmq` "
            "brings it; or name a file with --sql."
        )
    folder = resources.files("pgmq") / "sql"
    version = (folder / "VERSION").read_text(encoding="utf-8").split()[0]
    if not _VERSION.match(version):
        version = "unknown"
    return (folder / "pgmq.sql").read_text(encoding="utf-8"), version


def _failed(error: psycopg.Error) -> CommandBusError:
    if error.sqlstate == "42501":
        return ConfigurationError(
            f"The database role may not install PGMQ ({str(error).splitlines()[0]}); let a role do it "
            "that may create schemas and extensions."
        )
    return translate(error)


def _mark() -> str:
    return hashlib.sha256(read_text(PACKAGE, "schema.sql").encode()).hexdigest()[:16]
