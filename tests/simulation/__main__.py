"""`python -m tests.simulation 1000` runs that many seeds of the worker core and a tenth of that of the
process routers; `--seed 1234` replays one and tells all, `--seed 1234 --of routers` one of routers."""

from __future__ import annotations

import argparse
import sys
import time

from tests.simulation.runner import SCENARIOS, replay, run_seeds

ROUTERS_SHARE = 10
"""A scenario of routers takes some ten times as long as one of the core."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("seeds", nargs="?", type=int, default=1_000, help="how many scenarios")
    parser.add_argument("--first", type=int, default=None, help="the first seed; the clock decides")
    parser.add_argument("--seed", type=int, default=None, help="replay this one, with its history")
    parser.add_argument("--of", choices=list(SCENARIOS), default=None, help="only these scenarios")
    chosen = parser.parse_args()
    if chosen.seed is not None:
        failure, history = replay(chosen.seed, chosen.of or "workers")
        print(*history, sep="\n")
        print(f"seed {chosen.seed}: {failure or 'every promise kept'}")
        return 1 if failure else 0
    first = time.time_ns() // 1_000_000 if chosen.first is None else chosen.first
    if chosen.of is not None:
        return _run(chosen.of, first, chosen.seeds)
    failed = _run("workers", first, chosen.seeds)
    return _run("routers", first, max(1, chosen.seeds // ROUTERS_SHARE)) or failed


def _run(scenario: str, first: int, seeds: int) -> int:
    began = time.perf_counter()
    result = run_seeds(range(first, first + seeds), scenario=scenario)
    took = time.perf_counter() - began
    for seed, failure in result.failures:
        print(
            f"seed {seed}: {failure}\n"
            f"  replay: python -m tests.simulation --of {scenario} --seed {seed}"
        )
    print(
        f"{scenario}: {result.scenarios:,} interleavings, {result.steps:,} steps, "
        f"{result.commands:,} commands from seed {first} in {took:.1f} s: "
        f"{len(result.failures)} failures"
    )
    return 1 if result.failures else 0


if __name__ == "__main__":
    sys.exit(main())
