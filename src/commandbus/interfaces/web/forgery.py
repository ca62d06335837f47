"""Forged requests: a page of somebody else must not act in the name of whoever looks at it.

Forms carry a token that belongs to a cookie which other sites cannot read; and a browser's Origin has
to be the dashboard's own. Programs send JSON, which no form of another site can.
"""

from __future__ import annotations

import hmac
import secrets
from hashlib import sha256
from urllib.parse import urlsplit

from starlette.requests import Request

from commandbus.interfaces.web.auth import Refused

COOKIE = "commandbus_form"
FIELD = "form_token"


class FormTokens:
    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)

    def issue(self, request: Request) -> tuple[str, str]:
        """The value of the cookie, kept if there is one, and the token that belongs to it."""
        cookie = request.cookies.get(COOKIE, "")
        if not (20 <= len(cookie) <= 100 and cookie.isascii()):
            cookie = secrets.token_urlsafe(24)
        return cookie, self._token(cookie)

    def check(self, request: Request, token: str) -> None:
        """Raises Refused for a form that did not come from a page of this dashboard."""
        cookie = request.cookies.get(COOKIE, "")
        if not cookie or not hmac.compare_digest(self._token(cookie).encode(), token.encode()):
            raise Refused(
                403, "The form is too old or not from this dashboard: go back, load it again, repeat."
            )

    def _token(self, cookie: str) -> str:
        return hmac.new(self._key, cookie.encode(), sha256).hexdigest()


def check_origin(request: Request) -> None:
    """Raises Refused when a browser says that the request comes from another site."""
    if request.headers.get("sec-fetch-site") in ("cross-site", "same-site"):
        raise Refused(403, "The request comes from another site.")
    origin = request.headers.get("origin")
    if origin is None:
        return
    if urlsplit(origin).netloc != request.headers.get("host", ""):
        raise Refused(403, f"The request comes from {origin[:200]}, not from this dashboard.")
