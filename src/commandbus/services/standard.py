"""The services that every worker runs beside its handlers."""

from __future__ import annotations

from collections.abc import Mapping

from commandbus.domain.gates import Gates
from commandbus.domain.moment import Duration
from commandbus.domain.presence import WorkerInfo
from commandbus.operations.retention import check_retention
from commandbus.services.base import Service
from commandbus.services.batch_closer import BatchCloser
from commandbus.services.breakers import BreakerSharing
from commandbus.services.cancellations import Cancellations
from commandbus.services.historian import Historian
from commandbus.services.presence import Presence
from commandbus.services.pruner import Pruner
from commandbus.services.reclaimer import Reclaimer
from commandbus.services.restarts import Restarts
from commandbus.services.scheduler import Scheduler


def standard_services(
    info: WorkerInfo,
    gates: Gates,
    closer: BatchCloser,
    cancellations: Cancellations,
    restarts: Restarts,
    lease_seconds: float,
    retention: Mapping[str, Duration] | None = None,
) -> list[Service]:
    pruning = [] if not retention else [Pruner(check_retention(retention))]
    return [
        *pruning,
        Historian(),
        Presence(info),
        Scheduler(),
        BreakerSharing(gates, info.name),
        Reclaimer(info.name, info.domains, lease_seconds),
        closer,
        cancellations,
        restarts,
    ]
