"""The checker's own test: every seeded bug must be caught, within a few short stays, or by the
experiment that judges what it breaks, in small."""

from __future__ import annotations

import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tests.chaos.case import Violation
from tests.chaos.catalogue import (
    EXPERIMENTS,
    KINDS,
    NEED_FREEZES,
    NO_RECORDER,
    PLANS,
    PROMISES,
    READERS,
    place_of,
    switch_on,
)
from tests.chaos.checker import check
from tests.chaos.laboratory import Laboratory, Plan
from tests.chaos.outage import long_outage
from tests.chaos.places import place_named
from tests.chaos.punctual import punctual
from tests.chaos.saga_restarts import sagas_under_restarts
from tests.chaos.storm import start_together
from tests.chaos.trial import SHARED_SECONDS, Trial, lanes

STAYS_MAX = 8
TRIALS_MAX = 4
"""Experiments take longer than stays."""
PATIENCE = 10.0
"""How long a stay waits for commands that a bug may keep from ending."""
TYPES: dict[str, float] = {
    "note": 500,
    "transfer": 100,
    "flaky": 150,
    "slow": 150,
    "reject": 40,
    "permanent": 40,
    "exit": 3,
}
FAULTS = {"kill worker": 5.0, "freeze worker": 6.0, "stop worker": 3.0, "kill sender": 2.0}
"""Rougher than usual, and with more commands that outlive a freeze: a stay is short."""


FREEZES: dict[str, Any] = {
    "faults": {"freeze worker": 1.0},
    "types": {"note": 200, "slow": 300, "transfer": 1000},
    "calm": 0.3,
    "longest": 1.0,
    "workers": 6,
}
"""Some are always awake, to take over what those that sleep go on with later."""
USUAL: dict[str, Any] = {"faults": FAULTS, "types": TYPES, "calm": 0.3, "workers": 3}
SHARED: dict[str, Any] = {"redelivery": SHARED_SECONDS}
MIX = {"one": 50.0, "bulk": 15.0, "batch": 10.0, "key": 40.0}


SMALL: dict[str, Callable[..., Trial]] = {
    "outage": partial(long_outage, "postgres", away=8.0, patience=15.0),
    "punctual": partial(punctual, "sqlite", backlog=0, bound=1.0),
    "routers": partial(sagas_under_restarts, count=20, outages=2),
    "together": partial(start_together, processes=6, connections=9),
}
"""Experiments that are no stays, as small as they can be."""


@dataclass
class Catch:
    bug: str
    seed: int
    promise: str
    """What it must break: a bug that only makes workers fail is not caught by its own mistake."""
    stays: int
    """How many it took, or how many trials; the last one caught it, unless it was not caught."""
    found: Counter[str]
    witness: str = ""

    @property
    def caught(self) -> bool:
        return bool(self.found[self.promise])

    def __str__(self) -> str:
        found = ", ".join(f"{count} {promise}" for promise, count in sorted(self.found.items()))
        verdict = "caught" if self.caught else f"NOT CAUGHT by {self.promise}"
        return f"{self.bug:<52} {verdict}: {found or 'nothing'} (stay {self.stays})"


BROKEN_OFF = "a stay that broke off"
"""Found in the place of a promise: a bug that stops the laboratory is not caught by that."""
NO_BUG = "no bug at all"
CONTROLS = (NO_BUG, NO_RECORDER)
"""With these nothing may be caught, or the others prove nothing."""


def controls(bugs: Sequence[str], seed: int) -> Iterator[Catch]:
    """What these bugs are hunted with, without them."""
    if bugs and not set(bugs) <= EXPERIMENTS.keys():
        yield from (hunt(name, seed) for name in CONTROLS)
    for experiment in sorted({EXPERIMENTS[bug] for bug in bugs if bug in EXPERIMENTS}):
        yield _hunt(NO_BUG, seed, 1, partial(_trial, experiment))


def hunt_all(bugs: Sequence[str], seed: int, at_once: int = 3) -> Iterator[Catch]:
    """In order, several at a time: most of a stay is waiting."""
    with lanes(at_once) as pool:
        yield from pool.map(partial(hunt, seed=seed), bugs)


def hunt(bug: str, seed: int, seconds: float = 4.0) -> Catch:
    """Run the laboratory, or an experiment, with a bug until something objects."""
    if bug in EXPERIMENTS:
        return _hunt(bug, seed, TRIALS_MAX, partial(_trial, EXPERIMENTS[bug]))
    most = STAYS_MAX if bug not in CONTROLS else 1
    return _hunt(bug, seed, most, partial(_stay, seconds=seconds))


def _hunt(bug: str, seed: int, most: int, tried: Callable[[str, int], list[Violation]]) -> Catch:
    catch = Catch(bug, seed, PROMISES.get(bug, ""), 0, Counter())
    while catch.stays < most and not catch.caught:
        catch.stays += 1
        try:
            violations = tried(bug, seed * 100 + catch.stays)
        except (AssertionError, subprocess.TimeoutExpired) as error:
            violations = [Violation(BROKEN_OFF, str(error), ())]
        catch.found += Counter(violation.promise for violation in violations)
        wanted = [v for v in violations if v.promise == catch.promise] or violations
        catch.witness = str(wanted[0]) if wanted else ""
    return catch


def _trial(experiment: str, bug: str, seed: int) -> list[Violation]:
    if bug in READERS:
        switch_on(bug)
    trial = SMALL[experiment](seed=seed, bug=None if bug == NO_BUG else bug)
    return [Violation(what.partition(":")[0], what, (trial.note,)) for what in trial.broken]


def _stay(bug: str, seed: int, seconds: float) -> list[Violation]:
    types = {"types": KINDS[bug]} if bug in KINDS else {}
    with tempfile.TemporaryDirectory() as folder, place_named(place_of(bug), Path(folder)) as place:
        place.certain = None  # an outage would be most of so short a stay
        plan = Plan(
            place,
            Path(folder),
            seed=seed,
            seconds=seconds,
            pause=0.03,
            drain_seconds=PATIENCE if bug not in CONTROLS else 60.0,
            bug=None if bug == NO_BUG else bug,
            mix=MIX,
            keys=4,
            operators=True,
            **SHARED | (FREEZES if bug in NEED_FREEZES else USUAL) | types | PLANS.get(bug, {}),
        )
        findings = Laboratory(plan).run()
    return check(findings.case)
