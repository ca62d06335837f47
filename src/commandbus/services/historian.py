"""Keeps a sample of every domain's figures once a minute, whichever worker comes first.

A fleet without work takes samples ever more rarely: nothing changes, and idle stores are left alone.
"""

from __future__ import annotations

import msgspec

from commandbus.operations.history import record_history, take_samples
from commandbus.operations.scope import Scope
from commandbus.store.op import Op

BUSY, IDLE_MAX = 60.0, 900.0


class Historian:
    name = "historian"
    topic = "commandbus.history"

    def __init__(self) -> None:
        self._pause = BUSY
        self._last: object = None

    def work(self, scope: Scope) -> Op[float]:
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
        return self._pause
