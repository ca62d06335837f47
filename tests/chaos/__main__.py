"""`python -m tests.chaos [--seconds N] [--seed S] [--on PLACE]`: harm, then proof."""

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.chaos.case import Violation
from tests.chaos.checker import check
from tests.chaos.laboratory import Findings, Laboratory, Plan
from tests.chaos.places import place_named

SHOWN_MAX = 10


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=180, help="how long faults last")
    parser.add_argument("--seed", type=int, default=1, help="which faults, and when")
    parser.add_argument("--on", default="sqlite", help="sqlite, postgres or failover")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--senders", type=int, default=2)
    parser.add_argument("--lease", type=float, default=1.0, help="visibility timeout in seconds")
    parser.add_argument("--keep", action="store_true", help="keep the histories for a look")
    options = parser.parse_args()

    folder = Path(tempfile.mkdtemp(prefix="commandbus-chaos-"))
    print(f"chaos on {options.on}: {options.seconds:g} s of faults, seed {options.seed}", flush=True)
    with place_named(options.on, folder) as place:
        plan = Plan(
            place=place,
            folder=folder,
            seed=options.seed,
            seconds=options.seconds,
            workers=options.workers,
            senders=options.senders,
            lease=options.lease,
        )
        for missing in place.missing:
            print(f"!!! SKIPPED: {missing}")
        findings = Laboratory(plan).run()
    violations = check(findings.case)
    print(report(findings, violations))
    if violations or options.keep:
        print(f"histories: {folder}")
    else:
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
    return 1 if violations or findings.died else 0


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
        finals[0].reason == "WORKER_LOST" and case.invoked[command_id]["type"] != "exit"
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
