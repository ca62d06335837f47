"""`python -m tests.failpoints [--on sqlite|postgres]`: every failpoint, with everything done there."""

import argparse
import sys

from tests.failpoints.sweep import cases_of, stores, sweep


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.failpoints", description=__doc__)
    parser.add_argument("--on", default="sqlite", choices=["sqlite", "postgres"])
    parser.add_argument("--lanes", type=int, default=4, help="cases at a time")
    options = parser.parse_args()
    tried = failed = unreached = 0
    with stores(options.on, options.lanes) as urls:
        for result in sweep(urls, cases_of(urls[0])):
            tried += 1
            unreached += not result.reached
            if result.problems:
                failed += 1
                print(f"{result.point}: {'; '.join(result.problems)}", flush=True)
    print(f"{tried} cases on {options.on}, {unreached} not reached, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
