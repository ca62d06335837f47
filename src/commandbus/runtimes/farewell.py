"""The end of a worker or router takes a moment at most, whatever its store does.

The last writes are tried once: a worker that could not delete its presence expires a little later. A
store that does not answer must not delay the end of a program.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress

from commandbus.errors import CommandBusError

FAREWELL_SECONDS = 1.0
"""For everything after the last handler has ended and the last outcome was recorded."""


class Budget:
    """Seconds that several steps share."""

    def __init__(self, seconds: float = FAREWELL_SECONDS) -> None:
        self._until = time.monotonic() + seconds

    def left(self) -> float:
        return max(0.0, self._until - time.monotonic())


def attempt(function: Callable[[], object], seconds: float = FAREWELL_SECONDS) -> None:
    """Call a function that may fail, and wait for it for so long; it is left behind then."""

    def call() -> None:
        with suppress(CommandBusError):  # the store may be the reason for stopping
            function()

    thread = threading.Thread(target=call, name="commandbus-farewell", daemon=True)
    thread.start()
    thread.join(seconds)
