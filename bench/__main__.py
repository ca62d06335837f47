"""`python -m bench`: throughput, latency and memory, beside peers and the machine's own limits."""

import argparse
import sys
from pathlib import Path

from bench import report
from bench.measure import Figures, Options, measure_all, subjects

QUICK = Options(commands=5_000, singles=640, pickups=25)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few commands, one repetition")
    parser.add_argument("--repeat", type=int, help="repetitions of everything (default 3)")
    parser.add_argument(
        "--only",
        default="",
        metavar="WORDS",
        help="comma-separated: measurements by name (drain_100), subjects by part of a name (sqlite)",
    )
    parser.add_argument("--write", type=Path, metavar="PATH", help="also write the tables as Markdown")
    options = parser.parse_args()

    words = {word.strip() for word in options.only.split(",") if word.strip()}
    everything = subjects()
    names = {name for subject in everything for name in subject.measurements}
    parts = words - names
    chosen = [s for s in everything if not parts or any(part in s.name for part in parts)]
    if not chosen:
        print(f"Nothing matches {options.only!r}; measurements are {', '.join(sorted(names))}.")
        return 2
    repeat = options.repeat or (1 if options.quick else 3)
    amounts = QUICK if options.quick else Options()

    figures = Figures()
    for subject, name, turn, found in measure_all(chosen, words & names, amounts, repeat):
        if isinstance(found, str):
            figures.failures[subject.name, name] = found
            text = f"failed: {found}"
        else:
            figures.add(subject.name, found)
            text = ", ".join(f"{key} {report.number(value)}" for key, value in found.items())
        print(f"[{turn + 1}/{repeat}] {subject.name}: {text}", file=sys.stderr, flush=True)

    found_tables = report.tables(figures, chosen)
    lines = report.notes(figures, chosen, repeat)
    report.show(found_tables, lines)
    if options.write:
        options.write.write_text(report.markdown(found_tables, lines), encoding="utf-8")
        print(f"written: {options.write}")
    return 1 if figures.failures else 0


if __name__ == "__main__":
    sys.exit(main())
