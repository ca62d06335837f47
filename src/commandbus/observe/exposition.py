"""A worker's figures as Prometheus text."""

from __future__ import annotations

from commandbus.observe.commands import CommandFigures
from commandbus.observe.text import CONTENT_TYPE, Exposition
from commandbus.worker.base import WorkerBase
from commandbus.worker.health import HealthState

__all__ = ["CONTENT_TYPE", "render"]


def render(worker: WorkerBase) -> str:
    """The counters of one worker; figures of the store come from elsewhere, once for a fleet."""
    metrics, health = worker.metrics, worker.health_status.report()
    lines: list[str] = []

    def add(name: str, kind: str, text: str, *samples: tuple[str, float]) -> None:
        lines.extend((f"# HELP commandbus_{name} {text}", f"# TYPE commandbus_{name} {kind}"))
        lines.extend(f"commandbus_{name}{labels} {value}" for labels, value in samples)

    by_type = Exposition()
    if isinstance(worker.observer, CommandFigures):
        worker.observer.write(by_type)
    finished = metrics.batches_processed
    add(
        "polls_total",
        "counter",
        "Claims by what they found.",
        ('{result="found"}', finished),
        ('{result="empty"}', metrics.empty_receives),
        ('{result="failed"}', metrics.claim_failures),
    )
    add("commands_received_total", "counter", "Commands claimed.", ("", metrics.commands_received))
    add("commands_settled_total", "counter", "Outcomes recorded.", ("", metrics.commands_settled))
    add("settle_failures_total", "counter", "Settles that failed.", ("", metrics.settle_failures))
    add("lease_lost_total", "counter", "Outcomes refused: lease gone.", ("", metrics.leases_lost))
    add("lease_expired_total", "counter", "Commands rescued from others.", ("", metrics.rescued))
    wakeups = sorted(metrics.wakeups.items())
    samples = [(f'{{source="{source}"}}', count) for source, count in wakeups]
    add("wakeups_total", "counter", "Wake-ups by source.", *samples)
    add("claim_seconds_total", "counter", "Time spent claiming.", ("", metrics.fetch_seconds))
    add("handler_seconds_total", "counter", "Time spent in handlers.", ("", metrics.process_seconds))
    busy = min(worker.in_flight_count, worker.concurrency)
    add(
        "worker_slots",
        "gauge",
        "Slots by what they do.",
        ('{state="busy"}', busy),
        ('{state="idle"}', worker.concurrency - busy),
    )
    add("worker_up", "gauge", "Whether the worker runs.", ("", int(worker.is_running)))
    add(
        "worker_health",
        "gauge",
        "1 for the present state.",
        *((f'{{state="{state}"}}', int(health.state is state)) for state in HealthState),
    )
    add("stuck_threads", "gauge", "Threads given up.", ("", health.stuck_threads))
    add("loop_stalls_total", "counter", "Blocked event loops seen.", ("", health.loop_stalls))
    if (held := worker.connections) is not None:
        add(
            "connections",
            "gauge",
            "Connections of this process to the server.",
            ('{use="busy"}', held.busy),
            ('{use="reserved"}', held.reserved),
            ('{use="listen"}', held.listening),
        )
        add("connections_max", "gauge", "Most that may be busy at once.", ("", held.busy_max))
    add("pool_exhaustions", "gauge", "Waits in vain, in a row.", ("", health.pool_exhaustions))
    return "\n".join(lines) + "\n" + by_type.text().lstrip("\n")
