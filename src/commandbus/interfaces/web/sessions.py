"""Sessions of browsers: signed cookies that expire, and that end with a change of their account.

A cookie is signed and not stored, so every process of an app with the same secret accepts it. It names
the account and holds a digest of its secret: removing it or changing its password ends its sessions.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
import secrets
import time
from collections.abc import Callable
from hashlib import sha256

import msgspec
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from commandbus.errors import ConfigurationError
from commandbus.interfaces.web.identity import Account

SESSION_SECONDS = 12 * 3_600
SECRET_CHARACTERS_MIN = 32
COOKIE_CHARACTERS_MAX = 1_000
_PORT = re.compile(r":(\d{1,5})$")


class Keys:
    """Keys for signatures, from one secret: given, or else made for this process."""

    def __init__(self, secret: str | None = None) -> None:
        if secret is not None and len(secret) < SECRET_CHARACTERS_MIN:
            raise ConfigurationError(
                f"secret= needs at least {SECRET_CHARACTERS_MIN} characters, not {len(secret)}; "
                "python -c 'import secrets; print(secrets.token_urlsafe(32))' makes one."
            )
        self._root = secret.encode() if secret is not None else secrets.token_bytes(32)

    def sign(self, purpose: str, *parts: str) -> str:
        """A signature over parts, which differs for each purpose."""
        message = msgspec.json.encode([purpose, *parts])
        return hmac.new(self._root, message, sha256).hexdigest()


class _Session(msgspec.Struct, array_like=True):
    session_id: str
    name: str
    seal: str
    expires_at: int


class Sessions:
    def __init__(self, keys: Keys, clock: Callable[[], float] = time.time) -> None:
        self._keys = keys
        self._clock = clock
        self._ended: dict[str, int] = {}

    def begin(self, request: Request, response: Response, account: Account, path: str) -> None:
        expires = int(self._clock()) + SESSION_SECONDS
        session = _Session(secrets.token_urlsafe(16), account.name, self._seal(account), expires)
        body = base64.urlsafe_b64encode(msgspec.json.encode(session)).decode()
        cookie = f"{body}.{self._keys.sign('session', body)}"
        response.set_cookie(cookie_name(request), cookie, max_age=SESSION_SECONDS, path=path,
                            httponly=True, samesite="strict",
                            secure=request.url.scheme == "https")  # fmt: skip

    def find(
        self, request: HTTPConnection, account_of: Callable[[str], Account | None]
    ) -> Account | None:
        """The account of a request's cookie, if the session has not ended and the account has not
        changed."""
        session = self._read(request)
        if session is None or session.expires_at <= self._clock():
            return None
        account = account_of(session.name)
        if account is None or not hmac.compare_digest(self._seal(account), session.seal):
            return None
        return account

    def end(self, request: Request, response: Response, path: str) -> None:
        """Sign out: this process no longer accepts the cookie, and the browser forgets it."""
        now = int(self._clock())
        session = self._read(request)
        if session is not None:
            self._ended = {key: until for key, until in self._ended.items() if until > now}
            self._ended[session.session_id] = session.expires_at
        response.delete_cookie(cookie_name(request), path=path, httponly=True, samesite="strict")
        # The cookies of an app around the dashboard are not ours to clear.
        response.headers["clear-site-data"] = '"cache"'

    def session_of(self, request: HTTPConnection) -> tuple[str, float] | None:
        """The id of a request's session, and for how many seconds more it would be valid."""
        session = self._read(request)
        return None if session is None else (session.session_id, session.expires_at - self._clock())

    def _read(self, request: HTTPConnection) -> _Session | None:
        cookie = request.cookies.get(cookie_name(request), "")
        body, _, signature = cookie.partition(".")
        if not cookie.isascii() or len(cookie) > COOKIE_CHARACTERS_MAX:
            return None
        if not hmac.compare_digest(self._keys.sign("session", body), signature):
            return None
        try:
            session = msgspec.json.decode(base64.urlsafe_b64decode(body), type=_Session)
        except (binascii.Error, msgspec.DecodeError):
            return None
        return None if session.session_id in self._ended else session

    def _seal(self, account: Account) -> str:
        return self._keys.sign("account", account.name, account.secret)[:32]


def cookie_name(request: HTTPConnection) -> str:
    """Browsers keep cookies by host and not by port, and several dashboards may run on a machine."""
    port = _PORT.search(request.headers.get("host", ""))
    return f"commandbus_session_{port[1]}" if port else "commandbus_session"
