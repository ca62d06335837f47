"""A worker's figures, and a sender's, as Prometheus text."""

from __future__ import annotations

from typing import Protocol

from commandbus.observe.commands import CommandFigures
from commandbus.observe.text import CONTENT_TYPE, Exposition
from commandbus.operations.scope import Scope
from commandbus.settings import VERSION
from commandbus.store.sent import SentFigures
from commandbus.store.session import ConnectionUse
from commandbus.store.wakeup import WAKEUP_SOURCES
from commandbus.worker.base import WorkerBase
from commandbus.worker.health import Cause, HealthReport, HealthState
from commandbus.worker.metrics import CLAIM_BOUNDS, KILL_CAUSES, WorkerMetrics

__all__ = ["CONTENT_TYPE", "Sender", "render", "render_sender", "write_sent"]


class Sender(Protocol):
    """A bus of either runtime."""

    @property
    def scope(self) -> Scope: ...


def render_sender(bus: Sender) -> str:
    """What was sent through a bus, for a program with metrics of its own."""
    out = Exposition()
    write_sent(out, bus.scope.sent)
    return out.text()


def render(worker: WorkerBase) -> str:
    """The counters of one worker; figures of the store come from elsewhere, once for a fleet."""
    out = Exposition()
    _write_work(out, worker.metrics)
    _write_state(out, worker, worker.health_status.report())
    if (held := worker.connections) is not None:
        _write_connections(out, held)
    write_sent(out, worker.sent)
    if isinstance(worker.observer, CommandFigures):
        worker.observer.write(out)
    return out.text()


def write_sent(out: Exposition, sent: SentFigures) -> None:
    out.add(
        "commands_sent_total",
        "counter",
        "Commands that this process has sent.",
        *(({"domain": d, "type": t}, count) for (d, t), count in sent.counts().items()),
    )


def _write_work(out: Exposition, metrics: WorkerMetrics) -> None:
    out.add(
        "polls_total",
        "counter",
        "Claims by what they found.",
        ({"result": "found"}, metrics.batches_processed),
        ({"result": "empty"}, metrics.empty_receives),
        ({"result": "failed"}, metrics.claim_failures),
    )
    out.histograms(
        "claim_duration_seconds",
        "How long claims took, whatever they found.",
        CLAIM_BOUNDS,
        ({}, metrics.claim_counts, metrics.fetch_seconds),
    )
    out.add("commands_received_total", "counter", "Commands claimed.", ({}, metrics.commands_received))
    out.add("commands_settled_total", "counter", "Outcomes recorded.", ({}, metrics.commands_settled))
    out.add("settle_failures_total", "counter", "Settles that failed.", ({}, metrics.settle_failures))
    out.add("lease_lost_total", "counter", "Outcomes refused: lease gone.", ({}, metrics.leases_lost))
    out.add("lease_expired_total", "counter", "Commands rescued from others.", ({}, metrics.rescued))
    out.add(
        "handler_seconds_total", "counter", "Time spent in handlers.", ({}, metrics.process_seconds)
    )
    wakeups = sorted((dict.fromkeys(WAKEUP_SOURCES, 0) | metrics.wakeups).items())
    samples = [({"source": source}, count) for source, count in wakeups]
    out.add("wakeups_total", "counter", "Wake-ups by source.", *samples)
    out.add("children", "gauge", "Processes for isolated handlers.", ({}, metrics.children))
    out.add("child_restarts_total", "counter", "Children replaced.", ({}, metrics.child_restarts))
    out.add(
        "child_kills_total",
        "counter",
        "Children killed, by cause.",
        *(({"cause": cause}, metrics.child_kills.get(cause, 0)) for cause in KILL_CAUSES),
    )
    out.add(
        "watchdog_recoveries_total",
        "counter",
        "Restarts by the watchdog, by what was wrong.",
        *(({"kind": cause}, metrics.recoveries.get(cause, 0)) for cause in Cause),
    )


def _write_state(out: Exposition, worker: WorkerBase, health: HealthReport) -> None:
    busy = min(worker.in_flight_count, worker.concurrency)
    out.add(
        "worker_slots",
        "gauge",
        "Slots by what they do.",
        ({"state": "busy"}, busy),
        ({"state": "idle"}, worker.concurrency - busy),
    )
    out.add("worker_up", "gauge", "Whether the worker runs.", ({}, int(worker.is_running)))
    out.add(
        "worker_health",
        "gauge",
        "1 for the present state.",
        *(({"state": state}, int(health.state is state)) for state in HealthState),
    )
    out.add("stuck_threads", "gauge", "Threads given up.", ({}, health.stuck_threads))
    out.add("loop_stalls_total", "counter", "Blocked event loops seen.", ({}, health.loop_stalls))
    out.add(
        "pool_exhaustions",
        "gauge",
        "Consecutive timeouts of waits for a connection.",
        ({}, health.pool_exhaustions),
    )
    out.add("build_info", "gauge", "Always 1.", ({"version": VERSION, "engine": worker.scheme}, 1))


def _write_connections(out: Exposition, held: ConnectionUse) -> None:
    out.add(
        "pool_connections",
        "gauge",
        "Connections of this process to the server.",
        ({"state": "busy"}, held.busy),
        ({"state": "reserved"}, held.reserved),
        ({"state": "listening"}, held.listening),
    )
    out.add(
        "listener_failures_total",
        "counter",
        "Times that the connection that hears wake-ups was lost or could not be made.",
        ({}, held.listener_failures),
    )
    out.add(
        "listener_deaf", "gauge", "1 while it has been without one.", ({}, int(held.deaf is not None))
    )
    out.add("pool_connections_max", "gauge", "Most that may be busy at once.", ({}, held.busy_max))
