"""Figures of the store for Prometheus: asked for in one place, once for a whole fleet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from commandbus.domain.breaker import BreakerSnapshot, BreakerState
from commandbus.domain.presence import WorkerInfo, WorkerState
from commandbus.domain.process.values import ProcessCount
from commandbus.domain.schedule import ScheduleRecord
from commandbus.observe.text import Exposition
from commandbus.operations.history import Sample
from commandbus.settings import VERSION


def write_store(
    out: Exposition,
    samples: Mapping[str, Sample],
    breakers: Iterable[BreakerSnapshot],
    workers: Iterable[WorkerInfo],
    schedules: Iterable[ScheduleRecord],
    processes: Iterable[ProcessCount],
    engine: str,
) -> None:
    """Depths, ages and counts by domain; the oldest age is the one to alert on."""
    domains = sorted(samples.items())
    out.add(
        "queue_depth",
        "gauge",
        "Commands by where they are; waiting ones are counted up to 100000.",
        *(
            ({"domain": name, "state": state}, getattr(sample, state))
            for name, sample in domains
            for state in ("ready", "scheduled", "running")
        ),
    )
    out.add(
        "queue_oldest_age_seconds",
        "gauge",
        "How long the oldest ready command has been waiting.",
        *(({"domain": name}, sample.oldest or 0.0) for name, sample in domains),
    )
    out.add(
        "tsq_depth",
        "gauge",
        "Commands that wait for an operator.",
        *(({"domain": name}, sample.parked) for name, sample in domains),
    )
    out.add(
        "commands_ended_total",
        "counter",
        "Commands that ended, in the whole fleet, since the store was made.",
        *(
            ({"domain": name, "outcome": outcome}, getattr(sample, outcome))
            for name, sample in domains
            for outcome in ("completed", "failed", "canceled")
        ),
    )
    out.add(
        "queue_wait_seconds",
        "gauge",
        "How long the newest commands waited after they were due: the 95th percentile.",
        *(
            ({"domain": n, "quantile": "0.95"}, s.wait_p95)
            for n, s in domains
            if s.wait_p95 is not None
        ),
    )
    out.add(
        "tsq_actions_total",
        "counter",
        "What operators did about parked commands, in the whole fleet, since the store was made.",
        *(
            ({"domain": name, "action": action}, count)
            for name, sample in domains
            for action, count in sample.actions.items()
        ),
    )
    _write_fleet(out, [name for name, _ in domains], breakers, workers)
    _write_plans(out, schedules, processes)
    out.add("build_info", "gauge", "Always 1.", ({"version": VERSION, "engine": engine}, 1))


def _write_fleet(
    out: Exposition,
    domains: Iterable[str],
    breakers: Iterable[BreakerSnapshot],
    workers: Iterable[WorkerInfo],
) -> None:
    out.add(
        "breaker_state",
        "gauge",
        "1 for the present state of a breaker.",
        *(
            ({"breaker": breaker.target, "state": state.lower()}, int(breaker.state is state))
            for breaker in breakers
            for state in BreakerState
        ),
    )
    serving, states = dict.fromkeys(domains, 0), dict.fromkeys(WorkerState, 0)
    for worker in workers:
        states[worker.state] += 1
        for name in worker.domains:
            serving[name] = serving.get(name, 0) + (worker.concurrency if worker.claims else 0)
    out.add(
        "fleet_slots",
        "gauge",
        "Slots of the workers that reported themselves recently and claim commands.",
        *(({"domain": name}, slots) for name, slots in sorted(serving.items())),
    )
    out.add(
        "fleet_workers",
        "gauge",
        "Workers and process routers that reported themselves recently: running, quiet or stopping.",
        *(({"state": state.lower()}, count) for state, count in states.items()),
    )


def _write_plans(
    out: Exposition, schedules: Iterable[ScheduleRecord], processes: Iterable[ProcessCount]
) -> None:
    now = datetime.now(UTC)
    out.add(
        "schedule_lag_seconds",
        "gauge",
        "How late a schedule is; 0 while it waits for its time.",
        *(
            ({"schedule": record.schedule.name}, max(0.0, (now - record.next_run).total_seconds()))
            for record in schedules
            if record.next_run is not None
        ),
    )
    out.add(
        "process_instances",
        "gauge",
        "Processes that have not ended, counted up to 100000.",
        *(({"type": p.process_type, "state": p.status.lower()}, p.count) for p in processes),
    )
