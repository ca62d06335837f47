"""All experiments of `make chaos`, in proportion to --seconds."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import as_completed
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from commandbus.sync import SyncCommandBus
from tests.chaos import sagas
from tests.chaos.backlog import backlog
from tests.chaos.kinds import KILLERS, POISON
from tests.chaos.listening import kill_listeners
from tests.chaos.orchestration import WHOLES
from tests.chaos.orchestration import store as wholes
from tests.chaos.outage import long_outage
from tests.chaos.punctual import punctual
from tests.chaos.reliability import Run
from tests.chaos.saga_faults import sagas_under_faults
from tests.chaos.saga_restarts import sagas_under_restarts
from tests.chaos.snapshot import held_snapshot
from tests.chaos.stay import stay_at
from tests.chaos.storm import start_together, storm
from tests.chaos.trial import SHARED_SECONDS, Trial, lanes
from tests.failpoints.sweep import cases_of, stores, sweep
from tests.os_processes.nursery import ROOT
from tests.support.pgbouncer import PROGRAM

LANES = 2
"""Experiments at a time: most of each is waiting."""
SECONDS = 60.0
"""How long the mixed stays last by default; what follows is for so many."""
FUZZED = 100
"""Examples of each property."""
FLOOD = 1_000_000
SAGAS = 120
SNAPSHOT = 600.0
"""Seconds for which a snapshot is held."""
BACKLOG = 10_000_000
LOAD: dict[str, Any] = {
    "rough": False,
    "senders": 2,
    "mix": {"many": 1.0, "one": 1.0},
    "types": {"note": 930, "transfer": 40, "flaky": 20, "reject": 5, "permanent": 5},
    "pause": 0.001,
    "concurrency": 40,
    "longest": 0.005,
}
"""Many ordinary commands."""
PLAIN: dict[str, Any] = LOAD | {"types": {"note": 970, "flaky": 20, "reject": 5, "permanent": 5}}
"""The same without transactional handlers, beside which a worker of PostgreSQL writes no receipts."""
BUSY: dict[str, Any] = {
    "rough": False,
    "types": {"note": 500, "slow": 300, "transfer": 200},
    "pause": 0.06,
}
"""Few, of which many take longer than a lease."""
BACKLOG_KILLED = 100_000
"""Commands that wait while workers, which claim hundreds ahead, are killed."""
DEEP: dict[str, Any] = LOAD | {
    "mix": {"one": 1.0},
    "types": {"note": 1.0},
    "pause": 0.2,
    "ahead": 1_000_000,
    "concurrency": 8,
    "priorities": (5,),
}
LINED = {"note": 800.0, "slow": 50.0, "transfer": 150.0}
POISONED = (*KILLERS, *POISON)


@dataclass
class Size:
    seed: int
    seconds: float
    reports: Path
    outage_seconds: tuple[float, float] = (6.0, 12.0)
    """How long a server is away in stays; a soak has longer outages."""
    away: float = 30.0
    """How long it is away once, on PostgreSQL and PGMQ; 120 s in a soak."""
    load: float = 1.0
    redelivery: float = 1.0
    """See `Terms`; tests that share the machine with others have more patience."""

    def of(self, count: int) -> int:
        """So many, in proportion."""
        return max(1, round(count * self.seconds / SECONDS))

    def stay(
        self, place: str, share: float, *, title: str, offset: int = 0, alone: bool = False, **more: Any
    ) -> partial[Run | Trial]:
        """A stay; how much there must be at least is in proportion, too."""
        redelivery = self.redelivery if alone else max(self.redelivery, SHARED_SECONDS)
        more = {"load": self.load, "redelivery": redelivery} | more
        for name in {"faults_min", "commands_min"} & more.keys():
            more[name] = self.of(more[name])
        return partial(
            stay_at, place, self.seed + offset, self.seconds * share, self.reports, title=title,
            outage_seconds=self.outage_seconds, **more,
        )  # fmt: skip


Experiment = Callable[[], "Run | Trial"]


def mixed(size: Size) -> list[Experiment]:
    """Everything that can be done to processes and stores, at random."""
    busy: dict[str, Any] = {"senders": 3, "pause": 0.012, "operators": True}
    found = [
        size.stay("postgres", 1.0, title="postgres", calm=0.2, **busy),
        size.stay("pgmq", 1.0, title="pgmq", calm=0.3, **busy),
        size.stay("sqlite", 1.0, title="sqlite", calm=0.3, workers=8, **busy),
        # A fail-over happens once in a stay: several short ones are better than a long one.
        size.stay("failover", 0.2, title="failover"),
        size.stay("failover", 0.2, title="failover", offset=1000),
    ]
    if PROGRAM is not None:
        return [*found, size.stay("pooler", 0.25, title="pooler")]
    missing = ["a pooler: pgbouncer is not installed"]
    return [*found, partial(Trial, "pooler", size.seed, 0, Counter(), [], "not tried", missing)]


def single(size: Size) -> list[partial[Run | Trial]]:
    """One kind of fault each, as often as it can be done."""
    kills = {"kill worker": 20.0, "kill sender": 1.0}
    lines = {"cut one": 3.0, "freeze one": 1.0, "cut before commit": 3.0, "cut after commit": 3.0}
    restarts = {"restart server": 3.0, "kill server": 1.0}
    poison: dict[str, Any] = {
        "rough": False, "in_turn": True, "mix": {"one": 1.0}, "senders": 1, "pause": 0.25,
        "types": dict.fromkeys((*POISONED, "note"), 1.0), "only": {"kill sender": 1.0},
        "calm": 5.0,
    }  # fmt: skip
    keys: dict[str, Any] = {"rough": False, "mix": {"key": 1.0}, "senders": 3, "pause": 0.0}
    found: list[partial[Run | Trial]] = []
    for place in ("postgres", "sqlite", "pgmq"):
        found.append(
            size.stay(
                place, 1.2, title=f"kills, {place}", only=kills, calm=0.25, workers=6,
                faults_min=275, commands_min=120_000 if place != "pgmq" else 30_000,
                **LOAD if place == "pgmq" else PLAIN,
            )
        )  # fmt: skip
    for place in ("postgres", "sqlite", "pgmq"):
        # PGMQ is PostgreSQL's engine but for its claims and settles: it gets a smaller share.
        part = 0.5 if place == "pgmq" else 0.75
        found += [
            size.stay(
                place, part, title=f"stops, {place}", only={"stop worker": 1.0}, calm=0.2, workers=6,
                faults_min=int(250 * part), **BUSY,
            ),
            size.stay(
                place, part, title=f"zombies, {place}", only={"freeze worker": 1.0}, calm=0.3,
                workers=8, faults_min=int(150 * part), **BUSY,
            ),
            size.stay(place, part, title=f"poison, {place}", workers=6, **poison),
            size.stay(place, 2 * part, title=f"keys, {place}", only=kills, calm=1.0, **keys),
        ]  # fmt: skip
    for place, part in (("postgres", 0.7), ("pgmq", 0.3)):
        found += [
            size.stay(
                place, 1.7 * part, title=f"lines, {place}", only=lines, calm=0.08, workers=5, senders=4,
                faults_min=int(1_000 * part), types=LINED, pause=0.05,
            ),
            size.stay(
                place, 0.35, title=f"outages, {place}", only={"outage": 1.0}, calm=4.0, patient=True,
                **PLAIN | {"pause": 0.004},
            ),
            partial(kill_listeners, place, size.seed, int(size.of(500) * part)),
        ]  # fmt: skip
    for place, share in (("postgres", 1.5), ("pgmq", 0.5)):
        found.append(
            size.stay(
                place, share, title=f"restarts, {place}", only=restarts, calm=1.0, patient=True,
                faults_min=30 if place == "postgres" else 10, **LOAD | {"pause": 0.004},
            )
        )  # fmt: skip
    return found


def deep(size: Size, place: str) -> partial[Run | Trial]:
    """Workers die behind a backlog, which keeps the others as busy as they can be: judged by seconds,
    so nothing else runs beside it."""
    backlog = size.of(BACKLOG_KILLED if place != "pgmq" else BACKLOG_KILLED // 2)
    return size.stay(
        place, 0.5, title=f"deep, {place}", alone=True, only={"kill worker": 1.0}, calm=3.0, workers=4,
        backlog=backlog, faults_min=8, **DEEP,
    )  # fmt: skip


def others(size: Size) -> list[Experiment]:
    seed = size.seed
    return [
        partial(backlog, seed, min(BACKLOG, size.of(BACKLOG))),
        partial(failpoints, "postgres", size),
        partial(failpoints, "sqlite", size),
        partial(run_sagas, "postgres", size),
        partial(run_sagas, "sqlite", size),
        partial(run_sagas, "postgres", size, restarts=True),
        *(partial(long_outage, on, seed, size.away) for on in ("postgres", "pgmq")),
        *(
            partial(sagas_under_faults, on, seed, size.of(SAGAS), size.seconds / 2)
            for on in ("postgres", "pgmq", "sqlite")
        ),
        partial(fuzz, size),
        partial(hostile, size),
        *(partial(orchestrated, name, on, size) for name in WHOLES for on in ("postgres", "sqlite")),
    ]


def run_all(size: Size) -> Iterator[Run | Trial]:
    """The snapshot is held all the while, in a lane of its own. What is judged by milliseconds or keeps
    every processor busy, and the storm, have the machine alone."""
    with lanes(LANES + 1) as pool:
        held = min(SNAPSHOT, SNAPSHOT * size.seconds / SECONDS)
        lasting = [pool.submit(attempted, partial(held_snapshot, size.seed, held), size)]
        short = [*single(size), *mixed(size), *others(size)]
        for future in as_completed([*lasting, *(pool.submit(attempted, one, size) for one in short)]):
            yield future.result()
    for place in ("postgres", "sqlite", "pgmq"):
        yield attempted(deep(size, place), size)
        yield attempted(partial(punctual, place, size.seed), size)
        yield attempted(
            size.stay(
                place, 0.2, title=f"stops alone, {place}", only={"stop worker": 1.0}, calm=0.7,
                workers=3, senders=1, load=0.0, **BUSY,
            ),
            size,
        )  # fmt: skip
    yield attempted(partial(storm, size.seed), size)
    yield attempted(partial(start_together, size.seed), size)


def attempted(experiment: Callable[[], Run | Trial], size: Size) -> Run | Trial:
    """What came of it; one that could not be finished is a failure, and the others go on."""
    try:
        return experiment()
    except Exception:
        what = getattr(experiment, "func", experiment)
        name = f"{getattr(what, '__name__', what)} {getattr(experiment, 'args', '')}"
        return Trial(name, size.seed, 0, Counter(), [traceback.format_exc()[-2_000:]])


def failpoints(on: str, size: Size, lanes: int = 3) -> Trial:
    """All of the sweep, or a part that the seed chooses, as `python -m tests.failpoints` does it."""
    with stores(on, lanes) as urls:
        known = cases_of(urls[0])
        count = min(len(known), size.of(len(known)))
        chosen = random.Random(size.seed).sample(known, count)
        results = list(sweep(urls, chosen))
    broken = [f"{result.point}: {'; '.join(result.problems)}" for result in results if result.problems]
    unreached = sum(not result.reached for result in results)
    actions = Counter(result.point.action for result in results if result.reached)
    note = f"{count} of {len(known)} cases, {unreached} not reached by this life"
    return Trial(f"failpoints on {on}", size.seed, count, Counter(actions), broken, note)


def run_sagas(on: str, size: Size, *, restarts: bool = False) -> Trial:
    """Workers and routers killed; or the server stopped under all of them, for seconds at a time."""
    count = size.of(SAGAS)
    if restarts:
        return sagas_under_restarts(size.seed, count)
    plan = sagas.Plan(
        count,
        kill_every=0.5,
        seconds=max(120.0, size.seconds),
        visibility_timeout=2.0,
        batch_size=20,
        seed=size.seed,
        pause=0.03,
        concurrency=4,
    )
    with stores(on, 1) as (url,):
        with SyncCommandBus(url, migrate=True):
            pass
        report = sagas.run(url, plan)
    ends = {name.removeprefix("finally "): n for name, n in report.statuses.items() if " " in name}
    note = ", ".join(f"{count} {name}" for name, count in sorted(ends.items()))
    broken = [str(violation) for violation in report.violations]
    kills = Counter({"kill worker or router": report.kills})
    return Trial(f"sagas on {on}", size.seed, count, kills, broken, note)


def orchestrated(name: str, on: str, size: Size) -> Trial:
    """A fleet under schedules, with a batch, behind a breaker."""
    with wholes(on == "sqlite") as (url, folder):
        with SyncCommandBus(url, migrate=True):
            pass
        tried, note, broken = WHOLES[name](url, folder)
    return Trial(f"{name} on {on}", size.seed, tried, Counter(), broken, note)


def hostile(size: Size) -> Trial:
    """Mostly at the doors, a part through every engine; in a process of its own."""
    command = [sys.executable, "-m", "tests.fuzz.flood", str(size.of(FLOOD)), "--seed", str(size.seed)]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if not process.stdout:
        raise RuntimeError(process.stderr[-2_000:])
    found = json.loads(process.stdout)
    note = f"{found['taken']:,} were taken, {found['through']:,} went through engines unaltered"
    return Trial(
        "hostile payloads and names", size.seed, size.of(FLOOD), Counter(), found["problems"], note
    )


def fuzz(size: Size) -> Trial:
    """tests/fuzz with more examples."""
    with tempfile.TemporaryDirectory() as folder:
        counts = Path(folder) / "examples"
        process = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "tests/fuzz"],
            cwd=ROOT,
            env=os.environ
            | {"FUZZ": str(size.of(FUZZED)), "FUZZ_SEED": str(size.seed), "FUZZ_COUNT": str(counts)},
            capture_output=True,
            text=True,
            check=False,
        )
        tried = int(counts.read_text()) if counts.exists() else 0
    broken = [process.stdout[-2_000:]] if process.returncode else []
    return Trial(
        "hostile input, searched",
        size.seed,
        tried,
        Counter(),
        broken,
        "payloads, names, arguments, rows",
    )
