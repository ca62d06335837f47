"""Sends what schedules want sent."""

from __future__ import annotations

from commandbus.operations.schedules import KIND, TOPIC, tick
from commandbus.operations.scope import Scope
from commandbus.store.op import Op
from commandbus.store.sessions import quiet

WITH_SCHEDULES, WITHOUT = 15.0, 120.0
"""Longest sleep where schedules that other processes change are not announced."""


class Scheduler:
    name = "scheduler"
    topic = TOPIC

    def work(self, scope: Scope) -> Op[float]:
        if (yield from scope.store.next_document_due(KIND)) is None:
            return quiet(scope.store, WITHOUT)
        report = yield from tick(scope)
        return min(quiet(scope.store, WITH_SCHEDULES), report.next_due_in or 0.0)
