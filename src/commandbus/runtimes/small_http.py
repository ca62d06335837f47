"""A very small HTTP server: GET, one request per connection, and everything bounded.

Probes are asked by orchestrators that restart what does not answer, on a port that others may reach. So
half requests hold no thread, only a place among CONNECTIONS_MAX, from which the oldest is evicted; and
slow answers of one path do not hold up another. No event loop: thread workers have none either.
"""

from __future__ import annotations

import logging
import queue
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from http import HTTPStatus

logger = logging.getLogger("commandbus.probes")

REQUEST_SECONDS = 5.0
"""How long a connection may take for its request, and again for taking the answer."""
REQUEST_BYTES_MAX = 8_192
CONNECTIONS_MAX = 128
WAITING_MAX = 32
"""Complete requests of one path that may wait for their answer; more are closed."""
TURN_SECONDS = 0.1
"""How long a path that is behind is waited for before a request of it is closed."""

Response = tuple[int, str, str]
"""Status, content type and body."""


class SmallServer:
    """Serves GET requests from the moment it is made until `close`. Each path of `routes` has a thread
    of its own; a request for any other path is answered by `otherwise`."""

    def __init__(
        self, host: str, port: int, routes: dict[str, Callable[[], Response]], otherwise: Response
    ) -> None:
        self._listening = socket.create_server((host, port), backlog=CONNECTIONS_MAX)
        self._listening.setblocking(False)
        self.port = int(self._listening.getsockname()[1])
        self._door, self._bell = socket.socketpair()
        self._closing = False
        self._requests: dict[socket.socket, tuple[float, bytearray]] = {}
        """Connections whose request is not complete, oldest first: until when, and what has come."""
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listening, selectors.EVENT_READ)
        self._selector.register(self._door, selectors.EVENT_READ)
        self._answering = {path: _Answering(path, answer) for path, answer in routes.items()}
        self._otherwise = _Answering("other", lambda: otherwise)
        self._thread = threading.Thread(target=self._run, name="commandbus-probes", daemon=True)

    def start(self) -> None:
        for answering in (*self._answering.values(), self._otherwise):
            answering.start()
        self._thread.start()

    def close(self) -> None:
        self._closing = True
        if self._thread.is_alive():
            self._bell.send(b"x")
            self._thread.join()
        else:
            self._let_go()

    def _run(self) -> None:
        try:
            while not self._closing:
                self._expire()
                left = None
                if self._requests:
                    left = max(0.0, next(iter(self._requests.values()))[0] - time.monotonic())
                for key, _ in self._selector.select(left):
                    if key.fileobj is self._listening:
                        self._accept()
                    elif isinstance(key.fileobj, socket.socket) and key.fileobj is not self._door:
                        self._read(key.fileobj)
        finally:
            self._let_go()

    def _let_go(self) -> None:
        for connection in [*self._requests]:
            self._forget(connection).close()
        for answering in (*self._answering.values(), self._otherwise):
            answering.put(None)
        for each in (self._listening, self._door, self._bell):
            each.close()
        self._selector.close()

    def _accept(self) -> None:
        try:
            connection, _ = self._listening.accept()
        except OSError as error:  # gone again, or no descriptor is free
            logger.debug("a probe was not accepted: %s", error)
            if self._requests:
                self._forget(next(iter(self._requests))).close()
            return
        connection.setblocking(False)
        if len(self._requests) >= CONNECTIONS_MAX:
            self._forget(next(iter(self._requests))).close()
        self._requests[connection] = time.monotonic() + REQUEST_SECONDS, bytearray()
        self._selector.register(connection, selectors.EVENT_READ)

    def _expire(self) -> None:
        now = time.monotonic()
        for connection in [one for one, (until, _) in self._requests.items() if until <= now]:
            self._forget(connection).close()

    def _forget(self, connection: socket.socket) -> socket.socket:
        self._selector.unregister(connection)
        del self._requests[connection]
        return connection

    def _read(self, connection: socket.socket) -> None:
        if connection not in self._requests:
            return  # evicted by one that came in the same moment
        _, request = self._requests[connection]
        try:
            received = connection.recv(4_096)
        except OSError:
            received = b""
        request += received
        if b"\r\n\r\n" in request:
            path = _path_of(bytes(request))
            answering = self._answering.get(path or "", self._otherwise)
            answering.put((self._forget(connection), path is not None))
        elif not received or len(request) > REQUEST_BYTES_MAX:
            self._forget(connection).close()


class _Answering:
    """A thread that answers the requests of one path. Those that wait together get one answer, so that
    a flood of requests costs little more than one of them."""

    def __init__(self, name: str, answer: Callable[[], Response]) -> None:
        self._answer = answer
        self._orders: queue.Queue[tuple[socket.socket, bool] | None] = queue.Queue()
        self._goes_on = threading.Event()
        """Set when a request was taken after the last one that was waited for."""
        self._thread = threading.Thread(
            target=self._run, name=f"commandbus-probe-{name.strip('/')}", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def put(self, order: tuple[socket.socket, bool] | None) -> None:
        if order is not None and self._is_full():
            order[0].close()
            return
        self._orders.put(order)

    def _is_full(self) -> bool:
        """A flood comes in faster than threads take turns, so this one is waited for; but not again
        while one answer takes longer, which would hold up the other paths."""
        if self._orders.qsize() >= WAITING_MAX and self._goes_on.is_set():
            self._goes_on.clear()
            self._goes_on.wait(TURN_SECONDS)
        return self._orders.qsize() >= WAITING_MAX

    def _take(self) -> tuple[socket.socket, bool] | None:
        order = self._orders.get()
        self._goes_on.set()
        return order

    def _run(self) -> None:
        while (order := self._take()) is not None:
            answers: dict[bool, bytes] = {}
            for connection, is_get in [order, *self._others_waiting()]:
                if is_get not in answers:
                    answers[is_get] = self._response(is_get)
                with connection, suppress(OSError):
                    connection.settimeout(REQUEST_SECONDS)
                    connection.sendall(answers[is_get])
                    connection.shutdown(socket.SHUT_WR)

    def _others_waiting(self) -> Iterator[tuple[socket.socket, bool]]:
        for _ in range(self._orders.qsize()):
            if (order := self._take()) is None:
                self._orders.put(None)
                return
            yield order

    def _response(self, is_get: bool) -> bytes:
        status, kind, body = 405, "text/plain; charset=utf-8", "only GET is served here\n"
        if is_get:
            try:
                status, kind, body = self._answer()
            except Exception:  # a probe that fails is an answer, too
                logger.exception("a probe failed")
                status, body = 500, "the probe failed; see the log of the worker\n"
        content = body.encode()
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: {kind}\r\n"
            f"Content-Length: {len(content)}\r\nCache-Control: no-store\r\n"
            "X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
        )
        return head.encode() + content


def _path_of(request: bytes) -> str | None:
    """The path of a GET request, without its query; None for any other method."""
    line = request.partition(b"\r\n")[0].decode("ascii", "replace").split(" ")
    return line[1].partition("?")[0] if len(line) == 3 and line[0] == "GET" else None
