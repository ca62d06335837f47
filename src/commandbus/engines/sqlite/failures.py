"""SQLite's errors in the words of the bus; none of SQLite's own crosses the port."""

from __future__ import annotations

import sqlite3

from commandbus.errors import (
    CommandBusError,
    ConfigurationError,
    InvalidArgumentError,
    SchemaOutdated,
    StoreUnavailable,
)


class UniqueViolation(CommandBusError):  # noqa: N818 - never leaves the engine
    """An insert hit a unique index."""


def translate(error: sqlite3.Error) -> CommandBusError:
    text = str(error)
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if isinstance(error, sqlite3.InterfaceError | sqlite3.ProgrammingError):
        return InvalidArgumentError(f"SQLite cannot take an argument ({text}); nothing was changed.")
    if isinstance(error, sqlite3.IntegrityError):
        return UniqueViolation(text)
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return ConfigurationError(
            f"The file is not a healthy SQLite database ({text}); restore it from a backup, or move "
            "it away to begin with a new one."
        )
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StoreUnavailable(
            "Another program holds the SQLite file's write lock for too long; nothing was changed. "
            "Look for a transaction left open on it, and try again."
        )
    if code == sqlite3.SQLITE_FULL:
        return StoreUnavailable("The disk is full; nothing was changed. Free space and try again.")
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
        return StoreUnavailable(
            f"The SQLite file cannot be written ({text}); check its permissions and that its disk is "
            "mounted for writing."
        )
    if "no such table: commandbus_" in text or "no such column" in text:
        return SchemaOutdated(
            f"The file lacks tables of this version ({text}); open it once with "
            "CommandBus(url) to create them."
        )
    return StoreUnavailable(f"SQLite failed: {text}. Nothing was changed; try again.")
