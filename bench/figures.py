"""Figures of a run: values of all repetitions, medians and spreads, and the file that keeps them."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Metric:
    """What a figure is called, and what it means."""

    name: str
    heading: str
    unit: str
    about: str
    more_is_better: bool = True


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("bulk_send", "bulk send", "/s", "commands sent 1,000 a call by one sender"),
        Metric("send_1", "send, 1 sender", "/s", "single sends by one sender, while a worker is busy"),
        Metric(
            "send_16",
            "send, 16 senders",
            "/s",
            "single sends by 16 senders of one process, while a worker is busy",
        ),
        Metric("drain_10", "drain c10", "/s", "no-op commands, concurrency 10, one process"),
        Metric("drain_100", "drain c100", "/s", "no-op commands, concurrency 100, one process"),
        Metric(
            "drain_best",
            "drain, best",
            "/s",
            "no-op commands, one process, at the concurrency that suits it best",
        ),
        Metric(
            "drain_2",
            "drain, 2 processes",
            "/s",
            "no-op commands, two processes, each at its best concurrency",
        ),
        Metric(
            "drain_call",
            "drain, one call",
            "/s",
            "handlers that make one system call, concurrency 16, one process",
        ),
        Metric("drain_wait", "drain, 1 ms", "/s", "handlers that wait 1 ms, concurrency 16"),
        Metric("busy", "5 ms handlers", "%", "concurrency 100: share of the ideal 20,000 per second"),
        Metric(
            "pickup_p50", "pick-up p50", "ms", "send by another process to the handler's start", False
        ),
        Metric("pickup_p99", "pick-up p99", "ms", "the same way, of 250 a turn", False),
        Metric(
            "urgent_p50",
            "urgent p50",
            "ms",
            "a command of high priority that another process sends during a drain, to its start",
            False,
        ),
        Metric("urgent_p99", "urgent p99", "ms", "the same way, of 100 a turn", False),
        Metric(
            "idle", "idle", "statements/s", "statements of one worker that has nothing to do", False
        ),
        Metric("memory", "worker memory", "MB", "peak resident memory during a drain", False),
        Metric("wal", "WAL", "bytes/command", "written for the drain of one command", False),
        Metric(
            "send_wal", "WAL, send", "bytes/command", "written for the bulk send of one command", False
        ),
        Metric("commits", "commits", "/command", "transactions of the drain", False),
        Metric("dead", "dead rows", "/command", "rows that send and drain leave to vacuum", False),
        Metric(
            "send_cpu",
            "server CPU, send",
            "µs/command",
            "of all server processes in a bulk send",
            False,
        ),
        Metric(
            "server_cpu", "server CPU, drain", "µs/command", "of all server processes in a drain", False
        ),
        Metric("worker_cpu", "worker CPU", "µs/command", "of the worker during a drain", False),
        Metric("snapshot", "held snapshot", "%", "rate of the last tenth to that of the first"),
        Metric("snapshot_rate", "drain, held snapshot", "/s", "drain while an old snapshot is held"),
    )
}

LIMITS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("insert_1", "bare INSERT, 1 client", "/s", "one row a commit"),
        Metric(
            "insert_16", "bare INSERT, 16 clients", "/s", "one row a commit, threads of one process"
        ),
        Metric("pgbench_16", "bare INSERT, 16 clients of pgbench", "/s", "the same without Python"),
        Metric("copy_1", "COPY into one table", "rows/s", "1,000 rows a commit, one index"),
        Metric(
            "copy_2", "COPY into two tables", "rows/s", "1,000 rows in each a commit, one index each"
        ),
        Metric("claim_10", "claim and delete, 10 at a time", "rows/s", "SQL alone, one client"),
        Metric("claim_100", "claim and delete, 100 at a time", "rows/s", "SQL alone, one client"),
        Metric("claim_1000", "claim and delete, 1,000 at a time", "rows/s", "SQL alone, one client"),
        Metric("notify_p50", "NOTIFY and one claim, p50", "ms", "between two processes", False),
        Metric("notify_p99", "NOTIFY and one claim, p99", "ms", "the slowest of a hundred", False),
        Metric("tasks", "asyncio tasks that do nothing", "/s", "one process"),
        Metric("thread_calls", "calls through a pool of ten threads", "/s", "one process"),
        Metric("wait_share", "tasks that wait 5 ms", "%", "100 of them: share of 20,000 per second"),
        Metric(
            "wait_threads", "threads to tasks that wait 1 ms", "×", "16, which compute 20 µs as well"
        ),
        Metric("sqlite_commits", "SQLite, one row a commit", "/s", "WAL, synchronous=FULL"),
        Metric("sqlite_rows", "SQLite, 100 rows a commit", "rows/s", "WAL, synchronous=FULL"),
        Metric("send_named", "our send by names, in memory", "/s", "one thread, one command a call"),
        Metric("send_typed", "our typed send, in memory", "/s", "the same payload, with a contract"),
        Metric("typed_cost", "cost of a contract", "%", "of a send by names, in pairs", False),
    )
}


@dataclass
class Results:
    """A whole run; `python -m bench.page` writes the page from it."""

    about: dict[str, Any] = field(default_factory=dict)
    """Machine, versions, settings, when, how long."""
    values: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    """By subject and metric: the value of each repetition."""
    sizes: dict[str, dict[str, int]] = field(default_factory=dict)
    """By subject and scenario: of how many commands."""
    failures: dict[str, dict[str, str]] = field(default_factory=dict)
    """By subject and scenario; the scenario "install" stands for the whole subject."""
    growth: dict[str, Any] = field(default_factory=dict)

    def add(self, subject: str, figures: Mapping[str, float]) -> None:
        kept = self.values.setdefault(subject, {})
        for name, value in figures.items():
            kept.setdefault(name, []).append(value)

    def fail(self, subject: str, scenario: str, reason: str) -> None:
        self.failures.setdefault(subject, {})[scenario] = reason

    def median(self, subject: str, metric: str) -> float | None:
        values = self.values.get(subject, {}).get(metric)
        return statistics.median(values) if values else None

    def spread(self, subject: str, metric: str) -> tuple[float, float] | None:
        values = self.values.get(subject, {}).get(metric)
        return (min(values), max(values)) if values else None

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Results:
        return cls(**json.loads(path.read_text(encoding="utf-8")))


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def number(value: float) -> str:
    """Two or three digits that matter."""
    if value >= 1_000_000:
        return f"{value / 1_000_000:.1f}M"
    if value >= 10_000:
        return f"{value / 1_000:.0f}k"
    if value >= 1_000:
        return f"{value / 1_000:.1f}k"
    if value >= 10:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 1 or value == 0 else f"{value:.2g}"
