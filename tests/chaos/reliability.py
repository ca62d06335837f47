"""docs/reliability.md, written from runs."""

from __future__ import annotations

import json
import platform
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.hunt import Catch

TEMPLATE = Path(__file__).with_name("reliability.txt")


@dataclass
class Run:
    place: str
    seed: int
    seconds: float
    faults: Counter[str]
    commands: int
    runs: int
    again: int
    refused: int
    drained_in: float
    broken: int
    missing: list[str] = field(default_factory=list)

    def row(self) -> str:
        cells = [
            self.place, self.seed, f"{self.seconds:.0f} s", f"{self.faults.total():,}",
            f"{self.commands:,}", f"{self.runs:,}", f"{self.again:,}", f"{self.refused:,}",
            f"{self.drained_in:.1f} s", self.broken or "none",
        ]  # fmt: skip
        return "| " + " | ".join(map(str, cells)) + " |"


def remember(file: Path, runs: list[Run], catches: list[Catch]) -> tuple[list[Run], list[Catch]]:
    """Add to what a file has, and return all of it; of a bug that was hunted again, the last hunt."""
    with file.open("a", encoding="utf-8") as lines:
        for found in (*runs, *catches):
            lines.write(json.dumps({type(found).__name__: vars(found)}) + "\n")
    all_runs: list[Run] = []
    all_catches: dict[str, Catch] = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        ((kind, facts),) = json.loads(line).items()
        if kind == "Run":
            all_runs.append(Run(**facts | {"faults": Counter(facts["faults"])}))
        else:
            catch = Catch(**facts | {"promises": Counter(facts["promises"])})
            all_catches[catch.bug] = catch
    return all_runs, list(all_catches.values())


def document(runs: list[Run], catches: list[Catch]) -> str:
    mix: Counter[str] = sum((run.faults for run in runs), Counter())
    commands = sum(run.commands for run in runs)
    skipped = sorted({missing for run in runs for missing in run.missing})
    machine = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}."
    return TEMPLATE.read_text(encoding="utf-8").format(
        machine=machine + "".join(f" Not tried there: {missing}." for missing in skipped),
        runs="\n".join(run.row() for run in runs),
        mix=", ".join(f"{count:,} × {fault}" for fault, count in sorted(mix.items())),
        commands=f"{commands:,}",
        faults=f"{mix.total():,}",
        broken=sum(run.broken for run in runs) or "no",
        bound=f"{commands // 3:,}",
        hunted=len(catches),
        caught=sum(bool(catch.promises) for catch in catches),
        bugs="\n".join(_row(catch) for catch in catches),
    )


def _row(catch: Catch) -> str:
    found = ", ".join(sorted(catch.promises)) or "**not caught**"
    return f"| {catch.bug.replace('_', ' ')} | {found} | {catch.stays} |"
