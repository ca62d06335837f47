"""What always holds in a worker core, whatever happens to it."""

from __future__ import annotations

from commandbus.worker.core import WorkerCore


def check_core(core: WorkerCore) -> None:
    assert core.held >= 0, "more runs ended than began"
    members = core._leases.count()
    waiting = core.held + len(core.unsettled) + len(core.settling)
    assert waiting <= members, "a command is held that belongs to no lease"
