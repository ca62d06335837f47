"""Without accounts: requests of this machine, and links that let one browser in.

A loopback address alone proves little: a proxy on this machine has one for every client of its own,
and so has every other user and every program that fetches addresses. So requests that a proxy marked
are refused, and a dashboard with a terminal lets in only the browser that opens a link printed there.
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
from collections.abc import Callable

from starlette.requests import HTTPConnection

from commandbus.interfaces.web.refusals import Refused

FORWARDING = frozenset(
    ("forwarded", "via", "x-real-ip", "x-client-ip", "x-cluster-client-ip", "x-original-host",
     "x-original-url", "x-originating-ip", "true-client-ip", "cf-connecting-ip", "fly-client-ip",
     "x-envoy-external-address", "x-proxyuser-ip", "client-ip")
)  # fmt: skip
FORWARDING_PREFIXES = ("x-forwarded", "x-original-forwarded")


class OneTimeLinks:
    """Tokens for links. Each works once; then the next one is announced."""

    def __init__(self, announce: Callable[[str], None]) -> None:
        self._announce = announce
        self._token = ""
        self._renew()

    def use(self, token: str) -> bool:
        """Whether a token is the announced one, which is used up by this."""
        if not hmac.compare_digest(token.encode("utf-8", "replace"), self._token.encode()):
            return False
        self._renew()
        return True

    def _renew(self) -> None:
        self._token = secrets.token_urlsafe(32)
        self._announce(self._token)


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
    """Raises Refused for a request that does not, or not certainly, come from this machine."""
    for name in request.headers:
        if name in FORWARDING or name.startswith(FORWARDING_PREFIXES):
            raise Refused(
                403,
                f"The request came through a proxy ({name}). Without accounts the dashboard answers "
                "only to its own machine; configure accounts to serve it behind a proxy.",
            )
    if request.client is None or not is_loopback(request.client.host):
        raise Refused(403, "Without accounts the dashboard answers only to its own machine.")
    host = request.headers.get("host", "")
    name, _, port = host.rpartition(":")
    if not is_loopback(name if port.isdecimal() else host):
        raise Refused(
            403,
            "Without accounts the dashboard answers only as localhost; configure accounts to serve it "
            "under another name.",
        )
