"""The bars that the figures are judged by, and whether this run reached them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from bench.figures import Results, number
from bench.peers.catalogue import SUBJECTS

OURS, THREADS, SQLITE = "commandbus", "commandbus-threads", "commandbus-sqlite"
PGMQ = "commandbus-pgmq"
BATCHED, PGQUEUER, LIMITS = "graphile-worker-batched", "pgqueuer", "limits"
PEERS = [one.name for one in SUBJECTS if one.store == "postgres" and not one.is_ours]


@dataclass(frozen=True)
class Mark:
    """One bar or goal: what is compared, and what was found."""

    text: str
    found: float | None
    """None where a figure is missing."""
    wanted: float
    at_most: bool = False
    unit: str = "×"
    beyond: str = ""
    """Why it cannot be reached, where counts show that."""

    @property
    def is_reached(self) -> bool | None:
        if self.found is None:
            return None
        return self.found <= self.wanted if self.at_most else self.found >= self.wanted

    def __str__(self) -> str:
        if self.found is None:
            return f"{self.text}: not measured"
        found = f"{self.found:.2f} ×" if self.unit == "×" else f"{number(self.found)} {self.unit}"
        return f"{self.text}: {found}, {'reached' if self.is_reached else 'not reached'}"


@dataclass(frozen=True)
class Row:
    figure: str
    ours: str
    bar: Mark
    goal: Mark


@dataclass(frozen=True)
class Medians:
    """The figures of a run, and how they compare."""

    results: Results

    def of(self, subject: str, metric: str) -> float | None:
        return self.results.median(subject, metric)

    def ratio(self, metric: str, other: str, other_metric: str = "", ours: str = OURS) -> float | None:
        return _divide(self.of(ours, metric), self.of(other, other_metric or metric))

    def best(self, metric: str, choose: Callable[[Iterable[float]], float]) -> float | None:
        """The best peer's."""
        found = [value for name in PEERS if (value := self.of(name, metric)) is not None]
        return choose(found) if found else None


def judge(results: Results) -> list[Row]:
    """Every row that the bars name, whether or not its figures are there."""
    it = Medians(results)
    return [*_drains(it), *_costs(it), *_sends(it), *_waits(it), *_runtimes(it), *_conditions(it)]


def missed(results: Results) -> list[str]:
    """The bars that this run did not reach; those without figures are not judged."""
    return [f"{row.figure}: {row.bar}" for row in judge(results) if row.bar.is_reached is False]


def _drains(it: Medians) -> list[Row]:
    return [
        Row(
            "drain, one process, best concurrency",
            _show(it.of(OURS, "drain_best"), "/s"),
            Mark("≥ 3.5 × PgQueuer", it.ratio("drain_best", PGQUEUER), 3.5),
            Mark("≥ 2 × graphile-worker, batched", it.ratio("drain_best", BATCHED), 2),
        ),
        Row(
            "drain, one process, concurrency 10",
            _show(it.of(OURS, "drain_10"), "/s"),
            Mark("≥ 5 × PgQueuer at 10", it.ratio("drain_10", PGQUEUER), 5),
            Mark("≥ 0.9 × ours at 100", it.ratio("drain_10", OURS, "drain_100"), 0.9),
        ),
        Row(
            "drain, two processes",
            _show(it.of(OURS, "drain_2"), "/s"),
            Mark("≥ 1.4 × ours with one", it.ratio("drain_2", OURS, "drain_best"), 1.4),
            Mark("≥ 1.7 × graphile-worker, batched, with two", it.ratio("drain_2", BATCHED), 1.7),
        ),
        Row(
            "drain over PGMQ",
            _show(it.of(PGMQ, "drain_best"), "/s"),
            Mark("≥ 0.8 × ours without", it.ratio("drain_best", OURS, ours=PGMQ), 0.8),
            Mark("≥ 0.9 × ours without", it.ratio("drain_best", OURS, ours=PGMQ), 0.9),
        ),
    ]


def _costs(it: Medians) -> list[Row]:
    """Of one command in a drain."""
    return [
        Row(
            figure,
            _show(it.of(OURS, name), unit),
            Mark("≤ every peer", _divide(it.of(OURS, name), it.best(name, min)), 1, at_most=True),
            Mark(f"≤ {goal:g} {unit}".rstrip(), it.of(OURS, name), goal, at_most=True, unit=unit),
        )
        for figure, name, goal, unit in (
            ("processor time of the server for a drained command", "server_cpu", 6, "µs"),
            ("processor time of the worker for a drained command", "worker_cpu", 8, "µs"),
            ("WAL of a drained command", "wal", 150, "bytes"),
            ("dead rows of a drained command", "dead", 0.2, "rows"),
        )
    ]


def _sends(it: Medians) -> list[Row]:
    bulk = [v for name in (PGQUEUER, BATCHED, "graphile-worker") if (v := it.of(name, "bulk_send"))]
    bare = [value for name in ("insert_16", "pgbench_16") if (value := it.of(LIMITS, name))]
    return [
        Row(
            "bulk send",
            _show(it.of(OURS, "bulk_send"), "/s"),
            Mark(
                "≥ PgQueuer and graphile-worker",
                _divide(it.of(OURS, "bulk_send"), max(bulk, default=None)),
                1,
            ),
            Mark("≥ 0.5 × COPY into two tables", it.ratio("bulk_send", LIMITS, "copy_2"), 0.5),
        ),
        Row(
            "single sends, 1 sender, workers awake",
            _show(it.of(OURS, "send_1"), "/s"),
            Mark("≥ every peer", _divide(it.of(OURS, "send_1"), it.best("send_1", max)), 1),
            Mark("≥ 0.9 × bare INSERT", it.ratio("send_1", LIMITS, "insert_1"), 0.9),
        ),
        Row(
            "single sends, 16 threads, workers awake",
            _show(it.of(THREADS, "send_16"), "/s"),
            Mark("≥ every peer", _divide(it.of(THREADS, "send_16"), it.best("send_16", max)), 1),
            Mark("≥ 0.9 × 16 tasks", it.ratio("send_16", OURS, ours=THREADS), 0.9),
        ),
        Row(
            "single sends, 16 senders, workers awake",
            _show(it.of(OURS, "send_16"), "/s"),
            Mark("≥ 3 × the best peer", _divide(it.of(OURS, "send_16"), it.best("send_16", max)), 3),
            Mark(
                "≥ bare INSERT of 16 clients",
                _divide(it.of(OURS, "send_16"), max(bare, default=None)),
                1,
                beyond=_says(
                    "16 Python clients with nothing but that INSERT reach {:.2f} × of pgbench",
                    it.ratio("insert_16", LIMITS, "pgbench_16", LIMITS),
                    1,
                ),
            ),
        ),
    ]


def _waits(it: Medians) -> list[Row]:
    p50, p99 = it.best("pickup_p50", min), it.best("pickup_p99", min)
    pickup = _most(_divide(it.of(OURS, "pickup_p50"), p50), _divide(it.of(OURS, "pickup_p99"), p99))
    least_idle = it.best("idle", min)
    return [
        Row(
            "pick-up latency, p50 and p99",
            f"{_show(it.of(OURS, 'pickup_p50'), 'ms')}, {_show(it.of(OURS, 'pickup_p99'), 'ms')}",
            Mark("both ≤ the best peer", pickup, 1, at_most=True),
            Mark(
                "p50 ≤ 1.5 × bare NOTIFY and claim",
                it.ratio("pickup_p50", LIMITS, "notify_p50"),
                1.5,
                at_most=True,
            ),
        ),
        Row(
            "pick-up latency between processes, absolute",
            f"{_show(it.of(OURS, 'pickup_p50'), 'ms')}, {_show(it.of(OURS, 'pickup_p99'), 'ms')}",
            Mark("p50 ≤ 10 ms", it.of(OURS, "pickup_p50"), 10, at_most=True, unit="ms"),
            Mark("p99 ≤ 10 ms", it.of(OURS, "pickup_p99"), 10, at_most=True, unit="ms"),
        ),
        Row(
            "pick-up latency between processes on SQLite",
            f"{_show(it.of(SQLITE, 'pickup_p50'), 'ms')}, {_show(it.of(SQLITE, 'pickup_p99'), 'ms')}",
            Mark("p50 ≤ 10 ms", it.of(SQLITE, "pickup_p50"), 10, at_most=True, unit="ms"),
            Mark("p50 ≤ 1.5 ms", it.of(SQLITE, "pickup_p50"), 1.5, at_most=True, unit="ms"),
        ),
        *(
            Row(
                f"an urgent command during a drain{where}",
                f"{_show(it.of(name, 'urgent_p50'), 'ms')}, {_show(it.of(name, 'urgent_p99'), 'ms')}",
                Mark("p99 ≤ 25 ms", it.of(name, "urgent_p99"), 25, at_most=True, unit="ms"),
                Mark("p50 ≤ 5 ms", it.of(name, "urgent_p50"), 5, at_most=True, unit="ms"),
            )
            for name, where in ((OURS, ""), (SQLITE, " on SQLite"))
        ),
        Row(
            "idle load against a claim every 50 ms",
            _show(it.of(OURS, "idle"), "/s"),
            Mark("≤ 1 %", _percent(it.of(OURS, "idle"), 20), 1, at_most=True, unit="%"),
            Mark("over PGMQ, too: ≤ 1 %", _percent(it.of(PGMQ, "idle"), 20), 1, at_most=True, unit="%"),
        ),
        Row(
            "idle statements per second",
            _show(it.of(OURS, "idle"), "/s"),
            Mark(
                "≤ every peer",
                it.of(OURS, "idle"),
                least_idle if least_idle is not None else 0.0,
                at_most=True,
                unit="/s",
            ),
            Mark("≤ 0.05", it.of(OURS, "idle"), 0.05, at_most=True, unit="/s"),
        ),
    ]


def _runtimes(it: Medians) -> list[Row]:
    """Threads beside tasks."""
    return [
        Row(
            "thread runtime to asyncio, drain",
            _show(it.of(THREADS, "drain_best"), "/s"),
            Mark("≥ 0.9", it.ratio("drain_best", OURS, ours=THREADS), 0.9),
            Mark("≥ 1.0", it.ratio("drain_best", OURS, ours=THREADS), 1.0),
        ),
        Row(
            "thread runtime to asyncio, handlers with one system call",
            _show(it.of(THREADS, "drain_call"), "/s"),
            Mark("≥ 0.9", it.ratio("drain_call", OURS, ours=THREADS), 0.9),
            Mark("≥ 0.95", it.ratio("drain_call", OURS, ours=THREADS), 0.95),
        ),
        Row(
            "thread runtime to asyncio, handlers of 1 ms",
            _show(it.of(THREADS, "drain_wait"), "/s"),
            Mark("≥ 0.9", it.ratio("drain_wait", OURS, ours=THREADS), 0.9),
            Mark(
                "≥ 0.95",
                it.ratio("drain_wait", OURS, ours=THREADS),
                0.95,
                beyond=_says(
                    "16 threads without a bus that compute and wait reach {:.2f} of 16 tasks",
                    it.of(LIMITS, "wait_threads"),
                    0.95,
                ),
            ),
        ),
    ]


def _conditions(it: Medians) -> list[Row]:
    """Under a held snapshot, on SQLite, with handlers that wait, and in how much memory."""
    return [
        Row(
            "held snapshot, last tenth to first",
            _show(it.of(OURS, "snapshot"), "%"),
            Mark("≥ 80 %", it.of(OURS, "snapshot"), 80, unit="%"),
            Mark("≥ 95 %", it.of(OURS, "snapshot"), 95, unit="%"),
        ),
        Row(
            "drain on SQLite",
            _show(it.of(SQLITE, "drain_best"), "/s"),
            Mark("≥ 1.5 × Huey", it.ratio("drain_best", "huey", ours=SQLITE), 1.5),
            Mark(
                "≥ half of the raw batch rate",
                it.ratio("drain_best", LIMITS, "sqlite_rows", SQLITE),
                0.5,
                beyond=(
                    "the Python of a command is about 84,000 instructions in one thread, without the"
                    " store; half of the raw rate leaves it 5 µs, and no core carries out 17 in a"
                    " nanosecond"
                ),
            ),
        ),
        Row(
            "5 ms handlers, concurrency 100",
            _show(it.of(OURS, "busy"), "% of the ideal"),
            Mark("≥ 90 %", it.of(OURS, "busy"), 90, unit="%"),
            Mark(
                "≥ 97 %",
                it.of(OURS, "busy"),
                97,
                unit="%",
                beyond=_says(
                    "100 tasks that only wait, without a bus, reach {:.0f} % on this loop",
                    it.of(LIMITS, "wait_share"),
                    97,
                ),
            ),
        ),
        Row(
            "a typed send beside one by names, in memory",
            _show(it.of(LIMITS, "send_typed"), "/s"),
            Mark("≤ 5 % more", it.of(LIMITS, "typed_cost"), 5, at_most=True, unit="%"),
            Mark("no more", it.of(LIMITS, "typed_cost"), 0, at_most=True, unit="%"),
        ),
        Row(
            "worker memory",
            _show(it.of(OURS, "memory"), "MB"),
            Mark("≤ 80 MB", it.of(OURS, "memory"), 80, at_most=True, unit="MB"),
            Mark("≤ 60 MB", it.of(OURS, "memory"), 60, at_most=True, unit="MB"),
        ),
    ]


def _says(text: str, limit: float | None, wanted: float) -> str:
    """Why a goal cannot be reached, where the machine itself stays below it."""
    return text.format(limit) if limit is not None and limit < wanted else ""


def _divide(one: float | None, other: float | None) -> float | None:
    return one / other if one is not None and other else None


def _percent(one: float | None, whole: float) -> float | None:
    return None if one is None else 100 * one / whole


def _most(one: float | None, other: float | None) -> float | None:
    return max(one, other) if one is not None and other is not None else None


def _show(value: float | None, unit: str) -> str:
    return "–" if value is None else f"{number(value)} {unit}".replace(" /s", "/s")
