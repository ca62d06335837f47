"""Brings the schedules and limits of a worker's registry into the store, when the worker starts."""

from __future__ import annotations

import logging

from commandbus.operations.declaring import Declared, declare
from commandbus.operations.scope import Scope
from commandbus.store.op import Op

logger = logging.getLogger("commandbus.declarations")

AGAIN = 86_400.0


class Declarer:
    name = "declarer"
    topic = "commandbus.declarations"

    def __init__(self, registry: Declared) -> None:
        self._registry = registry
        self._done = False

    def work(self, scope: Scope) -> Op[float]:
        if self._done:
            return AGAIN
        report = yield from declare(scope, self._registry)
        for key in report.kept:
            logger.info("%s was changed by an operator, and stays as it is", key)
        for key in report.gone:
            logger.warning("%s is not declared any more, and stays until an operator removes it", key)
        return AGAIN

    def confirm(self) -> None:
        self._done = True
