"""Tells a worker which of its commands are to stop."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from commandbus.operations.canceling import open_requests
from commandbus.operations.scope import Scope
from commandbus.store.op import Op
from commandbus.store.records import CancelRequest
from commandbus.store.sessions import CANCELLATIONS, quiet

SWEEP = 300.0
"""How often to look for requests whose notification was lost, because their worker died for example."""


class Cancellations:
    """Runs when a cancellation is requested, and with every renewal of a lease."""

    name = "cancellations"
    topic = CANCELLATIONS

    def __init__(
        self, domains: Sequence[str], tell: Callable[[dict[int, CancelRequest]], None]
    ) -> None:
        self._domains = domains
        self._tell = tell

    def work(self, scope: Scope) -> Op[float]:
        self._tell((yield from open_requests(scope, self._domains)))
        return quiet(scope.store, SWEEP)
