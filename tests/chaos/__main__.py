"""`python -m tests.chaos`: harm, then proof.

python -m tests.chaos --seconds 60 --seed 3 --on postgres     one stay
python -m tests.chaos --bugs                                  the checker's own test
python -m tests.chaos --all --write docs/reliability.md       all of it, as `make chaos` does

With --record FILE what was found is kept there, and --write tells of all that the file has: long
experiments can be made in pieces, on several days.
"""

import argparse
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.chaos.bugs import BUGS
from tests.chaos.case import Violation
from tests.chaos.checker import check
from tests.chaos.hunt import NO_BUG, Catch, hunt, hunt_all
from tests.chaos.kinds import KILLERS
from tests.chaos.laboratory import Findings, Laboratory, Plan
from tests.chaos.picture import page
from tests.chaos.places import place_named
from tests.chaos.reliability import Run, document, remember

SHOWN_MAX = 10
SHARES = {"sqlite": 1.0, "postgres": 1.0, "failover": 0.25}
"""How long to stay where, of --seconds; a fail-over happens once, so several short stays are better."""
STAYS = {"failover": 3}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=180, help="how long faults last")
    parser.add_argument("--seed", type=int, default=1, help="which faults, and when")
    parser.add_argument("--on", default="sqlite", help="sqlite, postgres, failover or nothing")
    parser.add_argument("--all", action="store_true", help="on all of them, then hunt every bug")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--senders", type=int, default=2)
    parser.add_argument("--lease", type=float, default=1.0, help="visibility timeout in seconds")
    parser.add_argument("--keep", action="store_true", help="keep the histories and the report")
    parser.add_argument("--bugs", nargs="*", metavar="NAME", help="hunt seeded bugs (all, or these)")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write what was found as Markdown")
    parser.add_argument("--record", type=Path, metavar="FILE", help="keep what was found in a file")
    options = parser.parse_args()

    runs: list[Run] = []
    if options.all:
        for place, share in SHARES.items():
            for stay in range(STAYS.get(place, 1)):
                runs.append(stay_at(place, options, options.seed + stay, options.seconds * share))
    elif options.bugs is None and options.on != "nothing":
        runs.append(stay_at(options.on, options, options.seed, options.seconds))
    names = list(BUGS) if options.all or options.bugs == [] else options.bugs or []
    catches = hunt_named(names, options.seed)
    failed = any(run.broken for run in runs) or not all(catch.promises for catch in catches)
    if options.record:
        runs, catches = remember(options.record, runs, catches)
    if options.write:
        options.write.write_text(document(runs, catches), encoding="utf-8")
    return 1 if failed else 0


def stay_at(name: str, options: argparse.Namespace, seed: int, seconds: float) -> Run:
    print(f"\nchaos on {name}: {seconds:g} s of faults, seed {seed}", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="commandbus-chaos-"))
    with place_named(name, folder) as place:
        plan = Plan(
            place=place,
            folder=folder,
            seed=seed,
            seconds=seconds,
            workers=options.workers,
            senders=options.senders,
            lease=options.lease,
        )
        for missing in place.missing:
            print(f"!!! SKIPPED: {missing}")
        findings = Laboratory(plan).run()
        missing = place.missing
    violations = check(findings.case)
    text = report(findings, violations)
    print(text, flush=True)
    if violations or findings.died or options.keep:
        picture = folder / "report.html"
        title = f"Chaos on {name}, seed {seed}"
        picture.write_text(page(title, text, findings.case, violations), encoding="utf-8")
        print(f"histories and report: {picture}")
    else:
        shutil.rmtree(folder)
    case = findings.case
    runs = sum(len(run) for run in case.runs.values())
    broken = len(violations) + len(findings.died)
    return Run(
        name,
        seed,
        seconds,
        findings.faults,
        len(case.finals),
        runs,
        runs - len(case.runs),
        findings.refused,
        findings.drained_in,
        broken,
        missing,
    )


def hunt_named(names: list[str], seed: int) -> list[Catch]:
    catches: list[Catch] = []
    if names and (control := hunt(NO_BUG, seed)).promises:
        raise SystemExit(f"without any bug the checker objects: {control.witness}")
    for catch in hunt_all(names, seed):
        catches.append(catch)
        print(catch, flush=True)
    if catches:
        caught = sum(bool(catch.promises) for catch in catches)
        print(f"{caught} of {len(catches)} seeded bugs were caught")
    return catches


def report(findings: Findings, violations: list[Violation]) -> str:
    case = findings.case
    answers = Counter(event["event"] for event in case.events if event["event"].startswith("send_"))
    statuses = Counter(finals[0].status for finals in case.finals.values())
    runs = sum(len(run) for run in case.runs.values())
    lines = [
        "",
        f"faults      {_counts(findings.faults)} in {findings.seconds:.0f} s",
        f"sends       {_counts(answers)}",
        f"commands    {len(case.finals):,}: {_counts(statuses)}",
        f"runs        {runs:,}, of these {runs - len(case.runs):,} again",
        f"refused     {findings.refused:,} late outcomes",
        f"drained     {findings.drained_in:.1f} s after the last fault",
    ]
    innocent = _innocent(findings)
    if innocent:
        lines.append(f"neighbours  {innocent:,} harmless commands parked as WORKER_LOST")
    late = sorted(_lateness(findings))
    if late:
        p50, p99 = late[len(late) // 2], late[int(len(late) * 0.99)]
        lines.append(f"lateness    p50 {p50 * 1000:.0f} ms, p99 {p99 * 1000:.0f} ms, faults included")
    lines += [f"DIED        {died}" for died in findings.died]
    if not violations:
        lines += ["", "No promise was broken."]
        return "\n".join(lines)
    by_promise = Counter(violation.promise for violation in violations)
    lines += ["", f"VIOLATIONS: {_counts(by_promise)}", ""]
    lines += [str(violation) for violation in violations[:SHOWN_MAX]]
    if len(violations) > SHOWN_MAX:
        lines.append(f"… and {len(violations) - SHOWN_MAX} more")
    return "\n".join(lines)


def _innocent(findings: Findings) -> int:
    """Commands that kill nobody, parked because they were with their worker three times it died."""
    case = findings.case
    return sum(
        finals[0].reason == "WORKER_LOST" and case.invoked[command_id]["type"] not in KILLERS
        for command_id, finals in case.finals.items()
        if command_id in case.invoked
    )


def _lateness(findings: Findings) -> list[float]:
    """Seconds between the moment a command was due and its first run."""
    case = findings.case
    return [
        runs[0]["at"] - sent["at"] - sent["delay"]
        for command_id, runs in case.runs.items()
        if runs and (sent := case.invoked.get(command_id))
    ]


def _counts(counter: Counter[str]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in sorted(counter.items())) or "none"


if __name__ == "__main__":
    sys.exit(main())
