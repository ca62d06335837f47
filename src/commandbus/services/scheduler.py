"""Sends what schedules want sent."""

from __future__ import annotations

from commandbus.operations.schedules import TOPIC, tick
from commandbus.operations.scope import Scope
from commandbus.store.op import Op

WITH_SCHEDULES, WITHOUT = 15.0, 60.0
"""Longest sleep, so that schedules which other processes change are noticed."""


class Scheduler:
    name = "scheduler"
    topic = TOPIC

    def work(self, scope: Scope) -> Op[float]:
        report = yield from tick(scope)
        if report.next_due_in is None:
            return WITHOUT
        return min(WITH_SCHEDULES, report.next_due_in)
