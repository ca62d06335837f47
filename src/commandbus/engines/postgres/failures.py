"""PostgreSQL's errors in the words of the bus; none of psycopg's own crosses the port.

One table says what an SQLSTATE means, for psycopg and asyncpg alike.
"""

from __future__ import annotations

from typing import Any

from commandbus.errors import (
    CommandBusError,
    ConfigurationError,
    InvalidArgumentError,
    InvalidOperationError,
    RoleMayNotError,
    SchemaOutdated,
    StatementTimeout,
    StoreUnavailable,
)


class UniqueViolation(CommandBusError):  # noqa: N818 - never leaves the engine
    """An insert hit a unique index; `detail` is the server's description of the key."""

    def __init__(self, message: str, constraint: str, detail: str) -> None:
        super().__init__(message)
        self.constraint = constraint
        self.detail = detail


class Conflict(StoreUnavailable):
    """Another transaction was in the way; the transaction was undone."""


class NotifyRefused(StoreUnavailable):
    """The server's queue of notifications is full: the same without a notification may pass."""


class MessagesMoved(StoreUnavailable):
    """A settle believed that its leases and messages were as this process last saw them; see
    pgmq/settling.py."""


_MESSAGES = {
    "08": "The connection to PostgreSQL was lost",
    "57P": "PostgreSQL is shutting down or starting up",
    "53": "PostgreSQL is out of resources",
    "25006": "PostgreSQL is read-only: it is a standby, or was demoted by a fail-over",
    "40001": "Another transaction was in the way; nothing was changed",
    "40P01": "PostgreSQL resolved a deadlock; nothing was changed",
    "55P03": "A lock was not available; nothing was changed",
    "25P03": "The transaction was idle for too long; nothing was changed",
    "58": "PostgreSQL reports trouble with its disk",
    "XX": "PostgreSQL reports an internal error",
}

_CONFLICTS = ("40001", "40P01")

_AGAIN = (
    "Trying again is safe; a send that may have been committed is repeated with the command_id it "
    "had; DuplicateCommandError then says that it is there."
)

# How psycopg begins when no connection came about; the server's code is missing then.
_UNREACHED = ("connection failed: ", "failed to resolve host ", "connection timeout expired")

# After these, what the connection knows about the server is wrong: it is not used again.
_FATAL = ("08", "57P", "25006", "25P03", "XX")

_MISSING = ("42P01", "3F000", "42883", "42703", "42704")


def sqlstate_of(error: BaseException) -> str:
    return getattr(error, "sqlstate", None) or ""


def is_about_a_value(error: CommandBusError) -> bool:
    """Whether the server refuses a value: it is out of range, of a wrong form or too large."""
    return sqlstate_of(error.__cause__ or error).startswith(("22", "54"))


def translate(error: Exception) -> CommandBusError:
    """An error of a driver as one of ours."""
    state, text = sqlstate_of(error), _text(error)
    if state == "23505":
        return UniqueViolation(text, *_violated(error))
    if state == "54000" and "NOTIFY" in text:
        return NotifyRefused(
            f"PostgreSQL's queue of notifications is full ({text}); nothing was changed. Find the "
            "session that listens and never reads, see `commandbus db doctor`, or add notify=off to "
            "the URL."
        )
    if state == "CB409":
        return MessagesMoved(f"{text}; nothing was changed. Trying again is safe.")
    if state in _MISSING:
        return SchemaOutdated(
            f"The database lacks tables of this version ({text}); run `commandbus db upgrade`, or open "
            "the bus with migrate=True."
        )
    if state.startswith("28") or state == "3D000":
        return ConfigurationError(f"PostgreSQL refuses the connection: {text}. Check the URL.")
    if state == "42501":
        return RoleMayNotError(
            f"The database role may not do this ({text}). Use a login with a role that may, and run "
            "the statements of `commandbus db roles` again if the schema was upgraded."
        )
    if state.startswith("22"):
        return InvalidArgumentError(f"PostgreSQL cannot keep a value: {text}.")
    if state == "P0001":
        # Raised by a function or a trigger, with words of its own; it would do so again.
        return InvalidOperationError(f"A function of the database refuses this: {text}.")
    if state == "57014":
        return StatementTimeout(
            f"PostgreSQL canceled a statement ({text}); nothing was changed. Trying again is safe; if "
            "it happens often, see what holds locks, or raise statement_timeout."
        )
    for prefix, meaning in _MESSAGES.items():
        if state.startswith(prefix):
            kind = Conflict if prefix in _CONFLICTS else StoreUnavailable
            return kind(f"{meaning} ({text}). {_AGAIN}")
    if text.startswith(_UNREACHED):
        return StoreUnavailable(
            f"PostgreSQL cannot be reached: {text.removeprefix(_UNREACHED[0])}. Check the URL, and "
            "whether the server runs."
        )
    return StoreUnavailable(f"PostgreSQL failed: {text}. {_AGAIN}")


def is_fatal(error: BaseException) -> bool:
    """Whether the connection must be thrown away. A plan that a migration made stale counts, and a
    prepared statement that a handler's code removed: only a new connection forgets it."""
    state = sqlstate_of(error)
    return not state or state.startswith(_FATAL) or state in ("0A000", "26000")


def _violated(error: Exception) -> tuple[str, str]:
    diagnosis: Any = getattr(error, "diag", None)
    if diagnosis is not None:
        return diagnosis.constraint_name or "", diagnosis.message_detail or ""
    return getattr(error, "constraint_name", None) or "", getattr(error, "detail", None) or ""


def _text(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__
