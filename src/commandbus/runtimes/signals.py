"""Signals for a worker in a program of one's own: `worker.run(signals=True)`."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Self

from commandbus.errors import InvalidOperationError

# Windows has no SIGTERM from outside; Ctrl-Break is what a supervisor can send there.
HEARD = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGBREAK") if hasattr(signal, name)
)


class StopBySignal:
    """While it is entered, the first signal stops gracefully and the second cancels what runs; a third
    does what it did before, as a rule to end the process.

    `stop` gets the seconds that handlers still have, None for all of them. It is called in the main
    thread between two of its steps, so it must not wait.
    """

    def __init__(self, stop: Callable[[float | None], None]) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise InvalidOperationError(
                "run(signals=True) works in the main thread only, because Python delivers signals "
                "there; run the worker there, or leave signals out and call stop() yourself."
            )
        self._stop = stop
        self._count = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in HEARD:
            self._before[number] = signal.signal(number, self._heard)
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    def _heard(self, number: int, frame: FrameType | None) -> None:
        self._count += 1
        if self._count > 1:
            self._restore()
        self._stop(None if self._count == 1 else 0.0)

    def _restore(self) -> None:
        before, self._before = self._before, {}
        for number, handler in before.items():
            # None is a handler that was not installed from Python.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
