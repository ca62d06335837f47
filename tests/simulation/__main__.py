"""`python -m tests.simulation 1000` runs that many seeds; `--seed 1234` replays one and tells all."""

from __future__ import annotations

import argparse
import sys
import time

from tests.simulation.runner import replay, run_seeds


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("seeds", nargs="?", type=int, default=1_000, help="how many scenarios")
    parser.add_argument("--first", type=int, default=None, help="the first seed; the clock decides")
    parser.add_argument("--seed", type=int, default=None, help="replay this one, with its history")
    chosen = parser.parse_args()
    if chosen.seed is not None:
        failure, history = replay(chosen.seed)
        print(*history, sep="\n")
        print(f"seed {chosen.seed}: {failure or 'every promise kept'}")
        return 1 if failure else 0
    first = time.time_ns() // 1_000_000 if chosen.first is None else chosen.first
    began = time.perf_counter()
    result = run_seeds(range(first, first + chosen.seeds))
    took = time.perf_counter() - began
    for seed, failure in result.failures:
        print(f"seed {seed}: {failure}\n  replay: python -m tests.simulation --seed {seed}")
    print(
        f"{result.scenarios:,} interleavings, {result.steps:,} steps, {result.commands:,} commands "
        f"from seed {first} in {took:.1f} s: {len(result.failures)} failures"
    )
    return 1 if result.failures else 0


if __name__ == "__main__":
    sys.exit(main())
