"""The checker's own test: every seeded bug must be caught, within a few short stays."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.chaos.bugs import place_of
from tests.chaos.checker import check
from tests.chaos.laboratory import Laboratory, Plan
from tests.chaos.places import place_named

STAYS_MAX = 4
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


@dataclass
class Catch:
    bug: str
    stays: int
    """How many it took; the last one caught it, unless `promises` is empty."""
    promises: Counter[str]
    witness: str

    def __str__(self) -> str:
        found = ", ".join(f"{count} {promise}" for promise, count in sorted(self.promises.items()))
        return f"{self.bug:<52} {'caught: ' + found if found else 'NOT CAUGHT'} (stay {self.stays})"


NO_BUG = "no bug at all"
"""The control: with it nothing may be caught, or the others prove nothing."""


def hunt_all(bugs: Sequence[str], seed: int, at_once: int = 3) -> Iterator[Catch]:
    """In order, several at a time: most of a stay is waiting."""
    with ThreadPoolExecutor(at_once) as pool:
        yield from pool.map(partial(hunt, seed=seed), bugs)


def hunt(bug: str, seed: int, seconds: float = 6.0) -> Catch:
    """Run the laboratory with a bug until the checker objects."""
    for stay in range(1, STAYS_MAX + 1):
        with tempfile.TemporaryDirectory() as folder, place_named(place_of(bug), Path(folder)) as place:
            plan = Plan(
                place,
                Path(folder),
                seed=seed * 100 + stay,
                seconds=seconds,
                workers=3,
                calm=0.4,
                pause=0.03,
                drain_seconds=12.0,
                bug=None if bug == NO_BUG else bug,
                types=TYPES,
                faults=FAULTS,
            )
            findings = Laboratory(plan).run()
        violations = check(findings.case)
        if violations:
            counted = Counter(violation.promise for violation in violations)
            return Catch(bug, stay, counted, str(violations[0]))
    return Catch(bug, STAYS_MAX, Counter(), "")
