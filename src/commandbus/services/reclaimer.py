"""Notices the end of other workers' leases: an idle worker would learn of it only at its poll interval.

It looks once per lease length, so that it sees every lease before it ends, and then exactly when the
first one ends; taking back is done by the claim that it wakes.
"""

from __future__ import annotations

from collections.abc import Sequence

from commandbus.operations.scope import Scope
from commandbus.store.op import Op, Wake


class Reclaimer:
    name = "reclaimer"
    topic = "commandbus.leases"

    def __init__(self, worker: str, domains: Sequence[str], lease_seconds: float) -> None:
        self._worker = worker
        self._domains = domains
        self._seconds = lease_seconds

    def work(self, scope: Scope) -> Op[float]:
        ends_in = yield from scope.store.next_lease_end(self._worker)
        if ends_in is None:
            return self._seconds
        if ends_in <= 0:
            for domain in self._domains:
                yield Wake(domain)
        return min(self._seconds, max(0.25, ends_in))
