"""The services that every worker runs beside its handlers."""

from __future__ import annotations

from collections.abc import Callable

from commandbus.domain.breaker_board import BreakerBoard
from commandbus.domain.moment import as_seconds
from commandbus.domain.presence import WorkerInfo
from commandbus.operations.retention import check_retention
from commandbus.services.base import Service
from commandbus.services.batch_closer import BatchCloser
from commandbus.services.breakers import BreakerSharing
from commandbus.services.cancellations import Cancellations
from commandbus.services.escalator import Escalator
from commandbus.services.historian import Historian
from commandbus.services.linker import Linker
from commandbus.services.presence import Presence
from commandbus.services.pruner import Pruner
from commandbus.services.reclaimer import Reclaimer
from commandbus.services.restarts import Restarts
from commandbus.services.scheduler import Scheduler
from commandbus.settings import BusSettings


def standard_services(
    info: WorkerInfo,
    breakers: BreakerBoard,
    closer: BatchCloser,
    cancellations: Cancellations,
    restarts: Restarts,
    reclaimer: Reclaimer,
    historian: Historian,
    lease_seconds: float,
    settings: BusSettings,
    refresh: Callable[[WorkerInfo], WorkerInfo] = lambda info: info,
    load: Callable[[], int] | None = None,
) -> list[Service]:
    retention, after = settings.retention, settings.escalate_after
    pruning = [] if not retention else [Pruner(check_retention(retention))]
    escalating = (
        [] if after is None else [Escalator(as_seconds(after, "escalate_after"), settings.escalate_to)]
    )
    return [
        *pruning,
        *escalating,
        historian,
        Presence(info, lease_seconds, refresh, load),
        Scheduler(),
        BreakerSharing(breakers, info.name),
        reclaimer,
        closer,
        cancellations,
        restarts,
        Linker(),
    ]
