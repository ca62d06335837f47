"""`python -m tests.failpoints [--on sqlite|postgres]`: every failpoint, with everything done there."""

import argparse
import contextlib
import sys
import tempfile

from commandbus.sync import SyncCommandBus
from commandbus.testing.postgres import PostgresServer, create_database
from tests.failpoints.sweep import sweep


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.failpoints", description=__doc__)
    parser.add_argument("--on", default="sqlite", choices=["sqlite", "postgres"])
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        if options.on == "sqlite":
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            url = f"sqlite:///{folder}/points.db"
        else:
            url = create_database(stack.enter_context(PostgresServer.start()))
        with SyncCommandBus(url, migrate=True):
            pass
        tried = failed = unreached = 0
        for result in sweep(url):
            tried += 1
            unreached += not result.reached
            if result.problems:
                failed += 1
                print(f"{result.point}: {'; '.join(result.problems)}", flush=True)
        print(f"{tried} cases on {options.on}, {unreached} not reached, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
