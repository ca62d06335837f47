"""Forged requests: a page of another site must not act in the name of a signed-in user.

Forms carry a token that belongs to a cookie which other sites cannot read, and to the account; and a
browser's Origin has to be the dashboard's own. Programs send JSON, which no form of another site can.
"""

from __future__ import annotations

import hmac
import secrets
from urllib.parse import urlsplit

from starlette.requests import Request

from commandbus.interfaces.web.refusals import Refused
from commandbus.interfaces.web.sessions import Keys

COOKIE = "commandbus_form"
FIELD = "form_token"


class FormTokens:
    """Processes with the same keys accept each other's forms."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys

    def issue(self, request: Request, name: str) -> tuple[str, str]:
        """The value of the cookie, kept if there is one, and the token of it and of an account."""
        cookie = request.cookies.get(COOKIE, "")
        if not (20 <= len(cookie) <= 100 and cookie.isascii()):
            cookie = secrets.token_urlsafe(24)
        return cookie, self._keys.sign("form", cookie, name)

    def check(self, request: Request, token: str, name: str) -> None:
        """Raises Refused for a form that did not come from a page of this dashboard."""
        cookie = request.cookies.get(COOKIE, "")
        expected = self._keys.sign("form", cookie, name).encode()
        if not cookie or not hmac.compare_digest(expected, token.encode("utf-8", "replace")):
            raise Refused(
                403,
                "The form is too old or not from this dashboard: go back, load it again, repeat. "
                "Several processes of one app need the same secret= for create_dashboard.",
            )


def check_origin(request: Request) -> None:
    """Raises Refused when a browser says that the request comes from another site."""
    if request.headers.get("sec-fetch-site") in ("cross-site", "same-site"):
        raise Refused(403, "The request comes from another site.")
    origin = request.headers.get("origin")
    if origin is None:
        return
    try:
        place = urlsplit(origin).netloc
    except ValueError:
        raise Refused(400, f"The Origin {origin[:200]!r} is not an address.") from None
    if place != request.headers.get("host", ""):
        raise Refused(403, f"The request comes from {origin[:200]}, not from this dashboard.")
