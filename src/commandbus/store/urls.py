"""URLs of stores as they may be shown: in logs, errors, pages and records.

Secrets come in many places of a URL (`user:password@`, `?password=`, `?sslpassword=`), and a character
that should have been escaped moves them to others. So nothing is taken out of a URL: what is known to
be harmless is kept, and the rest is an ellipsis.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any
from urllib.parse import SplitResult, quote, unquote, urlencode

SCHEMES = ("memory", "sqlite", "postgresql", "postgres")
OPTIONS = frozenset(
    {
        "schema", "pool_size", "pool_timeout", "notify", "prepare", "pooler", "transport",
        "synchronous", "user", "host", "hostaddr", "port", "dbname",
    }
)  # fmt: skip
"""Those whose values are shown: the options of the bus, and libpq's for what is shown anyway."""

_HOST = r"(?:\[[0-9A-Fa-f:.%]+\]|[\w.%~-]*)(?::\d{0,5})?"
_AUTHORITY = re.compile(
    rf"(?:(?P<user>[\w.%+~-]*)(?P<secret>:[^@]*)?@)?(?P<hosts>{_HOST}(?:,{_HOST})*)"
)
_DATABASE = re.compile(r"(?:/[\w.%+~$-]*)?")
_VALUE = re.compile(r"(?:[\w.,/+~-]|%2F)*", re.IGNORECASE)
_HIDDEN = "…"


_DRIVER = re.compile(r"\A(postgresql|postgres|sqlite)\+[a-z0-9_]+(?=://)")


def without_driver(url: Any) -> Any:
    """A URL as SQLAlchemy writes it, such as postgresql+psycopg://…, without the name of the driver;
    anything else as it is."""
    return _DRIVER.sub(r"\1", url, count=1) if isinstance(url, str) else url


def with_query(parts: SplitResult, query: Iterable[tuple[str, Any]]) -> str:
    """A URL with another query. `urlunsplit` would take the slashes away where no host is named, as in
    postgresql:///shop, which is the server on this machine."""
    encoded = urlencode(list(query), quote_via=quote)
    rest = f"?{encoded}" if encoded else ""
    rest += f"#{parts.fragment}" if parts.fragment else ""
    slashes = "//" if parts.path[:1] in ("", "/") else ""  # else it is no URL, and its text no host
    return f"{parts.scheme}:{slashes}{parts.netloc}{parts.path}{rest}"


def shown_url(url: object) -> str:
    """A URL with its scheme, user, hosts, ports, path and options of the bus, and nothing else of it.
    Never raises."""
    scheme, separator, rest = str(url).partition("://")
    if not separator or not re.fullmatch(r"[a-z][a-z0-9+.-]{0,30}", scheme):
        return _HIDDEN
    parts = re.fullmatch(r"([^/?#]*)([^?#]*)(?:\?([^#@]*))?", rest)
    authority = parts and _AUTHORITY.fullmatch(parts[1])
    if scheme not in SCHEMES or parts is None or authority is None:
        return f"{scheme}://{_HIDDEN}"
    if not (parts[2].isprintable() if scheme == "sqlite" else _DATABASE.fullmatch(parts[2])):
        return f"{scheme}://{_HIDDEN}"
    user, secret = authority["user"], f":{_HIDDEN}" if authority["secret"] else ""
    login = "" if user is None else f"{user}{secret}@"
    return f"{scheme}://{login}{authority['hosts']}{parts[2]}{_shown_query(parts[3])}"


def _shown_query(query: str | None) -> str:
    if not query:
        return ""
    parts: list[str] = []
    for part in query.split("&"):
        key, _, value = part.partition("=")
        harmless = unquote(key) in OPTIONS and _VALUE.fullmatch(value)
        parts.append(part if harmless else _HIDDEN)
    return "?" + "&".join(dict.fromkeys(parts))
