"""Looking after an SQLite file: creating it, checking it, diagnosing it."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from commandbus.domain.moment import SECOND, system_clock
from commandbus.engines.sqlite import location, schema
from commandbus.engines.sqlite.engine import SqliteEngine
from commandbus.engines.sqlite.failures import translate
from commandbus.engines.sqlite.file import CLOCK_DIFFERENCE_MAX, clock_difference
from commandbus.errors import CommandBusError, ConfigurationError, SchemaOutdated, StoreUnavailable
from commandbus.store.administration import OVERDUE_SECONDS, Finding, Level, overdue_leases
from commandbus.store.op import scalar
from commandbus.store.sql_files import read_text

SAFE_LIBRARY = (3, 51, 3)
"""The first release without the race between a checkpoint and a writer of another process."""

WAL_BYTES_MAX = 256 * 1024 * 1024
FREE_BYTES_MIN = 1024 * 1024 * 1024

_OK, _WARNING, _ERROR = Level.OK, Level.WARNING, Level.ERROR


class SqliteAdministration:
    """The administrator's view of one file."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.path, self._synchronous = location.parse(url)

    def upgrade(self) -> str:
        engine = SqliteEngine(self._url)
        engine.open()
        engine.close()
        return _version(len(schema.MIGRATIONS))

    def verify(self) -> str:
        with self._connection() as connection:
            (found,) = connection.execute(
                "select count(*) from sqlite_master where name = 'commandbus_schema'"
            ).fetchone()
            newest = (
                scalar(connection.execute("select max(version) from commandbus_schema").fetchall())
                if found
                else None
            )
            compatible = newest is not None and schema.is_compatible(connection)
        if newest is None:
            raise SchemaOutdated(
                f"{self.path} has no tables of the bus; create them with `commandbus db upgrade`."
            )
        if newest < len(schema.MIGRATIONS):
            raise SchemaOutdated(
                f"{self.path} has schema version {newest}, this program needs "
                f"{len(schema.MIGRATIONS)}; run `commandbus db upgrade`."
            )
        if not compatible:
            raise SchemaOutdated(
                f"{self.path} has schema version {newest}, this program knows "
                f"{len(schema.MIGRATIONS)}; upgrade this installation of durable-commandbus."
            )
        return _version(newest)

    def sql(self) -> str:
        return "\n".join(read_text("commandbus.engines.sqlite.sql", name) for name in schema.MIGRATIONS)

    def roles(self) -> str:
        raise ConfigurationError(
            "SQLite has no roles: write access to the file allows everything. Use the rights of the "
            "file, or PostgreSQL."
        )

    def doctor(self) -> list[Finding]:
        findings = [self._library(), self._filesystem(), self._rights(), *self._sizes(), self._schema()]
        try:
            with self._connection() as connection:
                findings += [self._journal(connection), self._durability(), _integrity(connection)]
                findings.append(_leases(connection))
            findings.append(self._clock())
        except CommandBusError as error:
            findings.append(Finding("integrity", _ERROR, "not readable", str(error)))
        return findings

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        """A connection that changes nothing; SQLite's errors come out as the bus's."""
        if not self.path.is_file():
            raise StoreUnavailable(
                f"There is no file {self.path}; create it with `commandbus db upgrade`."
            )
        location.check(self.path)
        try:
            connection = sqlite3.connect(self.path, timeout=10, isolation_level=None)
            try:
                connection.execute("pragma query_only = on")
                yield connection
            finally:
                connection.close()
        except sqlite3.Error as error:
            raise translate(error) from error

    def _library(self) -> Finding:
        version = sqlite3.sqlite_version
        if sqlite3.sqlite_version_info >= SAFE_LIBRARY:
            return Finding("library", _OK, f"SQLite {version}")
        users = _processes_using(Path(f"{self.path}.lock"))
        if users < 2:
            return Finding("library", _OK, f"SQLite {version}, no other process has the file open")
        return Finding(
            "library",
            _WARNING,
            f"SQLite {version}, {users} processes have the file open",
            "Before 3.51.3 a checkpoint can race with a writer of another process. The bus writes "
            "and folds back its log under a lock of its own; let no other program write this file, "
            "or run a Python whose SQLite is newer.",
        )

    def _filesystem(self) -> Finding:
        kind = location.filesystem_of(self.path.parent)
        try:
            location.check(self.path)
        except CommandBusError as error:
            return Finding("location", _ERROR, kind or "unknown", str(error))
        return Finding("location", _OK, f"{self.path.parent} ({kind or 'file system unknown'})")

    def _rights(self) -> Finding:
        """Payloads are in the file and its log; the lock file can hold up all writers."""
        open_to_others: list[str] = []
        for suffix in ("", "-wal", "-shm", ".lock"):
            path = Path(f"{self.path}{suffix}")
            if path.exists() and (mode := path.stat().st_mode & 0o777) & 0o007:
                open_to_others.append(f"{path.name} {mode:04o}")
        if not open_to_others:
            return Finding("rights", _OK, "not accessible to other users")
        return Finding(
            "rights",
            _WARNING,
            ", ".join(open_to_others),
            "Other users of this machine can read payloads or hold up writers; take these rights away "
            f"with `chmod o-rwx {self.path}*`.",
        )

    def _clock(self) -> Finding:
        """The kernel sets the time of a file that is touched; the bus goes by this process's clock."""
        try:
            ahead = clock_difference(self.path, system_clock)
        except OSError as error:
            return Finding("clock", _WARNING, "unknown", f"Cannot be compared: {error.strerror}.")
        value = f"{abs(ahead):.1f} s from that of the file system"
        if abs(ahead) <= CLOCK_DIFFERENCE_MAX:
            return Finding("clock", _OK, value)
        return Finding(
            "clock", _ERROR, value, "All processes of a file must share one clock; correct this one."
        )

    def _sizes(self) -> Iterator[Finding]:
        log = _size(Path(f"{self.path}-wal"))
        value = f"{_readable(_size(self.path))}, log {_readable(log)}"
        if log > WAL_BYTES_MAX:
            advice = "The log grows when a reader never ends: look for a transaction left open."
            yield Finding("size", _WARNING, value, advice)
        else:
            yield Finding("size", _OK, value)
        try:
            free = shutil.disk_usage(self.path.parent).free
        except OSError as error:
            yield Finding("disk", _WARNING, "unknown", f"Cannot be read: {error.strerror}.")
            return
        few = free < FREE_BYTES_MIN
        advice = "When the disk is full, sends are refused; free some space." if few else ""
        yield Finding("disk", _WARNING if few else _OK, f"{_readable(free)} free", advice)

    def _schema(self) -> Finding:
        try:
            return Finding("schema", _OK, self.verify())
        except CommandBusError as error:
            return Finding("schema", _ERROR, "not usable", str(error))

    def _journal(self, connection: sqlite3.Connection) -> Finding:
        (mode,) = connection.execute("pragma journal_mode").fetchone()
        if mode == "wal":
            return Finding("journal", _OK, "wal")
        return Finding("journal", _WARNING, str(mode), "It becomes wal when a bus opens the file.")

    def _durability(self) -> Finding:
        mode = self._synchronous.lower()
        if mode in ("full", "extra"):
            return Finding("durability", _OK, f"synchronous={mode}: survives a power cut")
        return Finding(
            "durability",
            _WARNING,
            f"synchronous={mode}",
            "A power cut can lose what was sent last; leave synchronous out of the URL for full.",
        )


def _integrity(connection: sqlite3.Connection) -> Finding:
    rows = [text for (text,) in connection.execute("pragma quick_check(5)")]
    if rows == ["ok"]:
        return Finding("integrity", _OK, "quick_check ok")
    return Finding("integrity", _ERROR, "; ".join(rows), "Restore the file from a backup.")


def _leases(connection: sqlite3.Connection) -> Finding:
    before = system_clock() - OVERDUE_SECONDS * SECOND
    query = "select count(*), min(lease_id) from commandbus_lease where until < ?"
    return overdue_leases(*connection.execute(query, (before,)).fetchone())


def _version(number: int) -> str:
    names = schema.MIGRATIONS[number - 1 : number] or ("newer, and compatible",)
    return f"version {number} ({names[0].removesuffix('.sql')})"


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _readable(size: float) -> str:
    if size < 1024:
        return f"{size:.0f} bytes"
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1024
        if size < 1024:
            return f"{size:.1f} {unit}"
    return f"{size / 1024:.1f} TiB"


def _processes_using(path: Path) -> int:
    """How many processes have a file open, as far as this user may see; 0 where that is unknown."""
    users = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            users += any(os.readlink(fd) == str(path) for fd in (process / "fd").iterdir())  # noqa: PTH115
        except OSError:  # ended meanwhile, or another user's
            continue
    return users
