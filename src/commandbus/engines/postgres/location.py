"""Where the bus lives: from a URL to connection settings and the name of a schema.

Options of ours in the URL's query, all optional:

    schema=name        several buses in one database; default `commandbus`
    pool_size=10       connections for senders and transactional handlers, in each runtime; not fewer
                       than a worker has slots, and if left out, as many. Those of the workers' own
                       and one that listens come on top
    pool_timeout=30    seconds to wait for a free connection
    notify=on|off      wake-ups by LISTEN and NOTIFY; off: workers look at their poll interval
    prepare=on|off     prepared statements; off for poolers that cannot keep them
    transport=pgmq     commands in queues of PGMQ, as the argument `transport` says
    pooler=on|off      behind a pooler in transaction mode: means prepare=off, notify=off and no
                       start-up options, which such poolers refuse
    listen_url=URL     a direct connection to the same database, for wake-ups alone; as the argument
                       `listen_url` says

Everything else in the query is libpq's.
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import msgspec
from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import Conninfo

from commandbus.errors import ConfigurationError
from commandbus.settings import STATEMENT_SECONDS
from commandbus.store.urls import shown_url, with_query

DEFAULT_SCHEMA = "commandbus"

_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,39}\Z")
_OPTIONS = (
    "schema", "pool_size", "pool_timeout", "notify", "prepare", "pooler", "transport", "listen_url",
)  # fmt: skip
_SWITCH = {"on": True, "true": True, "1": True, "off": False, "false": False, "0": False}

# A plan is made once per connection and statement, whatever the statistics say: the statements are
# written so that there is only one good plan, by index. Nothing is set later, so nothing leaks.
_STARTUP = (
    f"-c statement_timeout={STATEMENT_SECONDS * 1000:.0f}",
    "-c idle_in_transaction_session_timeout=60000",
    r"-c default_transaction_isolation=read\ committed",
    "-c plan_cache_mode=force_generic_plan",
    "-c enable_seqscan=off",
    "-c enable_bitmapscan=off",
    "-c jit=off",
)

_DEFAULTS: dict[str, Any] = {
    "application_name": "commandbus",
    "client_encoding": "utf8",
    "connect_timeout": 10,
    # A demoted primary accepts connections and refuses writes; it must not look healthy.
    "target_session_attrs": "read-write",
    # A peer that vanished without closing its connection is noticed within half a minute.
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}


class Location(msgspec.Struct, frozen=True):
    """A parsed URL."""

    conninfo: str
    """For libpq; contains the password, so it must not be shown."""
    schema: str = DEFAULT_SCHEMA
    pool_size: int | None = None
    """None means: as many as the workers need."""
    pool_timeout: float = 30.0
    notify: bool = True
    prepare: bool = True
    pooler: bool = False
    listen_conninfo: str = ""
    """For the connection that listens, where it is another one."""

    def __repr__(self) -> str:
        return f"Location(schema={self.schema!r}, …)"


def parse(url: str, listen_url: str | None = None) -> Location:
    """The location that a URL names, or ConfigurationError saying what is wrong with it. `listen_url`
    is the direct way to the same database, if wake-ups are to come by another one."""
    options, given = _split(url)
    listen_url = listen_url or options.get("listen_url")
    pooler = _switch(options, "pooler", default=False)
    notify = _switch(options, "notify", default=not pooler or bool(listen_url))
    if pooler and notify and not listen_url:
        raise ConfigurationError(
            "pooler=on and notify=on in the URL exclude each other: a pooler in transaction mode "
            "delivers no notifications. Leave one of them out, or give listen_url=, the URL of a "
            "direct connection to the same database."
        )
    if listen_url and not notify:
        raise ConfigurationError(
            "listen_url is where workers hear of new work, and notify=off in the URL says that they do "
            "not; leave one of them out."
        )
    return Location(
        conninfo=make_conninfo("", **_settings(given, startup=not pooler)),
        listen_conninfo=_listening(listen_url) if listen_url else "",
        schema=check_schema(options.get("schema", DEFAULT_SCHEMA)),
        pool_size=_pool_size(options["pool_size"]) if "pool_size" in options else None,
        pool_timeout=_pool_timeout(options.get("pool_timeout", "30")),
        notify=notify,
        prepare=_switch(options, "prepare", default=not pooler),
        pooler=pooler,
    )


def _settings(given: dict[str, Any], *, startup: bool) -> dict[str, Any]:
    settings = _DEFAULTS | given
    if startup:
        settings["options"] = " ".join([*_STARTUP, str(given.get("options") or "")]).strip()
    return settings


def _listening(url: str) -> str:
    options, given = _split(url)
    if options:
        raise ConfigurationError(
            f"listen_url has the option {min(options)}=, which belongs into the URL of the bus; "
            "listen_url names nothing but a connection."
        )
    return make_conninfo("", **_settings(given, startup=True))


def place_of(location: Location) -> str:
    """The server, the database and the schema."""
    given = conninfo_to_dict(location.conninfo)
    named = [f"{key}={given[key]}" for key in ("host", "hostaddr", "port", "dbname") if given.get(key)]
    return " ".join([*named, f"schema={location.schema}"])


def plain_conninfo(url: str, statement_seconds: float) -> str:
    """For connections that are not the bus's: without its options, but with a statement timeout."""
    _, given = _split(url)
    timeout = f"-c statement_timeout={int(statement_seconds * 1000)}"
    options = f"{timeout} {given.get('options') or ''}".strip()
    return make_conninfo("", **({"connect_timeout": 10} | given | {"options": options}))


def _split(url: str) -> tuple[dict[str, str], dict[str, Any]]:
    """Our options of a URL, and libpq's. Errors of libpq and urllib quote parts of a URL, so they are
    neither repeated nor chained."""
    found, problem = _try_to_split(url)
    if problem is None:
        return found
    raise ConfigurationError(
        f"The PostgreSQL URL {shown_url(url)!r} cannot be understood: {problem} Write "
        "postgresql://user:password@host:5432/database?option=value, and all but letters, digits and "
        "-._~ as %XX (@ is %40, : is %3A, / is %2F, % is %25)."
    )


def _try_to_split(url: str) -> tuple[tuple[dict[str, str], dict[str, Any]], str | None]:
    options: dict[str, str] = {}
    rest: list[tuple[str, str]] = []
    try:
        parts = urlsplit(url)
        for key, value in parse_qsl(parts.query, keep_blank_values=True):
            if key in _OPTIONS:
                options[key] = value
            else:
                rest.append((key, value))
        problem = _misplaced(parts.netloc, parts.path, rest)
        if problem is not None:
            return (options, {}), problem
        clean = with_query(parts._replace(scheme="postgresql"), rest)
        return (options, dict(conninfo_to_dict(clean))), None
    except (ProgrammingError, ValueError):
        return (options, {}), "an address or an escape such as %2Z is malformed."


def _misplaced(netloc: str, path: str, rest: list[tuple[str, str]]) -> str | None:
    """What libpq would take for a host or a port, and name in its errors, though it is part of a
    password with a character that is not escaped; or for an option, which it would name, too."""
    hosts = netloc.rpartition("@")[2]
    ports = [re.sub(r"^\[[^]]*\]|^[^:]*", "", host) for host in hosts.split(",")]
    numbers = all(re.fullmatch(r"(:\d*)?", port) for port in ports)
    if netloc.count("@") > 1 or "@" in path or not numbers:
        return "a character of its user or password is not escaped, or a port is no number."
    known = {"ssl", *(option.keyword.decode() for option in Conninfo.get_defaults())}
    for key, _ in rest:
        if key not in known:
            near = get_close_matches(key, sorted(known | set(_OPTIONS)), 1, 0.7)
            return f"it has an unknown option{f' (is it {near[0]}?)' if near else ''}."
    return None


def with_statement_timeout(location: Location, seconds: float) -> Location:
    """The same place with a shorter statement timeout. Behind a pooler nothing can be set."""
    if location.pooler:
        return location
    given = conninfo_to_dict(location.conninfo)
    options = f"{given.get('options') or ''} -c statement_timeout={max(1, int(seconds * 1000))}"
    conninfo = make_conninfo("", **(given | {"options": options.strip()}))
    return msgspec.structs.replace(location, conninfo=conninfo)


def check_schema(name: str) -> str:
    """A schema's name from an allow-list: it becomes part of every statement."""
    if not _SCHEMA.match(name):
        raise ConfigurationError(
            f"schema={name!r} is not a name that the bus accepts: use up to 40 lower-case letters, "
            "digits and underscores, beginning with a letter or underscore."
        )
    return name


def _switch(options: dict[str, str], name: str, *, default: bool) -> bool:
    value = options.get(name)
    if value is None:
        return default
    if value.lower() not in _SWITCH:
        raise ConfigurationError(f"{name}={value!r} in the URL is neither on nor off.")
    return _SWITCH[value.lower()]


def _pool_size(value: str) -> int:
    if not value.isdecimal() or not 1 <= int(value) <= 1_000:
        raise ConfigurationError(
            f"pool_size={value!r} in the URL must be a whole number from 1 to 1000."
        )
    return int(value)


def _pool_timeout(value: str) -> float:
    try:
        seconds = float(value)
    except ValueError:
        seconds = 0.0
    if not 0.01 <= seconds <= 3600:
        raise ConfigurationError(
            f"pool_timeout={value!r} in the URL must be a number of seconds from 0.01 to 3600."
        )
    return seconds
