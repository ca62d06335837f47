"""Sagas while the server is away for seconds at a time: routers and workers go on by themselves, and a
router that is told to stop meanwhile does not wait for the server."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from contextlib import suppress

import psycopg

from commandbus.processes import ProcessStart, ProcessStatus
from commandbus.sync import SyncCommandBus, SyncProcessManager
from commandbus.testing.postgres import PostgresServer, create_database
from tests.chaos import sagas
from tests.chaos.saga_process import PlaceOrder
from tests.chaos.timeliness import LOAD_SECONDS, STOP_SECONDS
from tests.chaos.trial import Trial
from tests.os_processes.lab import wait_until

RESUME_SECONDS_MAX = 10.0
AWAY_SECONDS = (5.0, 8.0)
STEPS = "select count(*) from commandbus.process_step"


def sagas_under_restarts(seed: int, count: int, outages: int = 3, *, bug: str | None = None) -> Trial:
    chance = random.Random(seed)
    plan = sagas.Plan(
        count, kill_every=1e9, seconds=120.0, visibility_timeout=2.0, batch_size=20, seed=seed,
        pause=0.05, concurrency=4, bug=bug,
    )  # fmt: skip
    resumed: list[float] = []
    broken: list[str] = []
    with PostgresServer.start() as server:
        url = create_database(server)
        with SyncCommandBus(url, migrate=True) as bus, sagas.fleet_of(url, plan) as fleet:
            manager = SyncProcessManager(bus, PlaceOrder)
            starts = [ProcessStart(order) for order in sagas.orders(plan)]
            fleet.wait_until_ready()
            share = -(-count // outages)
            for number in range(outages):
                manager.start_many(starts[number * share : (number + 1) * share])
                time.sleep(chance.uniform(0.1, 0.5))
                server.halt("immediate")
                time.sleep(chance.uniform(*AWAY_SECONDS))
                if number == outages - 1:
                    broken += _stop_routers(fleet)
                server.restart()
                if number < outages - 1:
                    resumed.append(_until_a_step(url))
            fleet.replace_ended()
            moving = {ProcessStatus.RUNNING, ProcessStatus.COMPENSATING}
            sagas.until_settled(bus, fleet, plan, moving)
            sagas.act(bus, plan, fleet)
            records = list(sagas.all_of(bus))
            broken += [
                str(violation)
                for record in records
                for violation in sagas.check(record, bus.get_process_audit(record.process_id))
            ]
    broken += [
        f"P15: sagas went on {seconds:.1f} s after the server was back"
        for seconds in resumed
        if seconds > RESUME_SECONDS_MAX
    ]
    if len(records) != count:
        broken.append(f"P1: {len(records)} of {count} sagas are there")
    note = f"sagas went on within {max(resumed):.1f} s of each restart"
    return Trial("sagas, server away", seed, count, Counter({"outage": outages}), broken, note)


def _until_a_step(url: str) -> float:
    """Seconds until any saga has gone a step further, or until patience ends."""
    began = time.monotonic()
    with psycopg.connect(url, autocommit=True) as connection:
        before = connection.execute(STEPS).fetchone()
        with suppress(AssertionError):
            wait_until(
                lambda: connection.execute(STEPS).fetchone() != before,
                "a saga goes on",
                2 * RESUME_SECONDS_MAX,
            )
    return time.monotonic() - began


def _stop_routers(fleet: sagas.Fleet) -> list[str]:
    """P18 without a server: SIGTERM to exit."""
    bound = sagas.GRACE + STOP_SECONDS + LOAD_SECONDS
    late: list[str] = []
    for router in fleet.of_role("router"):
        began = time.monotonic()
        router.signal(signal.SIGTERM)
        try:
            wait_until(lambda r=router: r.process.poll() is not None, "it has ended", 4 * bound)
        except AssertionError:
            router.kill()
        took = time.monotonic() - began
        if took > bound:
            runtime = router.config["runtime"]
            late.append(f"P18: a router ({runtime}) took {took:.1f} s to stop without the server")
    return late
