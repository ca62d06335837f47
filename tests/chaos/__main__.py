"""`python -m tests.chaos`: harm, then proof.

python -m tests.chaos --seconds 60 --seed 3 --on postgres     one stay
python -m tests.chaos --bugs                                  the checker's own test
python -m tests.chaos --all --seed 1 --record FILE --write docs/reliability.md
                                                              all of it, as `make chaos` does

With --record FILE the totals are kept there, those of the same seed being replaced, and --write tells
of all that the file has: the page speaks of several seeds.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from tests.chaos.catalogue import BUGS
from tests.chaos.experiments import SECONDS, Size, run_all
from tests.chaos.hunt import Catch, controls, hunt_all
from tests.chaos.reliability import Book, Run, Total, document
from tests.chaos.stay import stay_at
from tests.support.revision import revision

OUTAGE, SOAK_OUTAGE = (6.0, 12.0), (6.0, 60.0)
"""Seconds for which a server is away in stays."""
AWAY, SOAK_AWAY = 30.0, 120.0
"""And for which it is away once."""


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seconds", type=float, default=SECONDS, help="how long a stay lasts")
    parser.add_argument("--seed", type=int, default=1, help="which faults, and when")
    parser.add_argument("--on", default="sqlite", help="sqlite, postgres, pgmq, failover or pooler")
    parser.add_argument("--all", action="store_true", help="every experiment, then hunt every bug")
    parser.add_argument("--reports", type=Path, help="a folder for pages with pictures of the stays")
    parser.add_argument("--bugs", nargs="*", metavar="NAME", help="hunt seeded bugs (all, or these)")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write what was found as Markdown")
    parser.add_argument("--record", type=Path, metavar="FILE", help="keep the totals in a file")
    parser.add_argument("--hours", type=float, default=0.0, help="again with other seeds, so long")
    options = parser.parse_args()
    unknown = set(options.bugs or ()) - BUGS.keys()
    if unknown:
        parser.error(f"no such bug: {', '.join(sorted(unknown))}")

    began, failed = time.monotonic(), False
    while True:
        failed = session(options) or failed
        if time.monotonic() - began > options.hours * 3600:
            return 1 if failed else 0
        options.seed += 1


def session(options: argparse.Namespace) -> bool:
    """All that was asked for, with one seed; whether anything failed."""
    began, code = time.monotonic(), revision()
    book = Book()
    if options.all:
        reports = options.reports or Path("build/chaos")
        outage, away = (SOAK_OUTAGE, SOAK_AWAY) if options.hours else (OUTAGE, AWAY)
        size = Size(options.seed, options.seconds, reports, outage, away)
        for found in run_all(size):
            print(found.text if isinstance(found, Run) else found, flush=True)
            book.add(found)
    elif options.bugs is None:
        run = stay_at(options.on, options.seed, options.seconds, options.reports)
        print(run.text)
        book.add(run)
    names = list(BUGS) if options.all or options.bugs == [] else options.bugs or []
    for catch in hunt_named(names, options.seed):
        book.add(catch)
    seconds = time.monotonic() - began
    book.add(Total(options.seed, seconds, options.seconds, revision=code))
    failed = book.failed
    verdict = "FAILED" if failed else "passed"
    print(f"\n{verdict} with seed {options.seed} in {seconds / 60:.1f} minutes", flush=True)
    if options.record:
        book = book.merged_into(options.record)
    if options.write:
        options.write.write_text(document(book), encoding="utf-8")
    return failed


def hunt_named(names: list[str], seed: int) -> list[Catch]:
    catches: list[Catch] = []
    for control in controls(names, seed):
        if control.found:
            raise SystemExit(f"{control.bug}, and the checker objects: {control.witness}")
    for catch in hunt_all(names, seed):
        catches.append(catch)
        print(catch, flush=True)
    if catches:
        print(f"{sum(c.caught for c in catches)} of {len(catches)} seeded bugs were caught")
    return catches


if __name__ == "__main__":
    sys.exit(main())
