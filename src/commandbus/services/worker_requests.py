"""Tells a worker what operators ask of it."""

from __future__ import annotations

from collections.abc import Callable

from commandbus.domain.presence import WorkerRequest
from commandbus.operations.scope import Scope
from commandbus.operations.worker_requests import request_of
from commandbus.store.op import Op, autocommit
from commandbus.store.sessions import WORKER_REQUESTS, quiet

SWEEP = 30.0
"""How often to look where requests of other processes are not announced."""
QUIET_SWEEP = 2.0
"""The same while the worker is quiet: nothing else makes its process look at the store."""


class WorkerRequests:
    """Runs when something is asked of any worker."""

    name = "worker_requests"
    topic = WORKER_REQUESTS

    def __init__(self, worker: str, tell: Callable[[WorkerRequest], None]) -> None:
        self._worker, self._tell = worker, tell

    @autocommit
    def work(self, scope: Scope) -> Op[float]:
        request = yield from request_of(scope, self._worker)
        self._tell(request)
        return quiet(scope.store, SWEEP if request.quiet is None else QUIET_SWEEP)
