"""Checks of every request: identity, role and size; and the headers of every answer."""

from __future__ import annotations

import asyncio

from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from commandbus.interfaces.web.auth import Authenticator
from commandbus.interfaces.web.identity import Account, Role
from commandbus.interfaces.web.refusals import Refused

BODY_BYTES_MAX = 1_048_576
BODY_SECONDS_MAX = 20.0

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}
TRANSPORT_SECURITY = "max-age=31536000"
"""For answers over TLS: a year without plain HTTP, for this host only."""


def secure(headers: MutableHeaders, scheme: str) -> None:
    for name, value in HEADERS.items():
        headers[name] = value
    if scheme == "https":
        headers.setdefault("strict-transport-security", TRANSPORT_SECURITY)
    headers.setdefault("cache-control", "no-store")


class SecureHeaders:
    """Puts the same headers on every answer, errors included."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def secured(message: Message) -> None:
            if message["type"] == "http.response.start":
                secure(MutableHeaders(scope=message), scope["scheme"])
            await send(message)

        await self._app(scope, receive, secured)


async def admit(authenticator: Authenticator, request: Request, role: Role) -> Account:
    """The account of a request, if its role allows it. Raises Refused."""
    who = await authenticator.identify(request)
    if role is Role.OPERATOR and who.role is not Role.OPERATOR:
        raise Refused(
            403, f"{who.name} may look and not act: acting needs the role operator in the accounts."
        )
    return who


async def body_of(request: Request, bytes_max: int = BODY_BYTES_MAX) -> bytes:
    """The body, bounded in size and time. Raises Refused."""
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_SECONDS_MAX):
            async for part in request.stream():
                size += len(part)
                if size > bytes_max:
                    raise Refused(413, f"More than {bytes_max} bytes are not accepted.")
                parts.append(part)
    except TimeoutError:
        raise Refused(408, f"The body took more than {BODY_SECONDS_MAX:.0f} s to arrive.") from None
    except ClientDisconnect:
        raise Refused(400, "The body ended early.") from None
    return b"".join(parts)
