"""Keeps a sample of every domain's figures once a minute, whichever worker comes first; the others take
none, since a sample of a deep queue counts up to 100,000 rows.

A fleet without work takes samples ever more rarely: nothing changes, and idle stores are left alone.
With a session a worker that did nothing since its last sample takes none for minutes.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from commandbus.operations.history import record_history, take_samples, take_turn
from commandbus.operations.scope import Scope
from commandbus.store.op import Op
from commandbus.store.sessions import QUIET_SECONDS

BUSY, IDLE_MAX = 60.0, 900.0


class Historian:
    name = "historian"
    topic = "commandbus.history"
    look_seconds = BUSY

    def __init__(
        self,
        activity: Callable[[], object] = lambda: None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pause = BUSY
        self._last: object = None
        self._activity = activity
        """What changes with everything that the worker does."""
        self._monotonic = monotonic
        self._done: object = None
        self._quiet_until = float("-inf")

    def look(self) -> bool:
        return self._activity() != self._done or self._monotonic() >= self._quiet_until

    def work(self, scope: Scope) -> Op[float]:
        self._done = self._activity()
        if (yield from take_turn(scope)):
            yield from self._sample(scope)
        if not scope.store.session:
            return self._pause
        self._quiet_until = self._monotonic() + QUIET_SECONDS
        return BUSY

    def _sample(self, scope: Scope) -> Op[None]:
        taken = yield from take_samples(scope)
        figures = [
            msgspec.structs.astuple(history.samples[0])[1:8] for history in taken
        ]  # without the moment, the age and the percentiles, which change by themselves
        if figures == self._last:
            self._pause = min(IDLE_MAX, self._pause * 2)
        else:
            self._pause = BUSY
            yield from record_history(scope, taken)
        self._last = figures
