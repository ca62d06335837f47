"""Exit codes: what a script can tell from how a command ended."""

from __future__ import annotations

from enum import IntEnum

from commandbus.errors import (
    BatchNotFoundError,
    CommandBusError,
    CommandNotFoundError,
    ConfigurationError,
    InvalidArgumentError,
    NotFoundError,
    PayloadError,
    ProcessNotFoundError,
    SchemaOutdated,
    StoreUnavailable,
)


class Exit(IntEnum):
    """How a command ended. The numbers are part of the interface and never change their meaning."""

    OK = 0
    FAILURE = 1
    USAGE = 2
    NO_APP = 3
    STORE = 4
    SCHEMA = 5
    UNHEALTHY = 6
    NOT_FOUND = 7
    TIMED_OUT = 8
    GAVE_UP = 75
    INTERRUPTED = 130


EXIT_CODES: dict[int, str] = {
    Exit.OK: "done, or stopped cleanly",
    Exit.FAILURE: "refused or failed; in bulk, some of it",
    Exit.USAGE: "wrong usage or setting",
    Exit.NO_APP: "the app with the handlers cannot be imported",
    Exit.STORE: "the store cannot be reached or written",
    Exit.SCHEMA: "the store's schema is missing or outdated",
    Exit.UNHEALTHY: "unhealthy",
    Exit.NOT_FOUND: "there is no such command, domain, batch, process, schedule, breaker or limit",
    Exit.TIMED_OUT: "timed out waiting or searching",
    Exit.GAVE_UP: "a worker process remained CRITICAL after restarts; `commandbus worker` starts "
    "another",
    Exit.INTERRUPTED: "interrupted by Ctrl-C; an action on many commands says how many were done",
}
"""Every exit code and its meaning; shown by `commandbus --help`."""

_BY_ERROR: tuple[tuple[type[BaseException], Exit], ...] = (
    (SchemaOutdated, Exit.SCHEMA),
    (StoreUnavailable, Exit.STORE),
    (CommandNotFoundError, Exit.NOT_FOUND),
    (BatchNotFoundError, Exit.NOT_FOUND),
    (ProcessNotFoundError, Exit.NOT_FOUND),
    (NotFoundError, Exit.NOT_FOUND),
    (InvalidArgumentError, Exit.USAGE),
    (PayloadError, Exit.USAGE),
    (ConfigurationError, Exit.USAGE),
    (TimeoutError, Exit.TIMED_OUT),
)


class CliError(CommandBusError):
    """A command cannot go on; carries its exit code. The message is all that is shown."""

    def __init__(self, message: str, code: Exit = Exit.FAILURE) -> None:
        super().__init__(message)
        self.code = code


def exit_code(error: BaseException) -> Exit:
    """The exit code for an error of the bus."""
    if isinstance(error, CliError):
        return error.code
    return next((code for kind, code in _BY_ERROR if isinstance(error, kind)), Exit.FAILURE)
