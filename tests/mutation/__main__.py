"""`python -m tests.mutation`: change the source in small ways, and see whether the tests notice.

python -m tests.mutation --list                     the mutants that would be tried
python -m tests.mutation --sample 200 --seed 1      so many, and the fixed ones
python -m tests.mutation --room domain --sample 50  of one room
python -m tests.mutation --only 'sizer'             fixed mutants and sites whose name or place has this

Which test runs which line is recorded once by coverage and kept in build/mutation; a mutant is tried
with the tests that ran its line, quick ones first. A hang counts as killed, and is reported apart.
Survivors that behave like the original are listed, with the argument, in tests/mutation/equivalent.txt.
Fails when fewer than 90 % are killed, or a fixed mutant survives.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import zip_longest
from pathlib import Path

from tests.mutation.known import known_mutants
from tests.mutation.mutants import Mutant, files_of, mutants_of
from tests.mutation.trying import Bench, Fate, Verdict

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("domain", "worker", "store", "operations", "engines")
EQUIVALENT = Path(__file__).with_name("equivalent.txt")
GOAL = 0.9


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--room", action="append", choices=ROOMS, help="only this room; repeatable")
    parser.add_argument("--list", action="store_true", help="only list the mutants")
    parser.add_argument("--jobs", type=int, default=1, help="mutants at a time")
    parser.add_argument("--sample", type=int, default=200, help="how many, besides the fixed ones")
    parser.add_argument("--seed", type=int, default=1, help="which ones")
    parser.add_argument("--only", help="those whose place, kind or name contains this text")
    parser.add_argument("--fresh", action="store_true", help="record again which test runs what")
    parser.add_argument("--any", action="store_true", help="use a recording of another state, too")
    options = parser.parse_args()

    rooms = tuple(options.room or ROOMS)
    fixed, gone = known_mutants(ROOT)
    chosen = [*(fixed if not options.room else ()), *sample(rooms, options.sample, options.seed)]
    if options.only:
        every = [
            *fixed,
            *(m for room in rooms for f in files_of(ROOT, room) for m in mutants_of(ROOT, f)),
        ]
        chosen = [m for m in every if options.only in f"{m.path}:{m.line} {m.kind} {m.name or ''}"]
    for name in gone:
        print(f"GONE: {name}: its text is not in the source any more; mend tests/mutation/known.py")
    if options.list:
        for mutant in chosen:
            print(f"{mutant.path}:{mutant.line}: {mutant.name or mutant.kind}: {_brief(mutant)}")
        print(f"{len(chosen)} mutants")
        return 0
    return attempt(chosen, options) or (1 if gone else 0)


def sample(rooms: tuple[str, ...], count: int, seed: int) -> list[Mutant]:
    """So many of all sites, evenly spread over the rooms and in turn, so that a run that is ended early
    says something about all; equivalent mutants are left out."""
    chance = random.Random(seed)
    equivalent = equivalents()
    found: list[list[Mutant]] = []
    for number, room in enumerate(rooms):
        sites = [m for file in files_of(ROOT, room) for m in mutants_of(ROOT, file)]
        sites = [site for site in sites if site.key not in equivalent]
        share = count // len(rooms) + (number < count % len(rooms))
        found.append(chance.sample(sites, min(share, len(sites))))
    return [mutant for turn in zip_longest(*found) for mutant in turn if mutant is not None]


def equivalents() -> set[str]:
    """Keys of mutants that behave like the original; the argument is in the file, behind a #."""
    lines = EQUIVALENT.read_text(encoding="utf-8").splitlines()
    return {line.partition("  #")[0].strip() for line in lines if line and not line.startswith("#")}


def attempt(mutants: list[Mutant], options: argparse.Namespace) -> int:
    began = time.monotonic()
    verdicts: list[Verdict] = []
    bench = Bench(ROOT, options.jobs, fresh=options.fresh, any_state=options.any)
    with bench, ThreadPoolExecutor(options.jobs) as pool:
        for verdict in pool.map(bench.attempt, mutants):
            verdicts.append(verdict)
            mutant = verdict.mutant
            where = f"{mutant.path}:{mutant.line}"
            what = mutant.name or mutant.kind
            print(f"{verdict.fate.value:<9} {verdict.seconds:5.1f} s  {where}  {what}", flush=True)
            if verdict.fate in (Fate.SURVIVED, Fate.UNTESTED):
                source = (ROOT / mutant.path).read_text(encoding="utf-8")
                print(f"{mutant.diff(source)}\n    key {mutant.key}", flush=True)
    counts = Counter(verdict.fate for verdict in verdicts)
    killed = counts[Fate.KILLED] + counts[Fate.HUNG]
    share = killed / len(verdicts) if verdicts else 1.0
    told = ", ".join(f"{counts[fate]} {fate.value}" for fate in Fate)
    minutes = (time.monotonic() - began) / 60
    print(f"\n{len(verdicts)} mutants: {told}. {share:.0%} killed in {minutes:.0f} minutes")
    ended = (Fate.KILLED, Fate.HUNG)
    alive = [v.mutant.name for v in verdicts if v.mutant.name and v.fate not in ended]
    for name in alive:
        print(f"FIXED MUTANT ALIVE: {name}")
    return 1 if share < GOAL or alive else 0


def _brief(mutant: Mutant) -> str:
    old, new = (" ".join(text.split())[:50] for text in (mutant.old, mutant.new))
    return f"{old} → {new}"


if __name__ == "__main__":
    sys.exit(main())
