"""As much of PostgreSQL's wire protocol as a proxy must read to know what a client is about to do.

A client's stream begins with packets without a type: requests for encryption, a request to cancel, and
the start-up. After it every message is a type, four bytes of length and a body. A statement is either a
Query, or is parsed under a name, bound to a portal and executed; which text an Execute runs is known
only by remembering all three.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

SSL_REQUEST, GSS_REQUEST = 80877103, 80877104
UNTYPED = ""


@dataclass
class Message:
    kind: str
    raw: bytes

    @property
    def body(self) -> bytes:
        return self.raw[5:]

    @property
    def asks_for_encryption(self) -> bool:
        code = int.from_bytes(self.raw[4:8], "big") if len(self.raw) == 8 else 0
        return self.kind == UNTYPED and code in (SSL_REQUEST, GSS_REQUEST)


@dataclass
class Splitter:
    """Cuts a stream of bytes into messages."""

    started: bool = True
    """Whether messages have types: a client's stream has none before its start-up."""
    _rest: bytes = b""

    def feed(self, data: bytes) -> Iterator[Message]:
        self._rest += data
        while True:
            header = 1 if self.started else 0
            if len(self._rest) < header + 4:
                return
            end = header + int.from_bytes(self._rest[header : header + 4], "big")
            if len(self._rest) < end:
                return
            raw, self._rest = self._rest[:end], self._rest[end:]
            message = Message(chr(raw[0]) if header else UNTYPED, raw)
            if not header and not message.asks_for_encryption:
                self.started = True
            yield message


@dataclass
class Conversation:
    """What a client has said, and in which state of its transaction the server is."""

    in_transaction: bool = False
    _statements: dict[bytes, str] = field(default_factory=dict)
    _portals: dict[bytes, str] = field(default_factory=dict)

    def said(self, message: Message) -> str | None:
        """The text of the statement that this message makes the server execute, if it does."""
        match message.kind:
            case "Q":
                return message.body.rstrip(b"\0").decode(errors="replace")
            case "P":
                name, text, *_ = message.body.split(b"\0", 2)
                self._statements[name] = text.decode(errors="replace")
            case "B":
                portal, statement, *_ = message.body.split(b"\0", 2)
                self._portals[portal] = self._statements.get(statement, "")
            case "E":
                return self._portals.get(message.body.split(b"\0", 1)[0], "")
            case _:
                pass  # any other message executes nothing
        return None

    def answered(self, message: Message) -> bool:
        """Whether this message of the server ends its answer."""
        if message.kind != "Z":
            return False
        self.in_transaction = message.body[:1] != b"I"
        return True

    def commits(self, statement: str) -> bool:
        """Whether this statement makes something durable: COMMIT, or one outside a transaction, which
        is a transaction of its own."""
        first = statement.split(None, 1)[0].lower().rstrip(";") if statement.split() else ""
        if first in ("commit", "end"):
            return True
        aside = ("begin", "start", "rollback", "set", "show", "listen", "unlisten", "deallocate")
        return not self.in_transaction and first not in (*aside, "")
