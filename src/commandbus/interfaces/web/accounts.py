"""Where accounts come from: a list, or a file of `[[account]]` tables that is read again when it
changes. A removed account, a new role and a new password count from the next request on."""

from __future__ import annotations

import logging
import os
import stat
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec

from commandbus.errors import ConfigurationError
from commandbus.interfaces.web.hashing import scheme_of
from commandbus.interfaces.web.identity import Account
from commandbus.interfaces.web.refusals import Refused

logger = logging.getLogger("commandbus.dashboard")

NAME_CHARACTERS_MAX = 100
ByName = Mapping[str, Account]
Source = Callable[[], ByName]
"""The accounts of this moment."""


class _File(msgspec.Struct, forbid_unknown_fields=True):
    account: list[Account]


def fixed(accounts: Iterable[Account]) -> Source:
    """Accounts that do not change. Raises ConfigurationError for accounts that cannot be used."""
    found = _checked(accounts)
    return lambda: found


class AccountsFile:
    """The accounts of a file, which is read again when it is another one or was changed."""

    def __init__(self, path: Path) -> None:
        """Raises ConfigurationError for a file that holds no accounts or that others can read."""
        self._path = path
        self._seen = _stamp(path)
        self._accounts = _checked(read_accounts(path))
        self._problem = ""

    def __call__(self) -> ByName:
        """Raises Refused while the file cannot be used: an old state may hold what was revoked."""
        try:
            stamp = _stamp(self._path)
            if stamp is None or stamp != self._seen:
                self._accounts = _checked(read_accounts(self._path))
                self._seen, self._problem = stamp, ""
                logger.info("read the accounts of %s again", self._path)
        except ConfigurationError as error:
            if str(error) != self._problem:
                self._problem = str(error)
                logger.error("no sign-in is possible: %s", error)  # noqa: TRY400 - it says everything
            self._seen = None
            raise Refused(503, "The accounts cannot be read; the server's log says why.") from None
        return self._accounts


def read_accounts(path: Path) -> list[Account]:
    """The accounts of a file. Raises ConfigurationError that says what is wrong with it."""
    try:
        mode = path.stat().st_mode
        parsed = tomllib.loads(path.read_text(encoding="utf-8"))
        accounts = msgspec.convert(parsed, _File).account
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"{path} holds no accounts: {error}. Write [[account]] tables with name, role (viewer or "
            "operator) and secret, as `commandbus dashboard --hash-secret NAME` prints them."
        ) from None
    if os.name == "posix" and mode & (stat.S_IROTH | stat.S_IWOTH | stat.S_IWGRP):
        raise ConfigurationError(
            f"{path} has the mode {stat.S_IMODE(mode):04o}: other users can read or change the "
            f"accounts in it. Take their rights away with `chmod 600 {path}`."
        )
    if not accounts:
        raise ConfigurationError(f"{path} holds no accounts, so no sign-in is possible.")
    return accounts


def _checked(accounts: Iterable[Account]) -> ByName:
    found: dict[str, Account] = {}
    for account in accounts:
        name = account.name
        if not name or len(name) > NAME_CHARACTERS_MAX or not name.isprintable():
            raise ConfigurationError(
                f"An account's name has 1 to {NAME_CHARACTERS_MAX} printable characters, and "
                f"{name[:120]!r} has not."
            )
        if name in found:
            raise ConfigurationError(
                f"Two accounts have the name {name!r}; remove one of them, or give it another name."
            )
        try:
            scheme_of(account.secret)
        except ValueError:
            raise ConfigurationError(
                f"The secret of account {name!r} must come from hash_secret(…) or from `commandbus "
                "dashboard --hash-secret NAME`; a password in the clear is not accepted."
            ) from None
        found[name] = account
    return found


def _stamp(path: Path) -> tuple[int, ...] | None:
    """What changes with a file, without reading it."""
    try:
        seen = path.stat()
    except OSError:
        return None
    return (seen.st_mtime_ns, seen.st_ctime_ns, seen.st_size, seen.st_ino)
