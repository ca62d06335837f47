"""Waiting in a thread that may have to obey signals."""

from __future__ import annotations

import queue
import threading
import time
from typing import TypeVar

T = TypeVar("T")

SIGNAL_SECONDS = 1.0
"""Python calls signal handlers in the main thread, between two steps of it. A signal that arrives just
before that thread begins to wait for a lock does not end the wait, so it waits no longer than this."""
OTHER_SECONDS = 3600.0


def take(inbox: queue.SimpleQueue[T], seconds: float) -> T:
    """The next item, after waiting for it; raises queue.Empty after so many seconds. An inbox is safe
    in signal handlers: they may put something in while the thread that they interrupt takes or puts."""
    in_main = threading.current_thread() is threading.main_thread()
    longest = SIGNAL_SECONDS if in_main else OTHER_SECONDS
    until = time.monotonic() + seconds
    while True:
        left = max(0.0, until - time.monotonic())
        try:
            return inbox.get(timeout=min(left, longest))
        except queue.Empty:
            if left <= longest:
                raise
