"""What is measured, and in which process.

Each figure comes from a fresh process with a fresh store, so that no subject warms up or litters the
memory of the next; repetitions of all subjects are interleaved, so that a slow moment of the machine
hits all of them.
"""

import importlib
import json
import pkgutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import bench.subjects

ROOT = Path(__file__).resolve().parents[1]
PAYLOAD = {"text": "x" * 89}
"""100 bytes of JSON."""
SECONDS_MAX = 300


@dataclass(frozen=True)
class Metric:
    name: str
    heading: str
    unit: str
    about: str
    higher_is_better: bool = True


METRICS = {
    metric.name: metric
    for metric in (
        Metric("bulk_send", "bulk send", "/s", "commands sent 1,000 at a time"),
        Metric("send_1", "send, 1", "/s", "single sends, each durable, by one sender"),
        Metric("send_16", "send, 16", "/s", "single sends by 16 concurrent senders of one process"),
        Metric("drain_1", "drain c1", "/s", "no-op commands, concurrency 1"),
        Metric("drain_10", "drain c10", "/s", "no-op commands, concurrency 10"),
        Metric("drain_100", "drain c100", "/s", "no-op commands, concurrency 100"),
        Metric("busy_100", "5 ms, c100", "%", "handlers of 5 ms, concurrency 100: share of the ideal"),
        Metric("pickup_p50", "pick-up p50", "ms", "send to an idle worker's handler", False),
        Metric("pickup_p99", "pick-up p99", "ms", "the same, the slowest of a hundred", False),
        Metric("memory", "worker", "MB", "resident memory after a drain", False),
        Metric("batch_rows", "rows, batched", "/s", "rows in commits of 100"),
        Metric("commits", "commits", "/s", "rows in commits of 1"),
        Metric("tasks", "tasks", "/s", "asyncio tasks that do nothing"),
        Metric("thread_calls", "thread calls", "/s", "calls through a thread pool of ten"),
    )
}


@dataclass(frozen=True)
class Options:
    """How much of everything; `folder` is fresh for each measurement."""

    commands: int = 20_000
    singles: int = 2_000
    pickups: int = 100
    folder: str = ""


Measurement = Callable[[Options], Mapping[str, float]]


@dataclass(frozen=True)
class Subject:
    """Something to measure. A measurement yields one figure or several, by the names of METRICS."""

    name: str
    group: str
    """Which table it belongs to."""
    measurements: Mapping[str, Measurement]
    note: str = ""
    """What a reader must know to compare it."""
    missing: str = ""
    """Why it cannot be measured here, or nothing."""


@dataclass
class Figures:
    """All values of all repetitions."""

    values: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    failures: dict[tuple[str, str], str] = field(default_factory=dict)

    def add(self, subject: str, figures: Mapping[str, float]) -> None:
        for metric, value in figures.items():
            self.values.setdefault((subject, metric), []).append(value)

    def median(self, subject: str, metric: str) -> float | None:
        values = self.values.get((subject, metric))
        return statistics.median(values) if values else None

    def spread(self, subject: str, metric: str) -> tuple[float, float] | None:
        values = self.values.get((subject, metric))
        return (min(values), max(values)) if values else None


def subjects() -> list[Subject]:
    """Every subject of every file in bench/subjects, in the order of the files' names."""
    names = sorted(module.name for module in pkgutil.iter_modules(bench.subjects.__path__))
    modules = [importlib.import_module(f"bench.subjects.{name}") for name in names]
    return [subject for module in modules for subject in module.subjects()]


def measure_all(
    chosen: list[Subject], only: set[str], options: Options, repeat: int
) -> Iterator[tuple[Subject, str, int, Mapping[str, float] | str]]:
    """Figures, or a text that says why there are none, as they come."""
    names = list(dict.fromkeys(name for subject in chosen for name in subject.measurements))
    for turn in range(repeat):
        for name in names:
            for subject in chosen:
                wanted = not only or name in only
                if name in subject.measurements and not subject.missing and wanted:
                    yield subject, name, turn, measure(subject.name, name, options)


def measure(subject: str, measurement: str, options: Options) -> Mapping[str, float] | str:
    """Run one measurement in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="commandbus-bench-") as folder:
        order = {
            "subject": subject,
            "measurement": measurement,
            "options": vars(options) | {"folder": folder},
        }
        try:
            done = subprocess.run(
                [sys.executable, "-m", "bench.measure", json.dumps(order)],
                cwd=ROOT,
                capture_output=True,
                text=True,
                timeout=SECONDS_MAX,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"not finished after {SECONDS_MAX} s"
    if done.returncode != 0:
        return (done.stderr.strip().splitlines() or ["ended without a word"])[-1]
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def resident_megabytes() -> float:
    """Resident memory of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


def percentiles(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    return {
        "pickup_p50": 1_000 * ordered[len(ordered) // 2],
        "pickup_p99": 1_000 * ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))],
    }


def start_sender(subject: str, **order: Any) -> subprocess.Popen[bytes]:
    """A process that sends on behalf of a measurement; see `bench.sender`."""
    return subprocess.Popen(
        [sys.executable, "-m", "bench.sender", json.dumps({"subject": subject} | order)], cwd=ROOT
    )


def main() -> None:
    order = json.loads(sys.argv[1])
    (subject,) = [one for one in subjects() if one.name == order["subject"]]
    figures = subject.measurements[order["measurement"]](Options(**order["options"]))
    print(json.dumps(dict(figures)))


if __name__ == "__main__":
    main()
