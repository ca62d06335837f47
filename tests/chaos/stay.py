"""A stay in the laboratory, checked and told: as text, and as a page with a picture."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from tests.chaos.case import Violation
from tests.chaos.checker import check
from tests.chaos.kinds import KILLERS, POISON
from tests.chaos.laboratory import Findings, Laboratory, Plan
from tests.chaos.picture import page
from tests.chaos.places import place_named
from tests.chaos.reliability import Run
from tests.chaos.timeliness import redeliveries, stops

SHOWN_MAX = 10


def stay_at(
    name: str,
    seed: int,
    seconds: float,
    reports: Path | None,
    title: str | None = None,
    rough: bool = True,
    outage_seconds: tuple[float, float] | None = None,
    **more: Any,
) -> Run:
    """`more` is for the plan; with `reports`, a page is left in that folder."""
    folder = Path(tempfile.mkdtemp(prefix="commandbus-chaos-"))
    with place_named(name, folder, rough=rough) as place:
        place.outage_seconds = outage_seconds or place.outage_seconds
        findings = Laboratory(Plan(place, folder, seed, seconds, **more)).run()
        missing = place.missing
    violations = check(findings.case)
    text = report(findings, violations)
    heading = f"{title or name}, seed {seed}, {seconds:.0f} s of faults"
    if reports is not None:
        reports.mkdir(parents=True, exist_ok=True)
        file = reports / f"{(title or name).replace(', ', '-')}-{seed}.html"
        file.write_text(page(heading, text, findings.case, violations), encoding="utf-8")
        text += f"\nreport: {file}"
    if violations or findings.died:
        text += f"\nhistories: {folder}"
    else:
        shutil.rmtree(folder)
    text = "\n".join([f"\n{heading}", text, *(f"!!! SKIPPED: {what}" for what in missing)])
    case = findings.case
    runs = sum(len(run) for run in case.runs.values())
    return Run(
        title or name,
        seed,
        seconds,
        findings.faults,
        len(case.finals),
        runs,
        runs - len(case.runs),
        findings.refused,
        findings.drained_in,
        len(violations) + len(findings.died),
        missing,
        kinds=kinds_of(findings),
        note=_note(findings),
        text=text,
    )


def _note(findings: Findings) -> str:
    """What was promised to be quick, and how quick it was."""
    told = []
    if took := sorted(seconds for seconds, *_ in stops(findings.case)):
        told.append(f"{len(took):,} stops, p99 {_p99(took):.1f} s, the slowest in {took[-1]:.1f} s")
    if again := _redelivered(findings):
        p50 = again[len(again) // 2]
        told.append(
            f"handlers began again after a kill: p50 {p50:.1f} s, p99 {_p99(again):.1f} s, lease 1 s"
        )
    if findings.resumed:
        told.append(f"all workers ran handlers within {max(findings.resumed):.1f} s of each restart")
    return "; ".join(told)


def _redelivered(findings: Findings) -> list[float]:
    """Seconds from the death of a worker until a handler began one of its commands again."""
    case = findings.case
    assert case.terms is not None
    return sorted(one.began - one.died for one in redeliveries(case, case.terms))


def _p99(ordered: list[float]) -> float:
    return ordered[int(len(ordered) * 0.99)]


def kinds_of(findings: Findings) -> Counter[str]:
    """What there was to check: commands of each kind, sends under keys, batches."""
    case = findings.case
    kinds = Counter(final.type for finals in case.finals.values() for final in finals)
    found = Counter({name: kinds[name] for name in (*KILLERS, *POISON, "transfer") if kinds[name]})
    found["batch"] = len(case.store.batches)
    found["send under a unique key"] = len(case.tries)
    return +found


def report(findings: Findings, violations: list[Violation]) -> str:
    case = findings.case
    answers = Counter(event["event"] for event in case.events if event["event"].startswith("send_"))
    statuses = Counter(finals[0].status for finals in case.finals.values())
    keys = Counter(tried.fate for tried in case.tries.values())
    runs = sum(len(run) for run in case.runs.values())
    lines = [
        f"faults      {_counts(findings.faults)} in {findings.seconds:.0f} s",
        f"sends       {_counts(answers)}; under unique keys {_counts(keys)}",
        f"commands    {len(case.finals):,}: {_counts(statuses)}; {len(case.store.batches):,} batches",
        f"runs        {runs:,}, of these {runs - len(case.runs):,} again; {_counts(findings.runtimes)}",
        f"refused     {findings.refused:,} late outcomes; {case.store.receipted:,} in receipts",
        f"drained     {findings.drained_in:.1f} s after the last fault",
    ]
    if note := _note(findings):
        lines.append(f"times       {note}")
    innocent = _innocent(findings)
    if innocent:
        lines.append(f"neighbours  {innocent:,} harmless commands parked as WORKER_LOST")
    late = sorted(_lateness(findings))
    if late:
        p50, p99 = late[len(late) // 2], late[int(len(late) * 0.99)]
        lines.append(f"lateness    p50 {p50 * 1000:.0f} ms, p99 {p99 * 1000:.0f} ms, faults included")
    lines += [f"DIED        {died}" for died in findings.died]
    if not violations:
        lines += ["No promise was broken." if not findings.died else "A process died."]
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
        finals[0].reason == "WORKER_LOST" and finals[0].type not in KILLERS
        for finals in case.finals.values()
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
