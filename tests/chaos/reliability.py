"""docs/reliability.md, written from runs."""

from __future__ import annotations

import json
import platform
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.hunt import Catch
from tests.chaos.kinds import KILLERS, POISON
from tests.chaos.trial import Trial

TEMPLATE = Path(__file__).with_name("reliability.txt")


@dataclass
class Run:
    """A stay in the laboratory."""

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
    kinds: Counter[str] = field(default_factory=Counter)
    """What there was to check besides plain commands."""
    note: str = ""
    text: str = ""

    def row(self) -> str:
        cells = [
            self.place, self.seed, f"{self.seconds:.0f} s", f"{self.faults.total():,}",
            f"{self.commands:,}", f"{self.runs:,}", f"{self.again:,}", f"{self.refused:,}",
            f"{self.drained_in:.1f} s", self.broken or "none", self.note,
        ]  # fmt: skip
        return "| " + " | ".join(map(str, cells)) + " |"


@dataclass
class Total:
    """All experiments with one seed."""

    seed: int
    seconds: float
    stay_seconds: float
    python: str = platform.python_version()
    system: str = f"{platform.system()} {platform.machine()}"
    revision: str = "an unknown commit"

    def sentence(self) -> str:
        took = f"{self.seconds / 60:.1f} minutes"
        command = f"make chaos SEED={self.seed} SECONDS={self.stay_seconds:.0f}"
        where = f"with Python {self.python} on {self.system}"
        return f"`{command}` took {took}, {where}, at {self.revision}."


Entry = Run | Trial | Catch | Total
KINDS: dict[str, Any] = {"Run": Run, "Trial": Trial, "Catch": Catch, "Total": Total}
COUNTERS = ("faults", "kinds", "found")


@dataclass
class Book:
    """What was found."""

    entries: list[Entry] = field(default_factory=list)
    """Those of one `make chaos` end with its total."""

    def sessions(self) -> Iterator[list[Entry]]:
        """The entries of each `make chaos`."""
        own: list[Entry] = []
        for entry in self.entries:
            own.append(entry)
            if isinstance(entry, Total):
                yield own
                own = []

    def add(self, entry: Entry) -> None:
        self.entries.append(entry)

    @property
    def runs(self) -> list[Run]:
        return [entry for entry in self.entries if isinstance(entry, Run)]

    @property
    def trials(self) -> list[Trial]:
        return [entry for entry in self.entries if isinstance(entry, Trial)]

    @property
    def catches(self) -> list[Catch]:
        return [entry for entry in self.entries if isinstance(entry, Catch)]

    @property
    def totals(self) -> list[Total]:
        return [entry for entry in self.entries if isinstance(entry, Total)]

    @property
    def failed(self) -> bool:
        broken = any(entry.broken for entry in (*self.runs, *self.trials))
        return broken or not all(catch.caught for catch in self.catches)

    def merged_into(self, file: Path) -> Book:
        """Replace what a file has of the same seeds, and return all of it."""
        seeds = {total.seed for total in self.totals}
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        kept = [(session, entry) for session, entry in map(_read, lines) if session not in seeds]
        kept += [(self.totals[-1].seed, entry) for entry in self.entries]
        kept.sort(key=lambda pair: pair[0])
        with file.open("w", encoding="utf-8") as out:
            for session, entry in kept:
                facts = {k: v for k, v in vars(entry).items() if k not in ("text", "witness")}
                out.write(json.dumps({"session": session, type(entry).__name__: facts}) + "\n")
        return Book([entry for _, entry in kept])


def _read(line: str) -> tuple[int, Entry]:
    found = json.loads(line)
    session = found.pop("session")
    ((kind, facts),) = found.items()
    for name in COUNTERS:
        if name in facts:
            facts[name] = Counter(facts[name])
    return session, KINDS[kind](**facts)


@dataclass(frozen=True)
class Goal:
    """How often something is to be tried in one run, and how it is counted."""

    what: str
    least: int
    counts: Callable[[list[Run], list[Trial]], int]
    trials: bool = True
    """Whether each is a trial, of which a failure would have been seen."""


def _faults(*names: str) -> Callable[[list[Run], list[Trial]], int]:
    return lambda runs, trials: sum(entry.faults[name] for entry in (*runs, *trials) for name in names)


def _kind(name: str) -> Callable[[list[Run], list[Trial]], int]:
    return lambda runs, trials: sum(run.kinds[name] for run in runs)


def _tried(name: str) -> Callable[[list[Run], list[Trial]], int]:
    return lambda runs, trials: sum(trial.tried for trial in trials if trial.name.endswith(name))


def _rarest_poison(runs: list[Run], trials: list[Trial]) -> int:
    return min(sum(run.kinds[kind] for run in runs) for kind in (*KILLERS, *POISON))


LINES = ("cut", "cut one", "freeze line", "freeze one", "half open")
GOALS = (
    Goal("kill -9 of workers", 500, _faults("kill worker", "kill worker or router")),
    Goal(
        "commands that went through the stays", 250_000, lambda runs, _: sum(r.commands for r in runs)
    ),
    Goal(
        "servers stopped at once or killed", 30, _faults("restart server", "kill server", "fail over")
    ),
    Goal("servers away for more than 5 s", 5, _faults("outage")),
    Goal(
        "connections cut, frozen, cut on COMMIT",
        1_000,
        _faults(*LINES, "cut before commit", "cut after commit"),
    ),
    Goal("listening connections killed", 500, _faults("kill listener")),
    Goal("workers frozen for twice their lease", 300, _faults("freeze worker")),
    Goal("workers stopped by SIGTERM", 500, _faults("stop worker")),
    Goal(f"poison: of each of {len((*KILLERS, *POISON))} kinds at least", 20, _rarest_poison),
    Goal("sends under shared unique keys, half undone", 100_000, _kind("send under a unique key")),
    Goal("hostile payloads and names", 1_000_000, _tried("hostile payloads and names")),
    Goal("commands waiting while claims are timed", 10_000_000, _tried("waiting"), trials=False),
)


def _goal_row(goal: Goal, book: Book) -> str:
    """The goal is for one run: the least of all runs is compared with it."""
    counts = [
        goal.counts([e for e in own if isinstance(e, Run)], [e for e in own if isinstance(e, Trial)])
        for own in book.sessions()
    ]
    least = min(counts, default=0)
    verdict = "reached" if least >= goal.least else "**missed**"
    bound = f"1 in {sum(counts) // 3:,}" if goal.trials and sum(counts) >= 3 else ""
    cells = (goal.what, f"{goal.least:,}", f"{least:,}", verdict, f"{sum(counts):,}", bound)
    return "| " + " | ".join(cells) + " |"


def document(book: Book) -> str:
    runs, trials, catches = book.runs, book.trials, book.catches
    mix: Counter[str] = sum((entry.faults for entry in (*runs, *trials)), Counter())
    kinds: Counter[str] = sum((run.kinds for run in runs), Counter())
    commands = sum(run.commands for run in runs)
    skipped = sorted({missing for entry in (*runs, *trials) for missing in entry.missing})
    broken = sum(run.broken for run in runs) + sum(len(trial.broken) for trial in trials)
    return TEMPLATE.read_text(encoding="utf-8").format(
        sessions=" ".join(total.sentence() for total in book.totals),
        skipped="".join(f" Not tried there: {missing}." for missing in skipped),
        goals="\n".join(_goal_row(goal, book) for goal in GOALS),
        runs="\n".join(run.row() for run in runs),
        trials="\n".join(map(_trial_row, trials)),
        mix=_counts(mix),
        kinds=_counts(kinds),
        commands=f"{commands:,}",
        transfers=f"{kinds['transfer']:,}",
        transfers_bound=f"{kinds['transfer'] // 3:,}",
        faults=f"{mix.total():,}",
        broken=broken or "no",
        bound=f"{commands // 3:,}",
        hunted=len({catch.bug for catch in catches}),
        hunts=len(catches),
        caught=sum(catch.caught for catch in catches),
        bugs="\n".join(_bug_rows(catches)),
    )


def _counts(counter: Counter[str]) -> str:
    return ", ".join(f"{count:,} × {name.replace('_', ' ')}" for name, count in sorted(counter.items()))


def _trial_row(trial: Trial) -> str:
    cells = (trial.name, trial.seed, f"{trial.tried:,}", trial.note, len(trial.broken) or "none")
    return "| " + " | ".join(map(str, cells)) + " |"


def _bug_rows(catches: list[Catch]) -> list[str]:
    """A row for each bug, with the stays it took with each seed."""
    rows: dict[str, list[Catch]] = {}
    for catch in catches:
        rows.setdefault(catch.bug, []).append(catch)
    lines = []
    for bug, found in rows.items():
        promises = sorted(set().union(*(c.found for c in found)))
        stays = ", ".join(str(c.stays) if c.caught else "**not caught**" for c in found)
        cells = (bug.replace("_", " "), found[0].promise, ", ".join(promises), stays)
        lines.append("| " + " | ".join(cells) + " |")
    return lines
