"""How a domain is doing, in one word, and what a person should look at."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from commandbus.domain.breaker import BreakerSnapshot, BreakerState
from commandbus.domain.presence import WorkerInfo
from commandbus.interfaces.cli.text import duration, plural
from commandbus.interfaces.web.schemas import Attention, DomainView
from commandbus.store.records import QueueStats

OLD_SECONDS, STUCK_SECONDS = 60.0, 600.0
"""Work that waits longer than this deserves a look; and a person."""

Health = Literal["ok", "idle", "paused", "warning", "critical"]


def domain_view(stats: QueueStats, workers: Iterable[WorkerInfo], rate: float) -> DomainView:
    serving = [worker for worker in workers if stats.domain in worker.domains]
    claiming = [worker for worker in serving if worker.claims]
    health, note = _judge(stats, len(serving), len(claiming))
    return DomainView(
        stats.domain,
        health,
        note,
        stats.ready,
        stats.scheduled,
        stats.running,
        stats.parked,
        stats.completed,
        stats.failed,
        stats.canceled,
        stats.oldest_ready_age,
        stats.paused,
        len(serving),
        sum(worker.concurrency for worker in claiming),
        rate,
        stats.ready / rate if stats.ready and rate > 0 else None,
    )


def _judge(stats: QueueStats, workers: int, claiming: int) -> tuple[Health, str]:
    age = stats.oldest_ready_age or 0.0
    if stats.paused:
        because = f": {stats.paused_reason}" if stats.paused_reason else ""
        return "paused", f"paused{because}"
    if stats.ready and not workers:
        return "critical", "work waits and no worker serves it"
    if stats.ready and not claiming:
        return "critical", "work waits and all its workers are quiet or stopping"
    if age > STUCK_SECONDS:
        return "critical", f"the oldest has waited {duration(age)}"
    if age > OLD_SECONDS:
        return "warning", f"the oldest has waited {duration(age)}"
    if stats.parked:
        return "warning", f"{plural(stats.parked, 'command')} parked"
    if not stats.ready and not stats.running:
        return "idle", "nothing to do"
    return "ok", "keeping up"


def attention_of(domains: Iterable[DomainView], breakers: Iterable[BreakerSnapshot]) -> list[Attention]:
    """The most urgent first."""
    found: list[Attention] = []
    for view in domains:
        place = f"/domains/{view.domain}"
        if view.health == "critical":
            found.append(Attention("critical", f"{view.domain}: {view.note}", place))
        elif view.paused:
            found.append(Attention("warning", f"{view.domain} is {view.note}", place))
        elif view.health == "warning" and (view.oldest_ready_age or 0) > OLD_SECONDS:
            found.append(Attention("warning", f"{view.domain}: {view.note}", place))
        if view.parked:
            waits = "waits" if view.parked == 1 else "wait"
            text = f"{view.domain}: {plural(view.parked, 'command')} {waits} for an operator"
            found.append(Attention("warning", text, f"/troubleshooting?domain={view.domain}"))
    found += [
        Attention("warning", f"{breaker.target}: the breaker is open", "/breakers")
        for breaker in breakers
        if breaker.state is BreakerState.OPEN
    ]
    return sorted(found, key=lambda item: item.level != "critical")
