"""Accounts from a file: `[[account]]` tables of TOML with a name, a role and a hashed secret."""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec

from commandbus.errors import ConfigurationError
from commandbus.interfaces.web.auth import Account


class _File(msgspec.Struct, forbid_unknown_fields=True):
    account: list[Account]


def read_accounts(path: Path) -> list[Account]:
    """The accounts of a file. Raises ConfigurationError that says what is wrong with it."""
    try:
        parsed = tomllib.loads(path.read_text(encoding="utf-8"))
        accounts = msgspec.convert(parsed, _File).account
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"{path} holds no accounts: {error}. Write [[account]] tables with name, role (viewer or "
            "operator) and secret, as `commandbus dashboard --hash-secret` prints it."
        ) from None
    if not accounts:
        raise ConfigurationError(f"{path} holds no accounts, so nobody could log in.")
    return accounts
