"""`python -m bench.stuck`: a handler that sleeps ten minutes, with default settings, in both runtimes.

Prints when its slot worked again, how often its command was delivered, what its late hand was told,
and how long a stop took while another such handler slept. Fails where a promise does not hold.
"""

import threading
import time
from typing import Any

from commandbus import CommandStatus, HandlerRegistry
from commandbus.engines.postgres.schema import upgrade
from commandbus.errors import LeaseLost
from commandbus.testing import Configuration
from commandbus.testing.postgres import PostgresServer, create_database
from commandbus.testing.waiting import eventually

SLEEP = 600.0
SHUTDOWN = 30.0


class Sleeper:
    """Sleeps the first time, unless it is woken, and then tries to go on as if nothing had happened."""

    def __init__(self) -> None:
        self.wake = threading.Event()
        self.deliveries = 0
        self.told: list[str] = []

    def __call__(self, command: Any, context: Any) -> str:
        self.deliveries += 1
        if self.deliveries > 1:
            return "second"
        self.wake.wait(SLEEP)
        try:
            context.extend_visibility(30)
        except LeaseLost:
            self.told.append("LeaseLost")
        return "first"


def try_it(url: str, runtime: str) -> None:
    bus = Configuration("postgres", url).open(runtime)
    registry, sleeper, other = HandlerRegistry(), Sleeper(), Sleeper()
    registry.register("orders", "sleep", sleeper)
    registry.register("orders", "again", other)
    registry.register("orders", "quick", lambda command, context: "done")
    try:
        with bus.run_worker(registry, concurrency=1) as running:
            slept = bus.send("orders", "sleep")
            eventually(lambda: sleeper.deliveries == 1)
            began = time.monotonic()
            bus.wait(bus.send("orders", "quick"), 120)
            print(
                f"{runtime}: the slot worked again after {time.monotonic() - began:.1f} s", flush=True
            )
            assert running.worker.health_status.report().stuck_threads == 1
            record = bus.wait(slept, 120)
            assert (record.status, record.attempts) == (CommandStatus.COMPLETED, 2), record
            sleeper.wake.set()
            eventually(lambda: running.worker.health_status.report().stuck_threads == 0, 10)
            assert bus.get(slept).result == "second"
            print(
                f"{runtime}: delivered {sleeper.deliveries} times; the late hand was told "
                f"{sleeper.told[0]}, the outcome is that of the second",
                flush=True,
            )
            assert sleeper.deliveries == 2
            bus.send("orders", "again")
            eventually(lambda: other.deliveries == 1)
            began = time.monotonic()
            bus.call(running.worker.stop)
            took = time.monotonic() - began
            print(f"{runtime}: stopped after {took:.1f} s, while a handler slept", flush=True)
            assert took < SHUTDOWN
    finally:
        other.wake.set()
        bus.close()


def main() -> None:
    with PostgresServer.start() as server:
        threads = []
        for runtime in ("asyncio", "threads"):
            url = create_database(server)
            upgrade(url)
            threads.append(threading.Thread(target=try_it, args=(url, runtime)))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    main()
