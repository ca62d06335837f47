"""Taking back what a dead worker held."""

from __future__ import annotations

from commandbus.operations.scope import Scope
from commandbus.store.batching import TOPIC as BATCHES
from commandbus.store.deaths import DeathReport, WorkerDeath, report_on, settlements_after
from commandbus.store.op import Op, Wake


def recover(scope: Scope, death: WorkerDeath) -> Op[DeathReport]:
    """Give back everything that a dead worker held, in one transaction; see `store.deaths`. Harmless
    when it is repeated: a worker without leases has nothing to give back."""
    held = yield from scope.store.held_by(death.worker)
    if not held:
        return DeathReport()
    settlements = settlements_after(death, held)
    settled = yield from scope.store.settle(settlements)
    if settled.batches:
        yield Wake(BATCHES)
    return report_on(settlements, settled.lost)
