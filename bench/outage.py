"""`python -m bench.outage`: a server that is away for a minute under load, in both runtimes.

Fails unless the worker is DEGRADED, not ready but live meanwhile; prints how long after the start of
the server it was HEALTHY and at work again.
"""

import argparse
import logging

from commandbus.engines.postgres.schema import upgrade
from commandbus.testing.postgres import PostgresServer, create_database
from tests.postgres.test_outage import outage


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.outage", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)  # many say that the server is away
    for runtime in ("asyncio", "threads"):
        with PostgresServer.start() as server:
            url = create_database(server)
            upgrade(url)
            took = outage(server, url, runtime, options.seconds)
        print(
            f"{runtime}: away for {options.seconds:g} s, at work again after {took:.1f} s", flush=True
        )


if __name__ == "__main__":
    main()
