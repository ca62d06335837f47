"""`soft_time_limit`: an exception inside the thread that runs the task.

Celery interrupts its worker process by a signal. A thread has no signals, but Python can raise an
exception in it before its next instruction; a call that blocks outside Python is not interrupted.
"""

from __future__ import annotations

import ctypes
import threading
from contextlib import suppress
from types import TracebackType

from commandbus.integrations.celery.exceptions import SoftTimeLimitExceeded

_raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
_raise_in.argtypes = (ctypes.c_ulong, ctypes.py_object)


class SoftLimit:
    """Raises SoftTimeLimitExceeded in the block after `seconds`; None sets no limit."""

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._over = False
        self._fired = False
        self._thread = 0
        self._timer: threading.Timer | None = None

    def __enter__(self) -> None:
        if self._seconds is not None:
            self._thread = threading.get_ident()
            self._timer = threading.Timer(self._seconds, self._fire)
            self._timer.daemon = True
            self._timer.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._timer is None:
            return
        self._timer.cancel()
        with self._lock:
            self._over = True
            if self._fired and kind is not SoftTimeLimitExceeded:
                _absorb()

    def _fire(self) -> None:
        with self._lock:
            if not self._over:
                self._fired = True
                _raise_in(self._thread, SoftTimeLimitExceeded)


def _absorb() -> None:
    """Raise here what may be pending in this thread, so that it does not hit what the thread runs next.
    Taking it back would leave the interpreter's flag for it set, and code that is traced after that
    never goes on (CPython 3.11 and 3.12)."""
    with suppress(SoftTimeLimitExceeded):
        for _ in range(100):  # each turn looks for pending exceptions
            pass
