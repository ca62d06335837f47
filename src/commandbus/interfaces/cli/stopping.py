"""Ctrl-C during an action on many commands: it ends between two of them, and says how far it was."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(slots=True)
class Stop:
    asked: bool = False


@contextmanager
def stopping() -> Iterator[Stop]:
    """The first Ctrl-C asks, the second interrupts at once."""
    stop = Stop()

    def ask(number: int, frame: object) -> None:
        stop.asked = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)
