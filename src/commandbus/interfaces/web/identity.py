"""Accounts and roles."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import StrEnum

import msgspec
from starlette.requests import HTTPConnection


class Role(StrEnum):
    """A viewer sees everything and changes nothing; an operator acts."""

    VIEWER = "viewer"
    OPERATOR = "operator"


class Account(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A person or a program that may use the dashboard. `secret` is what `hash_secret` returned: of a
    password for the sign-in page, or of a token for `Authorization: Bearer NAME.TOKEN`."""

    name: str
    role: Role = Role.VIEWER
    secret: str = ""


LOCAL = Account("local", Role.OPERATOR)
"""The identity of every request while no accounts are configured."""

Authenticate = Callable[[HTTPConnection], Awaitable[Account | None]]
"""For apps with a sign-in of their own: the account of a request, or None."""
