"""`python -m tests.mutation`: change the source in small ways, and see whether the tests notice.

python -m tests.mutation --list                     the mutants that would be tried
python -m tests.mutation --sample 200 --seed 1      so many, and the fixed ones
python -m tests.mutation --room domain --sample 50  of one room
python -m tests.mutation --only 'sizer'             all mutants whose place, kind or name has this text
python -m tests.mutation --minutes 10               as many as fit; the next run goes on from there

Mutants are tried in forks of one process that has collected the tests, each with the tests that ran its
line in a recording, quick ones first; those of what runs on import in a copy of the tree. Recording and
verdicts are kept in build/mutation. A mutant that makes a test hang counts as killed. Mutants that
behave like the original are listed, with the argument, in equivalent.txt.
Fails when fewer than 90 % are killed, or a fixed mutant survives.
"""

from __future__ import annotations

import argparse
import hashlib
import signal
import sys
import time
from collections import Counter
from itertools import zip_longest
from pathlib import Path

from tests.mutation.known import EQUIVALENT, equivalents, known_mutants
from tests.mutation.mutants import ROOMS, Mutant, files_of, mutants_of
from tests.mutation.recording import Recording
from tests.mutation.trying import Bench, Fate, Verdict
from tests.mutation.verdicts import Verdicts

ROOT = Path(__file__).resolve().parents[2]
GOAL = 0.9
ALIVE = (Fate.SURVIVED, Fate.UNTESTED)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--room", action="append", choices=ROOMS, help="only this room; repeatable")
    parser.add_argument("--list", action="store_true", help="only list the mutants")
    parser.add_argument("--sample", type=int, default=200, help="how many, besides the fixed ones")
    parser.add_argument("--seed", type=int, default=1, help="which ones")
    parser.add_argument("--only", help="those whose place, kind or name contains this text")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="end after this time")
    parser.add_argument("--fresh", action="store_true", help="record again which test runs what")
    parser.add_argument("--recorded", action="store_true", help="use what is recorded so far")
    parser.add_argument("--forget", action="store_true", help="try all again")
    options = parser.parse_args()
    # What was started ends with this program, also when a time limit ends it.
    signal.signal(signal.SIGTERM, signal.default_int_handler)

    sites = {
        room: [m for file in files_of(ROOT, room) for m in mutants_of(ROOT, file)]
        for room in options.room or ROOMS
    }
    fixed, gone = known_mutants(ROOT)
    for name in gone:
        print(f"GONE: {name}: its text is not in the source any more; mend tests/mutation/known.py")
    equivalent = equivalents()
    if not options.room:
        for key in equivalent - {mutant.key for found in sites.values() for mutant in found}:
            print(f"GONE: {key}: not in the source any more; remove it from {EQUIVALENT.name}")
    if options.only:
        every = [*fixed, *(mutant for found in sites.values() for mutant in found)]
        chosen = [m for m in every if options.only in f"{m.path}:{m.line} {m.kind} {m.name or ''}"]
    else:
        chosen = [*sample(sites, options.sample, options.seed), *([] if options.room else fixed)]
    if options.list:
        for mutant in chosen:
            print(f"{mutant.path}:{mutant.line}: {mutant.name or mutant.kind}: {mutant.change[:100]}")
        print(f"{len(chosen)} mutants")
        return 0
    verdicts = attempt(chosen, equivalent, options)
    return report(verdicts, len(chosen)) or (1 if gone else 0)


def sample(sites: dict[str, list[Mutant]], count: int, seed: int) -> list[Mutant]:
    """So many of all sites, evenly spread over the rooms and in turn, so that an interrupted run says
    something about all. The choice depends on each site alone: a change of the source changes few."""
    found: list[list[Mutant]] = []
    for number, mutants in enumerate(sites.values()):
        share = count // len(sites) + (number < count % len(sites))
        found.append(sorted(mutants, key=lambda mutant: _number(mutant, seed))[:share])
    return [mutant for turn in zip_longest(*found) for mutant in turn if mutant is not None]


def _number(mutant: Mutant, seed: int) -> bytes:
    return hashlib.sha256(f"{seed} {mutant.key}".encode()).digest()


def attempt(
    mutants: list[Mutant], equivalent: set[str], options: argparse.Namespace
) -> list[tuple[Mutant, Verdict]]:
    ends = time.monotonic() + options.minutes * 60
    kept = Verdicts(ROOT, forget=options.forget)
    found: list[tuple[Mutant, Verdict]] = []
    recording = Recording(ROOT)
    if options.fresh:
        recording.forget()
    with Bench(ROOT, recording) as bench:
        if not (options.recorded or bench.record(mutants, ends)):
            print("recording is not finished: the next run goes on from here")
            return []
        wanted: list[Mutant] = []
        for mutant in mutants:
            same = mutant.key in equivalent
            verdict = Verdict(Fate.EQUIVALENT) if same else kept.find(mutant, bench.tests_for(mutant))
            if verdict is None:
                wanted.append(mutant)
            else:
                found.append((mutant, verdict))
        try:
            for mutant, verdict in bench.attempts(wanted, ends):
                kept.keep(mutant, bench.tests_for(mutant), verdict)
                _show(mutant, verdict)
                found.append((mutant, verdict))
        except KeyboardInterrupt:
            print("interrupted: the next run goes on from here")
    return found


def report(found: list[tuple[Mutant, Verdict]], wanted: int) -> int:
    """The survivors and a table; 1 when the goal is not reached."""
    alive = [mutant for mutant, verdict in found if verdict.fate in ALIVE]
    for mutant in alive:
        source = (ROOT / mutant.path).read_text(encoding="utf-8")
        print(
            f"\nALIVE {mutant.path}:{mutant.line}  {mutant.name or mutant.kind}\n{mutant.diff(source)}"
        )
        print(f"key: {mutant.key}")
    print(f"\n{'room':<11}{'tried':>7}" + "".join(f"{fate.value.lower():>12}" for fate in Fate))
    for room in ("fixed", *ROOMS, "all"):
        fates = Counter(v.fate for mutant, v in found if room in (mutant.room, "all"))
        tried = fates.total() - fates[Fate.EQUIVALENT]
        print(f"{room:<11}{tried:>7}" + "".join(f"{fates[fate]:>12}" for fate in Fate))
    tried = sum(verdict.fate is not Fate.EQUIVALENT for _, verdict in found)
    share = 1 - len(alive) / tried if tried else 1.0
    print(f"\n{share:.1%} of {tried} killed, a goal of {GOAL:.0%}; {wanted - len(found)} not tried yet")
    named = [mutant.name for mutant in alive if mutant.name]
    for name in named:
        print(f"FIXED MUTANT ALIVE: {name}")
    return 1 if share < GOAL or named or len(found) < wanted else 0


def _show(mutant: Mutant, verdict: Verdict) -> None:
    what = mutant.name or f"{mutant.kind}: {mutant.change}"
    by = f"  by {verdict.by}: {verdict.why}" if verdict.by else ""
    place = f"{mutant.path.removeprefix('src/commandbus/')}:{mutant.line}"
    print(
        f"{verdict.fate.value:<9}{verdict.seconds:6.1f} s  {place}  {what[:90]}{by[:160]}", flush=True
    )


if __name__ == "__main__":
    sys.exit(main())
