"""Sagas under the faults of the mixed stays: connections cut, frozen and slowed down, backends and
servers killed, a full disk, and workers and routers killed meanwhile."""

from __future__ import annotations

import random
import tempfile
import time
from collections import Counter
from pathlib import Path

from commandbus.processes import ProcessStart, ProcessStatus
from commandbus.sync import SyncCommandBus, SyncProcessManager
from tests.chaos import sagas
from tests.chaos.places import Place, place_named
from tests.chaos.saga_process import PlaceOrder
from tests.chaos.trial import Trial

CALM_SECONDS = 0.5
"""Between two faults, on average."""
KILL = "kill worker or router"
KILLS_SHARE = 0.3


def sagas_under_faults(on: str, seed: int, count: int, seconds: float) -> Trial:
    # Handlers take so long that sagas last as long as the faults.
    plan = sagas.Plan(
        count, kill_every=1e9, seconds=180.0, visibility_timeout=2.0, batch_size=20, seed=seed,
        pause=seconds / count, concurrency=4,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder, place_named(on, Path(folder)) as place:
        with (
            SyncCommandBus(place.bus_url, migrate=True) as bus,
            sagas.fleet_of(place.url, plan) as fleet,
        ):
            fleet.wait_until_ready()
            manager = SyncProcessManager(bus, PlaceOrder)
            manager.start_many([ProcessStart(order) for order in sagas.orders(plan)])
            faults = _harm(place, fleet, random.Random(seed), seconds)
            place.mend(all_of_them=True)
            fleet.replace_ended()
            fleet.wait_until_ready()
            moving = {ProcessStatus.RUNNING, ProcessStatus.COMPENSATING}
            sagas.until_settled(bus, fleet, plan, moving)
            sagas.act(bus, plan, fleet)
            records = list(sagas.all_of(bus))
            broken = [
                str(violation)
                for record in records
                for violation in sagas.check(record, bus.get_process_audit(record.process_id))
            ]
        missing = place.missing
    if len(records) != count:
        broken.append(f"P1: {len(records)} of {count} sagas are there")
    ends = Counter(str(record.status) for record in records)
    note = ", ".join(f"{number} {status}" for status, number in sorted(ends.items()))
    name = f"sagas under all faults, {on}"
    return Trial(name, seed, count, faults - place.spared, broken, note, missing)


def _harm(place: Place, fleet: sagas.Fleet, chance: random.Random, seconds: float) -> Counter[str]:
    faults: Counter[str] = Counter()
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        next_fault = time.monotonic() + chance.expovariate(1 / CALM_SECONDS)
        while time.monotonic() < next_fault:
            place.mend()
            fleet.replace_ended()
            time.sleep(0.02)
        if not place.faults or chance.random() < KILLS_SHARE:
            fleet.kill_one()
            faults[KILL] += 1
            continue
        (fault,) = chance.choices(list(place.faults), list(place.faults.values()))
        place.harm(fault, chance)
        faults[fault] += 1
    return faults
