"""Who is asking: accounts with roles, by password or token; and nobody from afar without them.

Without accounts only this machine may look: the client's address and the name it asked for must be
loopback, so that neither another machine nor a web page that rebinds its name gets in.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import ipaddress
import secrets
from collections.abc import Awaitable, Callable, Iterable
from enum import StrEnum

import msgspec
from starlette.requests import HTTPConnection

from commandbus.errors import ConfigurationError

_SCRYPT = {"n": 2**14, "r": 8, "p": 1, "maxmem": 64 * 1024 * 1024}
_KNOWN_MAX = 1_000


class Role(StrEnum):
    """A viewer sees everything and changes nothing; an operator acts."""

    VIEWER = "viewer"
    OPERATOR = "operator"


class Account(msgspec.Struct, frozen=True):
    """Somebody who may use the dashboard. `secret` is what `hash_secret` returned: of a password for
    the browser's dialogue, or of a token for `Authorization: Bearer`."""

    name: str
    role: Role = Role.VIEWER
    secret: str = ""


LOCAL = Account("local", Role.OPERATOR)
"""Whoever sits at this machine, while no accounts are configured."""

Authenticate = Callable[[HTTPConnection], Awaitable[Account | None]]
"""For apps with a login of their own: who a request is from, or None."""


class Refused(Exception):  # noqa: N818 - an answer, not a mistake
    """The request is not served: 401 for somebody unknown, 403 for somebody who may not."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


def hash_secret(secret: str) -> str:
    """What to keep of a password or token: it proves the secret and does not tell it."""
    if len(secret) < 8:
        raise ConfigurationError("A password or token needs at least 8 characters.")
    salt = secrets.token_bytes(16)
    return f"scrypt${salt.hex()}${hashlib.scrypt(secret.encode(), salt=salt, **_SCRYPT).hex()}"


def _proves(secret: str, kept: str) -> bool:
    try:
        scheme, salt, digest = kept.split("$")
        if scheme != "scrypt":
            return False
        found = hashlib.scrypt(secret.encode(), salt=bytes.fromhex(salt), **_SCRYPT)
        return hmac.compare_digest(found, bytes.fromhex(digest))
    except ValueError:
        return False


class Doorkeeper:
    """Finds out who is asking."""

    def __init__(self, accounts: Iterable[Account], authenticate: Authenticate | None) -> None:
        self._accounts = list(accounts)
        self._authenticate = authenticate
        self._known: dict[bytes, Account] = {}
        for account in self._accounts:
            if not account.secret.startswith("scrypt$"):
                raise ConfigurationError(
                    f"The secret of account {account.name!r} must come from hash_secret(…); a password "
                    "in the clear is not accepted."
                )

    @property
    def is_open(self) -> bool:
        """Whether nobody can be asked who they are, so that only this machine is served."""
        return not self._accounts and self._authenticate is None

    @property
    def challenge(self) -> str:
        """What a browser is told with a 401, so that it asks for name and password."""
        return 'Basic realm="Command Bus", charset="UTF-8"' if self._accounts else "Bearer"

    async def identify(self, request: HTTPConnection) -> Account:
        """Who a request is from. Raises Refused."""
        if self.is_open:
            check_local(request)
            return LOCAL
        if self._authenticate is not None:
            account = await self._authenticate(request)
            if account is None:
                raise Refused(401, "Log in first.")
            return account
        header = request.headers.get("authorization", "")
        # Proving a secret takes long on purpose, so it is done beside the loop, and what was proven is
        # remembered by its digest.
        digest = hashlib.sha256(header.encode()).digest()
        account = self._known.get(digest)
        if account is None and (account := await asyncio.to_thread(self._by_header, header)):
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            self._known[digest] = account
        if account is None:
            raise Refused(401, "A name and password, or a token, is needed.")
        return account

    def _by_header(self, header: str) -> Account | None:
        name, secret = _credentials(header)
        if not secret:
            return None
        for account in self._accounts:
            if name in (None, account.name) and _proves(secret, account.secret):
                return account
        return None


def _credentials(header: str) -> tuple[str | None, str]:
    """Name and password of Basic, or None and the token of Bearer."""
    scheme, _, rest = header.partition(" ")
    match scheme.lower():
        case "bearer":
            return None, rest.strip()
        case "basic":
            try:
                decoded = base64.b64decode(rest.strip(), validate=True).decode()
            except (binascii.Error, UnicodeDecodeError):
                return "", ""
            name, _, secret = decoded.partition(":")
            return name, secret
        case _:
            return "", ""


def is_loopback(host: str) -> bool:
    """Whether a host's name or address means this machine."""
    name = host.strip("[]").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def check_local(request: HTTPConnection) -> None:
    client = request.client.host if request.client else ""
    host = request.headers.get("host", "")
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
    if client and not is_loopback(client):
        raise Refused(403, "Without accounts the dashboard answers only to its own machine.")
    if not is_loopback(name):
        raise Refused(
            403,
            "Without accounts the dashboard answers only as localhost; configure accounts to serve it "
            "under another name.",
        )
