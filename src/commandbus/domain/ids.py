"""Command ids: UUID version 7, so that ids sort by time and indexes grow at one end."""

from __future__ import annotations

import os
import random
import re
import threading
import time
from uuid import UUID, SafeUUID, uuid5

import msgspec

from commandbus.errors import InvalidArgumentError

_lock = threading.Lock()
_last = 0
_random = random.Random(os.urandom(32))
if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=lambda: _random.seed(os.urandom(32)))


def new_id() -> UUID:
    """A UUIDv7 (RFC 9562), strictly increasing within this process, also from many threads.

    The 12 bits after the millisecond count ids of the same millisecond; when they run over, the
    millisecond is advanced instead, so order survives bursts and clocks that step back.
    """
    global _last
    with _lock:
        stamp = (time.time_ns() // 1_000_000) << 12
        if stamp <= _last:
            stamp = _last + 1
        _last = stamp
        tail = _random.getrandbits(62)
    value = (stamp >> 12 << 80) | (0x7 << 76) | ((stamp & 0xFFF) << 64) | (0x2 << 62) | tail
    # What the constructor does, without its checks: every send makes an id.
    made = _blank(UUID)
    _put(made, "int", value)
    _put(made, "is_safe", _UNKNOWN)
    return made


_UNKNOWN = SafeUUID.unknown
_blank, _put = object.__new__, object.__setattr__


_KEYS = UUID("5b1d9d4e-6d0f-5c3b-9c53-0c9a1f6d7e21")
_KEY_LENGTH_MAX = 255


def id_of_key(domain: str, key: object) -> UUID:
    """The command id that an idempotency key stands for in a domain: always the same (UUIDv5)."""
    if not isinstance(key, str) or not 0 < len(key) <= _KEY_LENGTH_MAX or not key.isprintable():
        raise InvalidArgumentError(
            f"idempotency_key must be printable text of 1 to {_KEY_LENGTH_MAX} characters, not {key!r}."
        )
    return uuid5(_KEYS, f"{domain}/{key}")


def as_id(value: object, name: str) -> UUID:
    """`value` as a UUID; its text form is accepted too."""
    if isinstance(value, UUID):
        return value
    if isinstance(value, str):
        try:
            return UUID(value)
        except ValueError:
            pass
    # Of anything but text only the type: a record or a payload has values that no log may show.
    shown = repr(value) if isinstance(value, str) else f"a value of type {type(value).__name__}"
    raise InvalidArgumentError(f"{name} must be a UUID or its text form, not {shown}.")


def as_optional_id(value: object, name: str) -> UUID | None:
    return None if value is None else as_id(value, name)


HEAD, TAIL = 10, 6
"""Digits of a short id. Ten of a UUIDv7 name a quarter of a second, which an index finds at once; six
of its random end choose among the ids of that time."""
_PART = re.compile(r"([0-9a-f]*)(?:…|\.{2,3})?([0-9a-f]*)")


def short_id(value: object) -> str:
    """An id as lists show it, `019a8b1c2d…86a515`: both ends, by which it can be found again."""
    digits = str(value).replace("-", "")
    return f"{digits[:HEAD]}…{digits[-TAIL:]}"


class IdPart(msgspec.Struct, frozen=True):
    """Some digits of an id: those at its beginning and those at its end."""

    head: str = ""
    tail: str = ""

    @property
    def lowest(self) -> UUID:
        return UUID(self.head.ljust(32, "0"))

    @property
    def highest(self) -> UUID:
        return UUID(self.head.ljust(32, "f"))

    def fits(self, value: UUID) -> bool:
        return value.hex.startswith(self.head) and value.hex.endswith(self.tail)


PART_SHORTEST = 4


def as_id_parts(text: str) -> tuple[IdPart, ...]:
    """What digits without a whole id may stand for, the more likely first: a short id, or digits from
    the beginning or from the end. Empty for any other text, and for fewer than four digits."""
    found = _PART.fullmatch(text.strip().replace("-", "").lower())
    if found is None or not PART_SHORTEST <= len(found[1] + found[2]) < 32:
        return ()
    head, tail = found.groups()
    if tail or not head or not text.strip()[-1].isalnum():
        return (IdPart(head, tail),)
    return IdPart(head), IdPart("", head)
