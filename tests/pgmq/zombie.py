"""A worker in a process of its own, for test_fencing: `python -m tests.pgmq.zombie URL`.

It says "started" when its handler runs, goes on at a line of input, and says how often it was refused.
"""

import sys
import threading
from typing import Any

from commandbus import HandlerRegistry
from commandbus.sync import SyncCommandBus, SyncWorker

VISIBILITY_SECONDS = 1.0


def main(url: str) -> None:
    registry, done = HandlerRegistry(), threading.Event()

    @registry.handler("orders", "ship")
    def ship(command: Any, context: Any) -> str:
        print("started", flush=True)
        sys.stdin.readline()
        done.set()
        return "by the zombie"

    with SyncCommandBus(url, transport="pgmq") as bus:
        worker = SyncWorker(bus, "orders", registry, visibility_timeout=VISIBILITY_SECONDS)
        thread = threading.Thread(target=worker.run, daemon=True)
        thread.start()
        done.wait()
        worker.stop()
        thread.join(30)
        print(
            f"settled {worker.metrics.commands_settled} lost {worker.metrics.leases_lost}", flush=True
        )


if __name__ == "__main__":
    main(sys.argv[1])
