"""The messages between a worker and its child processes, and their framing.

Each message is MessagePack with its length in front. The worker sends a call; until the child reports
its end, the child may ask for things of the store, which the worker does and answers one by one. Each
of these messages has the number of its call, so that no late message of one call is taken for one of
another. Only plain values cross: no pickle, and no code but the name of a registered handler.
"""

from __future__ import annotations

import struct
from typing import Any, Generic, Literal, TypeVar

import msgspec

from commandbus.store.records import CancelRequest, Claimed
from commandbus.worker.isolation.crossing import CrossedError

_LENGTH = struct.Struct("!I")
NONE = msgspec.Raw(b"\xc0")
M = TypeVar("M")


class Setup(msgspec.Struct, frozen=True, tag=True):
    """The first message to a child: what it needs before it can import handlers."""

    worker_pid: int
    path: list[str]
    argv: list[str]
    main: tuple[str, str] | None
    """How to run the main module of the worker again, if handlers are in it."""
    modules: list[str]
    log_level: int


class Call(msgspec.Struct, frozen=True, tag=True):
    """Run a handler."""

    number: int
    module: str
    name: str
    claimed: Claimed
    max_attempts: int
    worker: str
    memory: int | None
    cancel: CancelRequest | None


class Answer(msgspec.Struct, frozen=True, tag=True):
    """The answer to an Ask."""

    number: int
    value: msgspec.Raw = NONE
    error: CrossedError | None = None


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The child has imported the handlers."""


class Ask(msgspec.Struct, frozen=True, tag=True):
    """Something that only the worker can do; see `runtimes.children.answers`."""

    number: int
    """That of the call, in each message about one."""
    method: str
    arguments: msgspec.Raw


class Done(msgspec.Struct, frozen=True, tag=True):
    """The handler returned."""

    number: int
    result: str | None
    """JSON text."""


class Raised(msgspec.Struct, frozen=True, tag=True):
    """The handler raised, or the child could not be prepared."""

    number: int
    error: CrossedError
    cause: Literal["handler", "timeout", "canceled", "memory", "start"]


class Logged(msgspec.Struct, frozen=True, tag=True):
    """A log record, for the handlers and formatters of the worker process."""

    fields: dict[str, Any]


class Stop(msgspec.Struct, frozen=True):
    """Sent beside the other messages, with a signal: end the call of this number. Because it is
    canceled, or else because its time is over."""

    number: int
    cancel: CancelRequest | None = None


ToChild = Setup | Call | Answer
FromChild = Ready | Ask | Done | Raised | Logged

encode = msgspec.msgpack.Encoder().encode
decode_stop = msgspec.msgpack.Decoder(Stop).decode


def frame(message: ToChild | FromChild) -> bytes:
    encoded = encode(message)
    return _LENGTH.pack(len(encoded)) + encoded


def raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(encode(value))


class Inbox(Generic[M]):
    """Bytes in, messages out."""

    def __init__(self, kind: Any) -> None:
        self._decode = msgspec.msgpack.Decoder(kind).decode
        self._parts: list[bytes] = []
        self._size = 0
        self._wanted = _LENGTH.size
        """Below this size no message is complete: the parts of a long one are joined once."""

    def feed(self, received: bytes) -> None:
        self._parts.append(received)
        self._size += len(received)

    def take(self) -> M | None:
        """The next message, if it is complete."""
        if self._size < self._wanted:
            return None
        buffer = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        end = _LENGTH.size + _LENGTH.unpack_from(buffer)[0]
        if self._size < end:
            self._parts, self._wanted = [buffer], end
            return None
        rest = buffer[end:]
        self._parts, self._wanted = [rest] if rest else [], _LENGTH.size
        self._size -= end
        message: M = self._decode(memoryview(buffer)[_LENGTH.size : end])
        return message
