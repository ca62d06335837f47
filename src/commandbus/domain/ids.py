"""Command ids: UUID version 7, so that ids sort by time and indexes grow at one end."""

from __future__ import annotations

import os
import threading
import time
from uuid import UUID

from commandbus.errors import InvalidArgumentError

_lock = threading.Lock()
_last = 0


def new_id() -> UUID:
    """A UUIDv7 (RFC 9562), strictly increasing within this process, also from many threads.

    The 12 bits after the millisecond count ids of the same millisecond; when they run over, the
    millisecond is advanced instead, so order survives bursts and clocks that step back.
    """
    global _last
    with _lock:
        stamp = (time.time_ns() // 1_000_000) << 12
        _last = stamp = max(stamp, _last + 1)
    milliseconds, counter = stamp >> 12, stamp & 0xFFF
    random = int.from_bytes(os.urandom(8), "big") & 0x3FFF_FFFF_FFFF_FFFF
    return UUID(int=(milliseconds << 80) | (0x7 << 76) | (counter << 64) | (0x2 << 62) | random)


def as_id(value: object, name: str) -> UUID:
    """`value` as a UUID; its text form is accepted too."""
    if isinstance(value, UUID):
        return value
    if isinstance(value, str):
        try:
            return UUID(value)
        except ValueError:
            pass
    raise InvalidArgumentError(f"{name} must be a UUID or its text form, not {value!r}.")


def as_optional_id(value: object, name: str) -> UUID | None:
    return None if value is None else as_id(value, name)
