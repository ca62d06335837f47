"""Forgets what ended long ago, a small piece at a time, where retention is configured."""

from __future__ import annotations

from collections.abc import Mapping

from commandbus.operations.retention import retain
from commandbus.operations.scope import Scope
from commandbus.store.op import Op

BETWEEN_PIECES, BETWEEN_PASSES = 0.2, 600.0


class Pruner:
    name = "pruner"
    topic = "commandbus.retention"

    def __init__(self, keep: Mapping[str, float]) -> None:
        self._keep = keep
        self._after = 0

    def work(self, scope: Scope) -> Op[float]:
        step = yield from retain(scope, self._keep, self._after)
        self._after = step.last or 0
        return BETWEEN_PASSES if step.last is None else BETWEEN_PIECES
