"""Hears what other processes send: one LISTEN connection, in a thread of its own.

The thread serves both runtimes, and a blocked event loop cannot stop it. It connects when the first
worker of this process claims; says when its connection is lost, and after every reconnect, that all
should look once, because nothing is heard in between; and does nothing else on its connection but a
sign of life every ten minutes.

The connection is also the session of its process (see store/sessions.py): it holds an advisory lock,
which the server releases when the process is gone. TCP keep-alive tells either side when the other is.

Every role that may connect to the database can notify any channel. So a payload is a hint of bounded
size and nothing more, and no notification and no error ends the thread.
"""

from __future__ import annotations

import logging
import random
import secrets
import select
import socket
import threading
import time
from collections.abc import Mapping
from typing import Any

import msgspec
import psycopg
from psycopg import RawCursor, errors, sql
from psycopg.pq.misc import PGnotify

from commandbus.domain.moment import SECOND
from commandbus.engines.postgres.arrays import numbers, texts
from commandbus.engines.postgres.failures import translate
from commandbus.engines.postgres.location import Location
from commandbus.engines.postgres.shortage import Shortage
from commandbus.engines.postgres.sleepers import ASLEEP_SECONDS, RENEW_SECONDS, Sleepers, look_again
from commandbus.engines.postgres.statements import Urgent, channel_of, queries
from commandbus.engines.postgres.watch import AnswerTimeout, has_arrived, shut_down
from commandbus.store.sessions import LEASES, WORKERS
from commandbus.store.wakeup import RECONNECT, WakeHub

logger = logging.getLogger("commandbus.postgres")

BACKOFF_MAX = 2.0
ANSWER_SECONDS = 5.0
"""Its statements are small: a server that has not answered by then is gone."""
LOOK_SECONDS = 0.5
"""How often it looks whether it is to end, while it may not connect."""
FAREWELL_SECONDS = 1.0
"""How long a close waits for the server."""
DEAF_SECONDS = 10.0
"""A listener that has been without a connection for so long makes its workers DEGRADED."""
HINT_SECONDS = 0.5
"""So long after other processes announced something, they may hold leases."""
KEY_BITS = 62
PAYLOAD_MAX = 200
DIGITS_MAX = 15
"""No payload of the bus is longer, and no due time that a worker waits for is further away."""


class Other(msgspec.Struct, frozen=True):
    """A channel of another program: whose work it tells of, and how long it then keeps silent."""

    domain: str
    throttle_seconds: float


class Listener:
    def __init__(
        self,
        location: Location,
        hub: WakeHub,
        sleepers: Sleepers,
        process: str,
        watch: AnswerTimeout,
        shortage: Shortage,
    ) -> None:
        self._location = location
        self._shortage = shortage
        self._connection: psycopg.Connection[Any] | None = None
        self._watch = watch
        self._hub = hub
        self._sleepers = sleepers
        self._process = process
        self._sql = queries(location.schema)
        self._stopping = False
        self._others: dict[str, Other] = {}
        """Channels of other programs that tell of work, by name."""
        self._heard: set[str] = set()
        """Those of them that the connection listens to."""
        self._again: dict[str, float] = {}
        """When to wake a domain once more, because its channel is silent until then."""
        self.failures = 0
        """How often it had to reconnect: its connection was lost, or something unforeseen happened."""
        self._deaf_since: float | None = None
        self._why = ""
        self._bell, self._door = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="commandbus-listen", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stopping = True
        self._bell.send(b"!")
        self._hub.interrupt()
        self._thread.join(timeout=ANSWER_SECONDS)
        self._bell.close()
        self._door.close()

    def let_go(self) -> bool:
        """Give its connection up for one that is needed more; returns whether there was one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            shut_down(connection)
        return connection is not None

    def listen_also(self, others: Mapping[str, Other]) -> None:
        """Hear channels of other programs, too."""
        if others.keys() - self._others.keys():
            self._others = {**self._others, **others}
            self._bell.send(b"+")

    @property
    def deaf(self) -> str | None:
        """Why wake-ups of other processes are not heard, if that has been so for a while."""
        if self._stopping:
            return None
        if not self._thread.is_alive():
            return "the thread that listens to PostgreSQL has ended; restart this process"
        since = self._deaf_since
        if since is None or (seconds := time.monotonic() - since) < DEAF_SECONDS:
            return None
        return (
            f"not listening to PostgreSQL for {seconds:.0f} s ({self._why}); work that other processes "
            "send is found at the poll interval only"
        )

    def _run(self) -> None:
        tries = 0
        while not self._stopping:
            if not self._hub.wait_until_listened() or not self._may_connect():
                continue
            try:
                with self._connect() as connection:
                    tries, self._connection = 0, connection
                    self._listen(connection)
            except Exception as error:  # whatever it is, nothing is heard until it has reconnected
                self._lost(error)
                if self._stopping:
                    return
                tries += 1
                wait = min(BACKOFF_MAX, 0.05 * 2 ** min(tries, 8)) * (0.5 + 0.5 * random.random())
                level = logging.WARNING if tries == 1 else logging.DEBUG  # once, however long it is
                logger.log(
                    level, "not listening to PostgreSQL, trying again in %.1f s: %s", wait, self._why
                )
                select.select([self._door], [], [], wait)

    def _lost(self, error: Exception) -> None:
        listened = self._sleepers.listening.is_set()
        self._sleepers.listening.clear()
        self._sleepers.session = ""
        self._sleepers.forget()
        self._sleepers.missed = True
        self.failures += 1
        self._why = str(translate(error) if isinstance(error, psycopg.Error) else repr(error))
        if self._deaf_since is None:
            self._deaf_since = time.monotonic()
        if listened and not self._stopping:
            # Waiting workers would not notice before their next poll that the server is away.
            self._hub.wake_all("lost")
            for topic in (WORKERS, LEASES):
                self._hub.wake(topic, None, "lost")

    def _may_connect(self) -> bool:
        """Whether the work has its connections, after waiting for that for a moment."""
        self._connection = None
        if self._shortage.may_follow(LOOK_SECONDS):
            return True
        select.select([self._door], [], [], LOOK_SECONDS)
        return False

    def _connect(self) -> psycopg.Connection[Any]:
        try:
            connection = psycopg.connect(
                self._location.listen_conninfo or self._location.conninfo,
                autocommit=True,
                cursor_factory=RawCursor,
                application_name="commandbus listen",
                connect_timeout=5,
                prepare_threshold=None,
            )
        except psycopg.OperationalError:
            self._shortage.follower_refused()
            raise
        self._shortage.follower_served()
        return connection

    def _listen(self, connection: psycopg.Connection[Any]) -> None:
        connection.pgconn.notify_handler = self._notified  # also for those that come with an answer
        channel = sql.Identifier(channel_of(self._location.schema))
        self._execute(connection, sql.SQL("listen {}").format(channel))
        self._heard = set()
        self._listen_to_others(connection)
        self._sleepers.session = self._hold_session(connection)
        self._sleepers.forget()  # before this process was known to be back, others deleted its rows
        self._deaf_since = None
        self._sleepers.listening.set()
        self._hub.wake_services()
        if self._sleepers.missed:
            # What was announced meanwhile was not heard, and a server that crashed has forgotten who
            # sleeps: all look once, and those that find nothing record again that they sleep.
            self._sleepers.missed = False
            self._hub.wake_all(RECONNECT)
        sockets = connection.fileno(), self._door.fileno()
        ping_at = time.monotonic() + RENEW_SECONDS
        while not self._stopping:
            left = min([ping_at, *self._again.values()]) - time.monotonic()
            if ping_at <= time.monotonic():
                self._give_sign_of_life(connection)
                ping_at = time.monotonic() + RENEW_SECONDS
            elif left > 0 and not has_arrived(left, *sockets):
                continue
            self._look_again()
            self._listen_to_others(connection)
            connection.pgconn.consume_input()
            while (heard := connection.pgconn.notifies()) is not None:
                self._notified(heard)
        self._execute(connection, self._sql.end_session, [self._process])
        self._execute(connection, self._sql.forget_sleepers, [self._process])

    def _hold_session(self, connection: psycopg.Connection[Any]) -> str:
        """Let the server know this process by its connection; returns the name of the session. None
        behind a pooler, whose connections outlive their clients, and whose backends are not those that
        it names; nor with a role that serves no worker."""
        ((backend,),) = self._execute(connection, "select pg_backend_pid()").fetchall()
        if backend != connection.info.backend_pid:
            return ""
        key = secrets.randbits(KEY_BITS)
        try:
            held = self._execute(connection, self._sql.hold_session, [self._process, key]).fetchall()
            self._execute(connection, self._sql.forget_ended, [self._process])
        except errors.InsufficientPrivilege:
            return ""
        return self._process if held else ""

    def _execute(
        self, connection: psycopg.Connection[Any], query: Any, params: Any = ()
    ) -> psycopg.Cursor[Any]:
        """A connection that has lost its server must not keep us: neither from listening on another
        one nor from ending."""
        seconds = FAREWELL_SECONDS if self._stopping else ANSWER_SECONDS
        self._watch.begin(connection, Urgent(str(query), seconds=seconds))
        try:
            return connection.execute(query, params or None)
        finally:
            self._watch.end(connection)

    def _notified(self, heard: PGnotify) -> None:
        try:
            other = self._others.get(heard.relname.decode())
            if other is not None:
                self._hear_other(other)
            else:
                self._hear(heard.extra.decode(errors="replace"))
        except Exception:  # it can come from any program, and must not cost those that follow
            logger.warning("a notification could not be understood", exc_info=True)

    def _hear(self, payload: str) -> None:
        domain, origin, due_in = announced(payload)
        if origin != self._process:
            self._hub.wake(domain, due_in, "notify", everyone=origin.endswith("*"))
            if domain != LEASES and not due_in:  # another process may be about to claim it
                self._again.setdefault(LEASES, time.monotonic() + HINT_SECONDS)

    def _listen_to_others(self, connection: psycopg.Connection[Any]) -> None:
        if select.select([self._door], [], [], 0)[0] and not self._stopping:
            self._door.recv(64)
        for channel in self._others.keys() - self._heard:
            self._execute(connection, sql.SQL("listen {}").format(sql.Identifier(channel)))
            self._heard.add(channel)
            self._hub.wake(self._others[channel].domain, None, "notify")

    def _hear_other(self, other: Other) -> None:
        """What follows within the throttle is not announced any more: look once again after it."""
        self._hub.wake(other.domain, None, "notify")
        if other.throttle_seconds:
            self._again.setdefault(other.domain, time.monotonic() + other.throttle_seconds)

    def _look_again(self) -> None:
        for domain in [name for name, at in self._again.items() if at <= time.monotonic()]:
            del self._again[domain]
            self._hub.wake(domain, None, "notify")

    def _give_sign_of_life(self, connection: psycopg.Connection[Any]) -> None:
        """Keep the sleepers' statement alive, for those domains that workers here still wait for."""
        awake = sorted(self._sleepers.domains() - self._hub.armed_domains())
        untils = numbers([self._sleepers.awake(domain) for domain in awake])
        if awake:
            self._execute(connection, self._sql.awaken, [texts(awake), untils, self._process])
            look_again(self._hub, awake)
        asleep = [self._process, int(ASLEEP_SECONDS * SECOND)]
        for domain, until in self._execute(connection, self._sql.stay_asleep, asleep).fetchall():
            self._sleepers.renewed(domain, until)


def announced(payload: str) -> tuple[str, str, float | None]:
    """The domain that a payload is about, the process that sent, and in how many seconds it is due. A
    star after the process means that not every worker can take it. Anything unreadable means: look
    now."""
    domain, _, rest = payload[:PAYLOAD_MAX].partition(" ")
    origin, _, due_in = rest.partition(" ")
    if len(payload) > PAYLOAD_MAX or len(due_in) > DIGITS_MAX:
        return domain, origin, None
    return domain, origin, int(due_in) / SECOND if due_in.isascii() and due_in.isdigit() else None
