"""Sends what schedules want sent."""

from __future__ import annotations

from commandbus.operations.schedules import KIND, TOPIC, tick
from commandbus.operations.scope import Scope
from commandbus.store.op import Op

WITH_SCHEDULES, WITHOUT = 15.0, 120.0
"""Longest sleep, so that schedules which other processes change are noticed."""


class Scheduler:
    name = "scheduler"
    topic = TOPIC

    def work(self, scope: Scope) -> Op[float]:
        if (yield from scope.store.next_document_due(KIND)) is None:
            return WITHOUT
        report = yield from tick(scope)
        return min(WITH_SCHEDULES, report.next_due_in or 0.0)
