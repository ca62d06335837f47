"""Accounts for tests, with hashes that are quick, and the headers of their tokens."""

from __future__ import annotations

from commandbus.interfaces.web import Account, Role
from commandbus.interfaces.web.hashing import hash_with

QUICK = "scrypt$ln=4,r=8,p=1"


def account(name: str, role: Role, secret: str) -> Account:
    return Account(name, role, hash_with(QUICK, secret))


def bearer(name: str, secret: str) -> dict[str, str]:
    return {"authorization": f"Bearer {name}.{secret}"}


VERA = account("vera", Role.VIEWER, "viewer-secret")
OTTO = account("otto", Role.OPERATOR, "operator-secret")
AS_VERA, AS_OTTO = bearer("vera", "viewer-secret"), bearer("otto", "operator-secret")
