"""The dashboard by itself, on a port. Without accounts it binds to this machine and nothing else.

Clients are bounded before they have said who they are: a connection has a few seconds for the head of
its request, and when there are as many connections as descriptors allow, the one whose request has been
incomplete, or whose answer has not been read, for the longest time is closed for the new one. If all of
them are at work, it is one of the client that has the most.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import time
from collections import Counter
from typing import Any

import h11
from uvicorn import Config, Server
from uvicorn.protocols.http.h11_impl import H11Protocol

from commandbus.errors import ConfigurationError
from commandbus.interfaces.web.local import is_loopback

logger = logging.getLogger("commandbus.dashboard")

HEAD_SECONDS = 5
"""For the first byte to the last one of a request's head, and between two requests."""
READ_SECONDS = 20
"""For a client to make room for more of an answer, of which some tens of kilobytes are on their way."""
CONNECTIONS_MAX = 512
STREAM_END_SECONDS = 0.3
"""Less than uvicorn waits before it cancels requests, each with a traceback."""
RESOURCE_LOG_SECONDS = 60.0


def check_host(host: str, *, has_accounts: bool) -> None:
    """Raises ConfigurationError for an address that others can reach, unless they have to sign in."""
    if not has_accounts and not is_loopback(host):
        raise ConfigurationError(
            f"The dashboard does not serve {host} without accounts: every client that reaches it could "
            "read payloads and cancel commands. Use `commandbus dashboard --accounts FILE`, or leave "
            "--host at 127.0.0.1."
        )


def bind(host: str, port: int) -> socket.socket:
    """A listening socket, or ConfigurationError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=_backlog())
    except OSError as error:
        why = str(error.strerror).partition(" (while")[0]  # Python repeats the address
        hint = "; choose another --port" if error.errno == errno.EADDRINUSE else ""
        raise ConfigurationError(
            f"The dashboard cannot listen at {host}:{port}: {why}{hint}."
        ) from None


class BoundedProtocol(H11Protocol):
    """HTTP on a connection that is closed when the head of a request does not arrive in time."""

    _begun_at = 0.0
    _silent_since: float | None = None
    _head_timer: asyncio.TimerHandle | None = None
    _read_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._begun_at = time.monotonic()
        self._expect_head()
        if len(self.connections) > connections_max():
            self._make_room()

    def _make_room(self) -> None:
        """Close the connection that has been silent for the longest time; where none is, the oldest of
        the address that has the most of them."""
        others = [
            one for one in self.connections if isinstance(one, BoundedProtocol) and one is not self
        ]
        silent = [(one._silent_since, one) for one in others if one._silent_since is not None]
        if silent:
            min(silent, key=lambda found: found[0])[1]._give_up()
            return
        addresses = Counter(one.client and one.client[0] for one in others)
        crowd = max(addresses, key=addresses.__getitem__)
        chosen = [one for one in others if (one.client and one.client[0]) == crowd]
        min(chosen, key=lambda one: one._begun_at)._give_up()

    def data_received(self, data: bytes) -> None:
        if self._head_timer is None and (self.cycle is None or self.cycle.response_complete):
            self._expect_head()  # the first bytes of a further request
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before:
            self._stop_timer()
            self._silent_since = None
        if self.cycle is not None and not self.cycle.response_complete:
            self._note_body()

    def _note_body(self) -> None:
        """A request whose body is not complete is silent, too: sign-ins read theirs from strangers."""
        if self.conn.their_state is not h11.SEND_BODY:
            self._silent_since = None
        elif self._silent_since is None:
            self._silent_since = time.monotonic()

    def pause_writing(self) -> None:
        """The client does not read: it is silent, too, and not for ever."""
        super().pause_writing()
        self._silent_since = time.monotonic()
        self._read_timer = self.loop.call_later(READ_SECONDS, self._give_up)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_read_timer()
        if self.cycle is not None and not self.cycle.response_complete:
            self._silent_since = None

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.response_complete:
            self._silent_since = time.monotonic()

    def shutdown(self) -> None:
        """Requests may finish; streams have no end of their own, so they are cut off."""
        super().shutdown()
        self.loop.call_later(STREAM_END_SECONDS, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._stop_read_timer()
        super().connection_lost(exc)

    def _expect_head(self) -> None:
        self._silent_since = time.monotonic()
        self._head_timer = self.loop.call_later(HEAD_SECONDS, self._give_up)

    def _give_up(self) -> None:
        self._stop_timer()
        self._stop_read_timer()
        self._silent_since = None  # it is gone in a moment, and must not be chosen again until then
        self.transport.abort()

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _stop_read_timer(self) -> None:
        if self._read_timer is not None:
            self._read_timer.cancel()
            self._read_timer = None


def create_server(app: Any, *, root_path: str = "") -> Server:
    """A server for the app; open streams do not hold its end up."""
    return Server(
        Config(
            app,
            http=BoundedProtocol,
            ws="none",
            log_level="error",  # mistakes of clients must not fill the log
            access_log=False,
            root_path=root_path,
            server_header=False,
            backlog=_backlog(),
            limit_concurrency=2 * connections_max(),
            timeout_keep_alive=HEAD_SECONDS,
            timeout_graceful_shutdown=1,
        )
    )


async def serve(server: Server, listener: socket.socket) -> None:
    """Serve until the end; a lack of descriptors is logged now and then, and not for every client."""
    loop, logged_at = asyncio.get_running_loop(), -RESOURCE_LOG_SECONDS

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        nonlocal logged_at
        error = context.get("exception")
        if not (isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)):
            loop.default_exception_handler(context)
        elif time.monotonic() - logged_at >= RESOURCE_LOG_SECONDS:
            logged_at = time.monotonic()
            logger.error("no connection can be accepted: %s; see ulimit -n", error.strerror)

    loop.set_exception_handler(handle)
    await server.serve(sockets=[listener])


def connections_max() -> int:
    return min(CONNECTIONS_MAX, _descriptors() // 4)


def _backlog() -> int:
    """The event loop accepts so many connections before it looks at any of them."""
    return max(8, min(128, _descriptors() // 8))


def _descriptors() -> int:
    try:
        import resource
    except ImportError:  # not on Windows
        return 2_048
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 65_536 if soft == resource.RLIM_INFINITY else soft
