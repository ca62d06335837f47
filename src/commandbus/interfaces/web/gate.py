"""The way of every request: who is it, may they, is it forged; and the headers of every answer."""

from __future__ import annotations

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from commandbus.interfaces.web.auth import Account, Doorkeeper, Refused, Role

BODY_BYTES_MAX = 1_048_576

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
}


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
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        await self._app(scope, receive, secured)


async def admit(doorkeeper: Doorkeeper, request: Request, role: Role) -> Account:
    """Who is asking, if they may. Raises Refused."""
    who = await doorkeeper.identify(request)
    if role is Role.OPERATOR and who.role is not Role.OPERATOR:
        raise Refused(403, f"{who.name} may look and not act; ask for the role operator.")
    return who


async def body_of(request: Request) -> bytes:
    """The body, bounded. Raises Refused."""
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > BODY_BYTES_MAX:
            raise Refused(413, f"More than {BODY_BYTES_MAX} bytes are not accepted.")
        parts.append(part)
    return b"".join(parts)
