"""Waiting in tests: with a bound, and only for what cannot announce itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE_SECONDS = 30.0
"""How long a test waits before it fails. Nothing takes this long unless it is broken, also on a machine
that has other work."""


def eventually(condition: Callable[[], T], timeout: float = PATIENCE_SECONDS) -> T:
    """What `condition` returns, as soon as it is true; raises AssertionError after `timeout` seconds.

    It looks again every few milliseconds, so it is for conditions without an event to wait for.
    """
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() >= deadline:
            name = getattr(condition, "__qualname__", repr(condition))
            raise AssertionError(f"{name} was still {value!r} after {timeout:g} s")
        time.sleep(0.005)
