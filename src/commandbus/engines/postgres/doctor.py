"""Checks of a PostgreSQL database for `commandbus db doctor`, each with its remedy."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import psycopg
from psycopg import RawCursor, sql
from psycopg.conninfo import conninfo_to_dict

from commandbus.engines.postgres import location as locations
from commandbus.engines.postgres import schema as schemas
from commandbus.engines.postgres.failures import translate
from commandbus.engines.postgres.location import Location
from commandbus.engines.postgres.pgmq import installation
from commandbus.engines.postgres.pgmq.queues import PACKAGE
from commandbus.engines.postgres.roles import ROLES, role_named
from commandbus.engines.postgres.statements import channel_of, in_schema
from commandbus.errors import CommandBusError
from commandbus.store.administration import OVERDUE_SECONDS, Finding, Level, overdue_leases
from commandbus.store.sql_files import load

OLDEST = 15
SNAPSHOT_SECONDS = 300
DEAD_ROWS = 200_000
CLOCK_SECONDS = 1.0
NOTIFY_SHARE = 0.5
CONNECTION_SHARE = 0.8
LISTEN_SECONDS = 3.0
STRANGERS_SHOWN = 5

_OK, _WARNING, _ERROR = Level.OK, Level.WARNING, Level.ERROR


def doctor(dsn: str, schema: str | None = None) -> list[Finding]:
    """Everything that could hurt: version, schema, durability, old snapshots, dead rows, the queue of
    notifications, clocks, connections, whether LISTEN delivers and workers listen, encryption, which
    other roles have rights, and which can create functions that statements of this role would call."""
    place = locations.parse(dsn)
    if schema is not None:
        place = msgspec.structs.replace(place, schema=locations.check_schema(schema))
    try:
        connection = psycopg.connect(place.conninfo, autocommit=True, cursor_factory=RawCursor)
    except psycopg.Error as error:
        return [Finding("server", _ERROR, "not reachable", str(translate(error)))]
    with connection:
        return list(_Examination(connection, place, dsn).findings())


class _Examination:
    def __init__(self, connection: psycopg.Connection[Any], place: Location, dsn: str) -> None:
        self._connection = connection
        self._place = place
        self._dsn = dsn
        self._sql = load("commandbus.engines.postgres.sql", "doctor.sql")

    def findings(self) -> Iterator[Finding]:
        looks: tuple[tuple[str, Callable[[], Finding]], ...] = (
            ("server", self._version),
            ("schema", self._schema),
            ("durability", self._durability),
            ("snapshots", self._snapshots),
            ("hot tables", self._hot_tables),
            ("autovacuum", self._autovacuum),
            ("sequence", self._sequence),
            ("leases", self._leases),
            ("notifications", self._notifications),
            ("clock", self._clock),
            ("connections", self._connections),
            ("listen", self._listen),
            ("listeners", self._listeners),
            ("encryption", self._encryption),
            ("access", self._access),
            ("search path", self._search_path),
            ("rights", self._rights),
            ("pgmq", self._pgmq),
        )
        for subject, look in looks:
            try:
                yield look()
            except psycopg.Error as error:
                yield Finding(subject, _ERROR, "cannot be examined", str(translate(error)))

    def _row(self, name: str, *params: Any) -> Any:
        query = in_schema(getattr(self._sql, name), self._place.schema)
        return self._connection.execute(query.encode(), params or None).fetchone()

    def _version(self) -> Finding:
        number = self._connection.info.server_version
        value = f"PostgreSQL {number // 10_000}.{number % 10_000}"
        if number // 10_000 >= OLDEST:
            return Finding("server", _OK, value)
        return Finding("server", _ERROR, value, f"The bus needs PostgreSQL {OLDEST} or newer.")

    def _schema(self) -> Finding:
        try:
            newest = schemas.verify(self._dsn, self._place.schema)[-1]
        except CommandBusError as error:
            return Finding("schema", _ERROR, f"{self._place.schema}, not usable", str(error))
        (size,) = self._row("size", self._place.schema)
        return Finding("schema", _OK, f"{self._place.schema}, {newest}, {size}")

    def _durability(self) -> Finding:
        fsync, commit, standbys, in_recovery = self._row("durability")
        value = (
            f"fsync={fsync}, synchronous_commit={commit}, synchronous standbys: {standbys or 'none'}"
        )
        if in_recovery:
            return Finding("durability", _ERROR, value, "This is a standby; connect to the primary.")
        if fsync != "on" or commit == "off":
            advice = "Acknowledged commands can be lost in a crash; switch both on."
            return Finding("durability", _WARNING, value, advice)
        if not standbys:
            value += "; a fail-over to an asynchronous standby can lose the newest commands"
        return Finding("durability", _OK, value)

    def _snapshots(self) -> Finding:
        row = self._row("oldest_snapshot")
        if row is None:
            return Finding("snapshots", _OK, "none is held")
        who, seconds = row
        value = f"{who}, for {seconds:,.0f} s"
        if seconds < SNAPSHOT_SECONDS:
            return Finding("snapshots", _OK, value)
        advice = "It keeps vacuum from removing dead rows, and claims get slower; end it."
        return Finding("snapshots", _WARNING, value, advice)

    def _hot_tables(self) -> Finding:
        rows = self._connection.execute(
            in_schema(self._sql.hot_tables, self._place.schema).encode(), [self._place.schema]
        ).fetchall()
        value = "; ".join(
            f"{name}: {live:,} live, {dead:,} dead, {last}" for name, live, dead, last in rows
        )
        if any(dead > max(DEAD_ROWS, 5 * live) for _, live, dead, _ in rows):
            advice = "Vacuum does not keep up: look at snapshots above, and at autovacuum's settings."
            return Finding("hot tables", _WARNING, value, advice)
        return Finding("hot tables", _OK, value)

    def _autovacuum(self) -> Finding:
        (mode,) = self._row("autovacuum")
        if mode == "on":
            return Finding("autovacuum", _OK, "on")
        return Finding("autovacuum", _ERROR, mode, "The hot tables live from it: switch it on.")

    def _sequence(self) -> Finding:
        (last,) = self._row("sequence")
        return Finding("sequence", _OK, f"{last or 0:,} of 9.2 quintillion commands")

    def _leases(self) -> Finding:
        return overdue_leases(*self._row("overdue_leases", OVERDUE_SECONDS))

    def _notifications(self) -> Finding:
        (share,) = self._row("notifications")
        value = f"{share:.1%} of the queue is in use"
        if share < NOTIFY_SHARE:
            return Finding("notifications", _OK, value)
        advice = "A session listens and does not read; when the queue is full, commits fail. End it."
        return Finding("notifications", _WARNING, value, advice)

    def _clock(self) -> Finding:
        began = time.time()
        (server,) = self._row("clock")
        offset = float(server) - (began + time.time()) / 2
        value = f"the server is {abs(offset) * 1000:.0f} ms {'ahead of' if offset > 0 else 'behind'} us"
        if abs(offset) < CLOCK_SECONDS:
            return Finding("clock", _OK, value)
        advice = "Only the server's clock counts, so nothing breaks; but times in logs will not fit."
        return Finding("clock", _WARNING, value, advice)

    def _connections(self) -> Finding:
        used, allowed, ours = self._row("connections")
        value = f"{used} of {allowed} in use, {ours} of them by buses"
        if used < CONNECTION_SHARE * allowed:
            return Finding("connections", _OK, value)
        advice = "Lower pool_size in the URLs, or raise max_connections."
        return Finding("connections", _WARNING, value, advice)

    def _pgmq(self) -> Finding:
        installed = installation.look(self._connection, self._place)
        if installed is None:
            return Finding("pgmq", _OK, 'not installed; only transport="pgmq" needs it')
        if not installed.is_ready:
            advice = 'For transport="pgmq", run `commandbus db install-pgmq`.'
            return Finding("pgmq", _OK, f"{installed}; not used by the bus", advice)
        usage = load(PACKAGE, "installation.sql").usage
        row = self._connection.execute(in_schema(usage, self._place.schema).encode()).fetchone()
        bound, queues, refused = row or (0, 0, 0)
        value = f"{installed}; {bound} of {queues} queues are bound to domains"
        if not refused:
            return Finding("pgmq", _OK, value)
        advice = (
            "They are in the archives of their queues, with the reason in the header "
            "commandbus_refused: fix their sender."
        )
        return Finding("pgmq", _WARNING, f"{value}; {refused} messages were no commands", advice)

    def _listen(self) -> Finding:
        """Notify ourselves from a second connection, as a sender would."""
        if not self._place.notify:
            return Finding("listen", _OK, "switched off in the URL; workers look at their interval")
        channel = channel_of(self._place.schema)
        self._connection.execute(sql.SQL("listen {}").format(sql.Identifier(channel)))
        token = f"doctor doctor {time.time_ns()}"
        with psycopg.connect(self._place.conninfo, autocommit=True) as other:
            began = time.perf_counter()
            other.execute("select pg_notify(%s, %s)", (channel, token))
            for heard in self._connection.notifies(timeout=LISTEN_SECONDS):
                if heard.payload == token:
                    took = (time.perf_counter() - began) * 1000
                    return Finding("listen", _OK, f"delivered in {took:.1f} ms")
        advice = (
            "There seems to be a pooler in transaction mode between us: connect directly, or add "
            "pooler=on to the URL and accept that idle workers look at their poll interval only."
        )
        return Finding("listen", _ERROR, f"not delivered within {LISTEN_SECONDS:g} s", advice)

    def _listeners(self) -> Finding:
        processes, listening = self._row("listeners")
        plural = "" if processes == 1 else "es"
        value = f"{listening} for {processes} process{plural} with workers"
        if not self._place.notify or listening >= processes:
            return Finding("listeners", _OK, value)
        advice = (
            "A worker process hears no wake-ups: see its health and its log. One that was killed "
            "is counted for five more minutes, one with notify=off or pooler=on always."
        )
        return Finding("listeners", _WARNING, value, advice)

    def _encryption(self) -> Finding:
        encrypted, version, cipher, is_socket, is_loopback = self._row("encryption")
        if encrypted:
            mode = conninfo_to_dict(self._place.conninfo).get("sslmode", "prefer")
            value = f"{version}, {cipher}"
            if mode in ("verify-full", "verify-ca"):
                return Finding("encryption", _OK, value)
            advice = "Add sslmode=verify-full and sslrootcert= to the URL, to know the server."
            return Finding(
                "encryption", _OK, f"{value}; its certificate is not checked (sslmode={mode})", advice
            )
        if is_socket or is_loopback:
            return Finding("encryption", _OK, "none, on this machine only")
        advice = "Passwords and payloads can be read on the way: add sslmode=verify-full to the URL."
        return Finding("encryption", _WARNING, "none", advice)

    def _access(self) -> Finding:
        database, public, strangers = self._row("access", self._place.schema)
        who = "every role may connect" if public else "only roles with the right may connect"
        if not strangers:
            return Finding("access", _OK, f"{who}; no login role without rights on the schema does")
        value = f"{who}; without rights on the schema: {_some(strangers)}"
        advice = (
            "They can notify, use up connections and hold back vacuum. A bus needs a database of its "
            f'own: revoke connect on database "{database}" from public, and grant it to the roles of '
            "the bus."
        )
        return Finding("access", _WARNING, value, advice)

    def _search_path(self) -> Finding:
        row = self._row("search_path")
        if row is None:
            return Finding("search path", _OK, "no other login role may create anything in it")
        schema, roles = row
        advice = (
            "A function or an operator there can take the place of one of PostgreSQL's own in "
            "statements of this role, and run with its rights: revoke create on schema "
            f'"{schema}" from public and from them.'
        )
        value = f'in the schema "{schema}" may create: {_some(roles)}'
        return Finding("search path", _WARNING, value, advice)

    def _rights(self) -> Finding:
        schema = self._place.schema
        names = [role_named(role, schema) for role in ROLES]
        needing = [role_named(role, schema) for role in ("sender", "worker")]
        row = self._row("rights", schema, names, needing)
        if row is None:
            return Finding("rights", _ERROR, "there is no schema", "Run `commandbus db upgrade`.")
        owner, public, present, outdated = row
        value = f"owned by {owner}; roles: {', '.join(present) or 'none, programs use the owner'}"
        if public:
            advice = f'Revoke it: revoke all on all tables in schema "{schema}" from public.'
            return Finding("rights", _ERROR, f"{value}; every role may {', '.join(public)}", advice)
        if outdated:
            advice = "Run the statements of `commandbus db roles` again, as after every upgrade."
            return Finding(
                "rights", _ERROR, f"{value}; rights are missing for {', '.join(outdated)}", advice
            )
        return Finding("rights", _OK, value)


def _some(names: list[str]) -> str:
    more = len(names) - STRANGERS_SHOWN
    return ", ".join(names[:STRANGERS_SHOWN]) + (f" and {more} more" if more > 0 else "")
