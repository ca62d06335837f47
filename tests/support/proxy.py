"""A TCP proxy in front of PostgreSQL that makes trouble on demand.

    with Proxy(server.dsn(name, tcp=True)) as proxy:
        bus = SyncCommandBus(proxy.url)
        proxy.cut()                     # every connection is reset, at once
        with proxy.frozen():            # bytes stop in both directions, nobody is told; then go on
            ...
        proxy.half_open()               # the server hangs up, the client never learns of it
        proxy.weather(delay=0.05)       # every piece is late
        proxy.weather(bytes_per_second=2_000)
        proxy.refusing = True           # nobody answers at the address any more
        trap = proxy.on_commit("after") # the server commits, and the client never hears so
        trap = proxy.on_statement("insert into", "freeze", times=3)
        trap.sprung.wait(5)
        proxy.lead_to(standby.dsn(name, tcp=True))

Connections are pumped by two threads each. Everything may be called from any thread.
"""

from __future__ import annotations

import contextlib
import random
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal, Self
from urllib.parse import urlsplit, urlunsplit

from tests.support.wire import Conversation, Message, Splitter

Harm = Literal["before", "after", "freeze"]
"""before: cut, and the server never sees the statement; after: the server answers, and the answer is
lost with the connection; freeze: the connection stands still from here on, the server having heard."""

PIECE = 65_536


@dataclass(eq=False)
class Trap:
    """Harm that waits for a statement."""

    applies: Callable[[str, Conversation], bool]
    harm: Harm
    times: int
    count: int = 0
    """How often it has sprung."""
    statements: list[str] = field(default_factory=list)
    sprung: threading.Event = field(default_factory=threading.Event)
    """Set with the last of its times."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def springs(self, statement: str, conversation: Conversation) -> bool:
        if not self.applies(statement, conversation):
            return False
        with self._lock:
            if self.count >= self.times:
                return False
            self.count += 1
            self.statements.append(statement)
        return True


class Link:
    """One client's connection and the one to the server that belongs to it."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self.client, self.server = client, server
        self.open = True
        self.may_pass = threading.Event()
        self.may_pass.set()
        self.abandoned = False
        self._trap: Trap | None = None
        self._conversation = Conversation()
        for pump in (self._pump_requests, self._pump_answers):
            threading.Thread(target=pump, name="proxy", daemon=True).start()

    def cut(self, *, reset: bool = True) -> None:
        """Close both ends: with a reset, or politely."""
        self.open = False
        self.may_pass.set()
        for end in (self.client, self.server):
            with contextlib.suppress(OSError):
                if reset:
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                else:
                    end.shutdown(socket.SHUT_RDWR)
            if reset:
                # A pump that reads keeps the socket alive: closing alone would send nothing.
                _hang_up(end)
            end.close()
        self._proxy.forget(self)

    def abandon(self) -> None:
        """The server sees the client go; the client sees nothing, for ever."""
        self.abandoned = True
        _hang_up(self.server)
        self.server.close()

    def _pump_requests(self) -> None:
        splitter = Splitter(started=False)
        while data := self._read(self.client):
            for message in splitter.feed(data):
                if message.asks_for_encryption:
                    self._write(self.client, b"N")
                elif not self._let_through(message):
                    return
        self._end_of(self.client)

    def _let_through(self, message: Message) -> bool:
        statement = self._conversation.said(message)
        trap = None if statement is None else self._proxy.trap_for(statement, self._conversation)
        if trap is not None and trap.harm == "before":
            self.cut()
            _note(trap)
            return False
        if trap is not None:
            self._trap = trap
        self._write(self.server, message.raw)
        return True

    def _pump_answers(self) -> None:
        splitter = Splitter()
        while data := self._read(self.server):
            for message in splitter.feed(data):
                answered = self._conversation.answered(message)
                if self._trap is None:
                    self._write(self.client, message.raw)
                elif message.kind in "GH":
                    # COPY: the server waits for data, and its answer comes after them.
                    self._write(self.client, message.raw)
                elif answered:
                    self._spring(self._trap)
        self._end_of(self.server)

    def _spring(self, trap: Trap) -> None:
        """The answer to the statement has arrived, and goes no further."""
        if trap.harm == "after":
            self.cut()
        else:
            self.may_pass.clear()
        _note(trap)

    def _read(self, end: socket.socket) -> bytes:
        try:
            return end.recv(PIECE)
        except OSError:
            return b""

    def _write(self, end: socket.socket, data: bytes) -> None:
        for piece, pause in self._proxy.pieces(data):
            if pause:
                time.sleep(pause)
            self._proxy.may_pass.wait()
            self.may_pass.wait()
            with contextlib.suppress(OSError):  # the reader of that end notices, and ends the link
                end.sendall(piece)

    def _end_of(self, end: socket.socket) -> None:
        """One end hung up: the other is told so, unless it was abandoned or stands still."""
        self._proxy.may_pass.wait()
        self.may_pass.wait()
        if self.open and not (self.abandoned and end is self.server):
            self.cut(reset=False)


class Proxy:
    def __init__(self, dsn: str) -> None:
        self._links: set[Link] = set()
        self._lock = threading.Lock()
        self._traps: list[Trap] = []
        self._delay = 0.0
        self._bytes_per_second: float | None = None
        self.may_pass = threading.Event()
        self.may_pass.set()
        self.opened = 0
        """Connections that were made through it, in all."""
        self.refusing = False
        """Whether new connections are closed at once."""
        self._closed = False
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port: int = self._listener.getsockname()[1]
        self.lead_to(dsn)
        threading.Thread(target=self._accept, name="proxy-accept", daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def url(self) -> str:
        """The server's address, through the proxy."""
        return self.through(self._dsn)

    def through(self, dsn: str) -> str:
        """Another address of the server (another database, more options), through the proxy."""
        parts = urlsplit(dsn)
        who = parts.netloc.rpartition("@")[0]
        return urlunsplit(parts._replace(netloc=f"{who}@127.0.0.1:{self.port}"))

    @property
    def links(self) -> int:
        with self._lock:
            return len(self._links)

    def lead_to(self, dsn: str) -> None:
        """New connections go to this server; those that are open stay where they are."""
        parts = urlsplit(dsn)
        self._dsn, self._server = dsn, (parts.hostname or "127.0.0.1", parts.port or 5432)

    def cut(self, *, reset: bool = True) -> int:
        """Cut every connection; returns how many."""
        return self._each(lambda link: link.cut(reset=reset))

    def pick(self, chance: random.Random) -> Link | None:
        """One of the connections, if there is any."""
        with self._lock:
            return chance.choice(list(self._links)) if self._links else None

    def half_open(self) -> int:
        """The server loses every client, and none of them is told; new connections work."""
        return self._each(Link.abandon)

    def forget_abandoned(self) -> None:
        """Clients that were left half open learn of it at last: without it one without a timeout of its
        own waits for ever."""
        self._each(lambda link: link.cut() if link.abandoned else None)

    def freeze(self) -> None:
        """From now on nothing passes, in either direction, and nobody is told."""
        self.may_pass.clear()

    def thaw(self) -> None:
        self.may_pass.set()
        self._each(lambda link: link.may_pass.set())

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        self.freeze()
        try:
            yield
        finally:
            self.thaw()

    @contextlib.contextmanager
    def unreachable(self) -> Iterator[None]:
        """Connections are cut, and new ones refused, until the end of the block."""
        self.refusing = True
        self.cut()
        try:
            yield
        finally:
            self.refusing = False

    def weather(self, *, delay: float = 0.0, bytes_per_second: float | None = None) -> None:
        """How slowly bytes travel; without arguments: as fast as they can."""
        self._delay, self._bytes_per_second = delay, bytes_per_second

    def on_statement(self, pattern: str, harm: Harm, *, times: int = 1) -> Trap:
        """Harm the connection that executes a statement in which the pattern is found."""
        search = re.compile(pattern, re.IGNORECASE | re.DOTALL).search
        return self._lay(Trap(lambda statement, _: search(statement) is not None, harm, times))

    def on_commit(self, harm: Harm, *, pattern: str = "", times: int = 1) -> Trap:
        """Harm the connection that makes something durable: by COMMIT, or by a statement that is a
        transaction of its own."""
        search = re.compile(pattern, re.IGNORECASE | re.DOTALL).search

        def applies(statement: str, conversation: Conversation) -> bool:
            return conversation.commits(statement) and search(statement) is not None

        return self._lay(Trap(applies, harm, times))

    def clear_traps(self) -> None:
        self._traps = []

    def close(self) -> None:
        self._closed = True
        self.clear_traps()
        _hang_up(self._listener)
        self._listener.close()
        self.may_pass.set()
        self.cut(reset=False)

    # For links.

    def trap_for(self, statement: str, conversation: Conversation) -> Trap | None:
        return next((t for t in self._traps if t.springs(statement, conversation)), None)

    def pieces(self, data: bytes) -> Iterator[tuple[bytes, float]]:
        """The data in pieces, each with the pause before it."""
        if self._bytes_per_second is None:
            yield data, self._delay
            return
        size = max(1, int(self._bytes_per_second / 50))
        for begin in range(0, len(data), size):
            yield data[begin : begin + size], self._delay if begin == 0 else 1 / 50

    def forget(self, link: Link) -> None:
        with self._lock:
            self._links.discard(link)

    def _lay(self, trap: Trap) -> Trap:
        self._traps = [*self._traps, trap]
        return trap

    def _each(self, act: Callable[[Link], None]) -> int:
        with self._lock:
            links = list(self._links)
        for link in links:
            act(link)
        return len(links)

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.refusing or not self._connect(client):
                client.close()

    def _connect(self, client: socket.socket) -> bool:
        try:
            server = socket.create_connection(self._server, timeout=5)
        except OSError:
            return False
        server.settimeout(None)
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._lock:
            self.opened += 1
            self._links.add(Link(self, client, server))
        return True


def _hang_up(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)


def _note(trap: Trap) -> None:
    if trap.count >= trap.times:
        trap.sprung.set()
