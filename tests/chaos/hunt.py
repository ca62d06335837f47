"""The checker's own test: every seeded bug must be caught, within a few short stays."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tests.chaos.catalogue import KINDS, NEED_FREEZES, NO_RECORDER, PLANS, PROMISES, place_of
from tests.chaos.checker import check
from tests.chaos.laboratory import Laboratory, Plan
from tests.chaos.places import place_named
from tests.chaos.trial import SHARED_SECONDS, lanes

STAYS_MAX = 8
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


@dataclass
class Catch:
    bug: str
    seed: int
    promise: str
    """What it must break: a bug that only makes workers fail is not caught by its own mistake."""
    stays: int
    """How many it took; the last one caught it, unless it was not caught."""
    found: Counter[str]
    witness: str = ""

    @property
    def caught(self) -> bool:
        return bool(self.found[self.promise])

    def __str__(self) -> str:
        found = ", ".join(f"{count} {promise}" for promise, count in sorted(self.found.items()))
        verdict = "caught" if self.caught else f"NOT CAUGHT by {self.promise}"
        return f"{self.bug:<52} {verdict}: {found or 'nothing'} (stay {self.stays})"


NO_BUG = "no bug at all"
CONTROLS = (NO_BUG, NO_RECORDER)
"""With these nothing may be caught, or the others prove nothing."""


def hunt_all(bugs: Sequence[str], seed: int, at_once: int = 3) -> Iterator[Catch]:
    """In order, several at a time: most of a stay is waiting."""
    with lanes(at_once) as pool:
        yield from pool.map(partial(hunt, seed=seed), bugs)


def hunt(bug: str, seed: int, seconds: float = 4.0) -> Catch:
    """Run the laboratory with a bug until the checker objects."""
    catch = Catch(bug, seed, PROMISES.get(bug, ""), 0, Counter())
    types = {"types": KINDS[bug]} if bug in KINDS else {}
    stays_max = STAYS_MAX if bug not in CONTROLS else 1
    while catch.stays < stays_max and not catch.caught:
        catch.stays += 1
        with tempfile.TemporaryDirectory() as folder, place_named(place_of(bug), Path(folder)) as place:
            place.certain = None  # an outage would be most of so short a stay
            plan = Plan(
                place,
                Path(folder),
                seed=seed * 100 + catch.stays,
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
        violations = check(findings.case)
        catch.found += Counter(violation.promise for violation in violations)
        wanted = [v for v in violations if v.promise == catch.promise] or violations
        catch.witness = str(wanted[0]) if wanted else ""
    return catch
