"""`python -m bench`: every peer beside ours, on this machine, in one run; see docs/benchmarks.md.

    python -m bench                                    everything, and the page
    python -m bench --only commandbus,pgqueuer --scenarios drain,pickup --repeat 1
    python -m bench --only limits
    python -m bench --cpus 0,1/2,3                     the server on two cores, the rest on others
    python -m bench --postgres 15                      another server than the newest

Results are kept as JSON; `python -m bench.page RESULTS` writes the page from them again.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

from bench import machine
from bench.bars import missed
from bench.ceilings import CEILINGS
from bench.cpus import Cpus
from bench.figures import METRICS, Results, number
from bench.idle import count_statements
from bench.lab import Lab
from bench.peers.catalogue import Subject, subjects
from bench.peers.environments import NotInstalled
from bench.scenarios import SCENARIOS

RESULTS = Path("bench/results/results.json")
PART = Path("bench/results/part.json")
"""Of a run with filters, which is not to replace that of a whole one."""
IDLE_SECONDS = 60.0
MINUTES = 24.0


class Run:
    """One run: what is chosen, and the results so far."""

    def __init__(self, lab: Lab, chosen: list[Subject], scenarios: list[str], scale: float) -> None:
        self.lab = lab
        self.chosen = chosen
        self.scenarios = scenarios
        self.scale = scale
        self.results = Results()
        self.took: dict[tuple[str, str], float] = {}
        """Seconds, by subject and scenario, the last time."""
        self.failed: Counter[tuple[str, str]] = Counter()
        self.once: set[tuple[str, str]] = set()
        """What is not repeated, for lack of time."""

    def install(self) -> None:
        for subject in list(self.chosen):
            try:
                found = self.lab.install(subject)
            except NotInstalled as error:
                self.results.fail(subject.name, "install", str(error))
                self.chosen.remove(subject)
                say(f"{subject.title}: cannot be installed: {error}")
            else:
                self.results.about.setdefault("versions", {})[subject.name] = found.version

    def turn(self, name: str) -> None:
        """One scenario once for each subject."""
        for subject in self.chosen:
            has_failed = self.failed[subject.name, name] > 1  # twice is no accident
            is_left_out = name in subject.unmeasured or (subject.name, name) in self.once
            if not is_left_out and not has_failed:
                began = time.monotonic()
                self.measure(subject, name)
                self.took[subject.name, name] = time.monotonic() - began

    def shorten(self, turns: int, seconds: float) -> None:
        """Repeat only what fits into the time that is left; the slowest of the peers go first."""
        spare = seconds - turns * sum(self.took.values())
        for key, took in sorted(self.took.items(), key=lambda item: -item[1]):
            is_ours = key[0].startswith("commandbus")
            if spare < 0 and not is_ours and key not in self.once:
                spare += turns * took
                self.once.add(key)
                del self.took[key]

    def measure(self, subject: Subject, name: str) -> None:
        began = time.monotonic()
        try:
            figures = SCENARIOS[name](self.lab, subject, self.scale)
        except Exception as error:  # whatever ails one subject, the others are measured
            self.results.fail(subject.name, name, reason_of(error))
            self.failed[subject.name, name] += 1
            say(f"{subject.title}, {name}: failed: {error}")
            return
        self.results.add(subject.name, figures)
        self.results.failures.get(subject.name, {}).pop(name, None)
        text = ", ".join(f"{METRICS[key].heading} {number(value)}" for key, value in figures.items())
        if text:
            say(f"{subject.title}: {text}  [{time.monotonic() - began:.1f} s]")

    def limits(self) -> None:
        for name, measure in CEILINGS.items():
            try:
                figures = measure(self.lab, self.scale)
            except Exception as error:  # the same for limits
                self.results.fail("limits", name, reason_of(error))
                say(f"limits, {name}: failed: {error}")
                continue
            self.results.add("limits", figures)
            say("limits: " + ", ".join(f"{key} {number(value)}" for key, value in figures.items()))

    def idle(self, seconds: float) -> None:
        """All at once: one that does nothing does not disturb the others."""
        waiting = [subject for subject in self.chosen if "idle" not in subject.unmeasured]
        try:
            counted = count_statements(self.lab, waiting, seconds)
        except Exception as error:  # the other figures are worth their page
            self.results.fail("limits", "idle", reason_of(error))
            say(f"idle: failed: {error}")
            return
        for name, found in counted.items():
            if isinstance(found, str):
                self.results.fail(name, "idle", found)
            else:
                self.results.add(name, {"idle": found})
            say(f"{name}: idle {found if isinstance(found, str) else number(found)} statements/s")


def reason_of(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def parser_of_options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", default="", metavar="NAMES", help="subjects, comma-separated; limits")
    parser.add_argument(
        "--scenarios", default="", metavar="NAMES", help=", ".join((*SCENARIOS, "idle"))
    )
    parser.add_argument("--repeat", type=int, default=3, help="repetitions (3)")
    parser.add_argument(
        "--scale", type=float, default=1.0, help="of all amounts; 0.02 for a quick look"
    )
    parser.add_argument("--minutes", type=float, default=MINUTES, help="for all of it (24)")
    parser.add_argument("--idle-seconds", type=float, default=IDLE_SECONDS)
    parser.add_argument(
        "--results", type=Path, help=f"where they are kept ({RESULTS}; in part: {PART})"
    )
    parser.add_argument(
        "--cpus",
        type=Cpus.read,
        metavar="SERVER/WORKERS",
        help="cores for the server, and for workers and senders, such as 0,1/2,3 (all share all)",
    )
    parser.add_argument(
        "--postgres", type=int, metavar="MAJOR", help="the server's version (the newest that is here)"
    )
    parser.add_argument("--page", action="store_true", help="write docs/benchmarks.md at the end")
    return parser


def main() -> int:
    parser = parser_of_options()
    options = parser.parse_args()
    words = [word for word in options.only.split(",") if word]
    scenarios = [word for word in options.scenarios.split(",") if word]
    if unknown := set(scenarios) - {*SCENARIOS, "idle"}:
        parser.error(
            f"no scenario {', '.join(sorted(unknown))}: there are {', '.join(SCENARIOS)}, idle"
        )
    is_whole = not words and not scenarios and options.scale == 1 and options.postgres is None
    file: Path = options.results or (RESULTS if is_whole else PART)
    named = [word for word in words if word != "limits"]
    chosen = subjects(named) if named or not words else []
    began = time.monotonic()
    with Lab(cpus=options.cpus, postgres=options.postgres) as lab:
        run = Run(lab, chosen, scenarios or [*SCENARIOS, "idle"], options.scale)
        if file.exists():
            run.results.growth = Results.load(file).growth
        run.install()
        run.results.about |= machine.about(lab, options.repeat, options.scale)
        say(f"PostgreSQL {lab.server.binaries.version}: {lab.settings()}")
        installed = time.monotonic()
        for turn in range(options.repeat):
            say(f"— repetition {turn + 1} of {options.repeat}, {time.monotonic() - began:.0f} s")
            if not words or "limits" in words:
                run.limits()
            for name in SCENARIOS:
                if name in run.scenarios:
                    run.turn(name)
            run.results.save(file)
            left = 60 * options.minutes - (time.monotonic() - installed) - options.idle_seconds - 30
            run.shorten(options.repeat - turn - 1, left)
        if "idle" in run.scenarios and run.chosen:
            run.idle(options.idle_seconds)
        run.results.about["seconds"] = round(time.monotonic() - installed)
        run.results.about["sizes"] = {
            one.name: {str(level): one.commands(level) for level in (10, 100, one.best)}
            for one in chosen
        }
    run.results.save(file)
    say(f"{run.results.about['seconds']} s; results: {file}")
    if options.page:
        from bench import page

        page.write(run.results)
    bars = missed(run.results)
    for bar in bars:
        say(f"below its bar: {bar}")
    return 1 if bars else 0


if __name__ == "__main__":
    sys.exit(main())
