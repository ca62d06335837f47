"""All experiments of `make chaos`, in proportion to --seconds."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from commandbus.sync import SyncCommandBus
from tests.chaos import sagas
from tests.chaos.reliability import Run
from tests.chaos.snapshot import held_snapshot
from tests.chaos.stay import stay_at
from tests.chaos.storm import storm
from tests.chaos.trial import Trial
from tests.failpoints.sweep import cases_of, stores, sweep
from tests.processes.nursery import ROOT
from tests.support.pgbouncer import PROGRAM

LANES = 2
"""Experiments at a time: most of each is waiting."""
SECONDS = 60.0
"""How long a stay lasts by default; what follows is for so many."""
SWEPT = 40
"""Cases of the sweep on each store; with other seeds, other cases."""
FUZZED = 250
"""Examples of each property."""
SAGAS = 120


@dataclass
class Size:
    seed: int
    seconds: float
    reports: Path

    def of(self, count: int) -> int:
        """So many, in proportion."""
        return max(1, round(count * self.seconds / SECONDS))


def together(size: Size) -> list[Callable[[], Run | Trial]]:
    """The long ones first; they do not mind each other."""
    seed, seconds = size.seed, size.seconds

    def stay(place: str, share: float, offset: int = 0, **more: object) -> Callable[[], Run]:
        return partial(stay_at, place, seed + offset, seconds * share, size.reports, **more)

    kills: dict[str, float] = {"kill worker": 1, "kill sender": 1}
    found: list[Callable[[], Run | Trial]] = [
        stay("postgres", 1.0, calm=0.2, senders=3, pause=0.012),
        stay("sqlite", 1.0, calm=0.35, senders=3, pause=0.012),
        partial(failpoints, "postgres", size),
        partial(failpoints, "sqlite", size),
        # A fail-over happens once in a stay: several short ones are better than a long one.
        stay("failover", 0.2),
        stay("failover", 0.2, 1000),
        stay("postgres", 0.25, title="keys", mix={"key": 1.0}, senders=4, pause=0.002, faults=kills),
        partial(run_sagas, "postgres", size),
        partial(run_sagas, "sqlite", size),
        partial(fuzz, size),
    ]
    if PROGRAM is not None:
        found.append(stay("pooler", 0.25))
    else:
        missing = ["a pooler: pgbouncer is not installed"]
        found.append(lambda: Trial("pooler", seed, 0, Counter(), [], "not tried", missing))
    return found


def alone(size: Size) -> list[Callable[[], Trial]]:
    """They need the machine for themselves."""
    return [partial(storm, size.seed), partial(held_snapshot, size.seed)]


def run_all(size: Size) -> Iterator[Run | Trial]:
    with ThreadPoolExecutor(LANES) as pool:
        for future in as_completed([pool.submit(attempted, one, size) for one in together(size)]):
            yield future.result()
    for one in alone(size):
        yield attempted(one, size)


def attempted(experiment: Callable[[], Run | Trial], size: Size) -> Run | Trial:
    """What came of it; one that could not be finished is a failure, and the others go on."""
    try:
        return experiment()
    except Exception:
        what = getattr(experiment, "func", experiment)
        name = f"{getattr(what, '__name__', what)} {getattr(experiment, 'args', '')}"
        return Trial(name, size.seed, 0, Counter(), [traceback.format_exc()[-2_000:]])


def failpoints(on: str, size: Size, lanes: int = 3) -> Trial:
    """A part of the sweep that the seed chooses; `python -m tests.failpoints` does all of it."""
    with stores(on, lanes) as urls:
        known = cases_of(urls[0])
        count = min(len(known), size.of(SWEPT))
        chosen = random.Random(size.seed).sample(known, count)
        results = list(sweep(urls, chosen))
    broken = [f"{result.point}: {'; '.join(result.problems)}" for result in results if result.problems]
    unreached = sum(not result.reached for result in results)
    actions = Counter(result.point.action for result in results if result.reached)
    note = f"{count} of {len(known)} cases, {unreached} not reached by this life"
    return Trial(f"failpoints on {on}", size.seed, count, Counter(actions), broken, note)


def run_sagas(on: str, size: Size) -> Trial:
    count = size.of(SAGAS)
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
        "hostile input", size.seed, tried, Counter(), broken, "payloads, names, arguments, rows"
    )
