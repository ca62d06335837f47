"""Asks the store whether it answers, without waiting for it longer than a probe may."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from commandbus.errors import StoreUnavailable

ANSWER_SECONDS = 1.5
"""Orchestrators give a probe a second or a few."""


class StoreAnswer:
    """A question that is on its way to the store."""

    def __init__(self, ask: Callable[[], None]) -> None:
        self._ask = ask
        self._answered = threading.Event()
        self._answered_at = 0.0
        self._error: Exception | None = None

    def is_over(self, max_age: float) -> bool:
        """Whether it was answered longer ago than so many seconds."""
        return self._answered.is_set() and time.monotonic() - self._answered_at >= max_age

    def wait(self, seconds: float) -> None:
        """Raises what is wrong with the store, or StoreUnavailable when it does not say in time."""
        if not self._answered.wait(seconds):
            raise StoreUnavailable(f"The store did not answer within {ANSWER_SECONDS:g} s.")
        if self._error is not None:
            raise self._error

    def run(self) -> None:
        try:
            self._ask()
        except Exception as error:  # raised where it is waited for
            self._error = error
        finally:
            self._answered_at = time.monotonic()
            self._answered.set()


class StoreCheck:
    """At most one question at a time, in a thread of its own: a store that stands still holds up one
    thread, however many probes ask."""

    def __init__(self, ask: Callable[[], None]) -> None:
        self._ask = ask
        self._lock = threading.Lock()
        self._asked: StoreAnswer | None = None

    def begin(self, max_age: float = 0.0) -> StoreAnswer:
        """The question that is on its way, or was answered a moment ago, else a new one."""
        with self._lock:
            if self._asked is None or self._asked.is_over(max_age):
                self._asked = StoreAnswer(self._ask)
                threading.Thread(target=self._asked.run, name="commandbus-check", daemon=True).start()
            return self._asked
