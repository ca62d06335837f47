"""The demo's extra worker, a process of its own: `python -m … URL PREFIX`. It is there to be killed.

It prints how many retries it ran, and ends when its standard input does: then the demo is gone.
"""

from __future__ import annotations

import asyncio
import signal
import sys

from commandbus import CommandBus, Worker
from commandbus.interfaces.cli.demo.workload import DOMAINS, build_registry

CONCURRENCY = 6
LEASE_SECONDS = 2.5
"""Short, so that what it held when it died is rescued while people watch."""
NAME = "process"


async def _work(url: str, prefix: str) -> None:
    retries = 0

    def count_retry() -> None:
        nonlocal retries
        retries += 1

    async with CommandBus(url) as bus:
        worker = Worker(
            bus,
            [prefix + domain for domain in DOMAINS],
            build_registry(count_retry, prefix),
            concurrency=CONCURRENCY,
            visibility_timeout=LEASE_SECONDS,
            name=NAME,
        )
        running = asyncio.create_task(worker.run())
        parent = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
        while not parent.done() and not running.done():
            print(retries, flush=True)
            await asyncio.wait({parent, running}, timeout=0.1)
        await worker.stop(timeout=2)
        await running


if __name__ == "__main__":
    # Ctrl-C reaches this process, too, but the demo decides when it ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        asyncio.run(_work(sys.argv[1], sys.argv[2]))
    except BrokenPipeError:
        sys.exit(1)
