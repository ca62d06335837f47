"""One long outage of the server under workers and process routers of both runtimes, and under calls
that wait for a connection.

`python -m tests.chaos.outage --on pgmq --away 30` runs one. Everything must work within 10 s after the
server is back, and what is told to stop meanwhile ends within 5 s more than its grace.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Self

from commandbus import CommandBus
from commandbus.errors import StoreUnavailable
from commandbus.processes import ProcessStart
from commandbus.sync import SyncCommandBus, SyncProcessManager
from tests.chaos import sagas
from tests.chaos.places import PostgresPlace, place_named
from tests.chaos.saga_process import Order, PlaceOrder
from tests.chaos.timeliness import AWAY_SECONDS
from tests.chaos.trial import Trial
from tests.os_processes.lab import Child, wait_until

RESUME_SECONDS_MAX = 10.0
CALL_SECONDS = 5.0
"""Calls begin so long before the server is back: their patience, 30 s, outlasts that."""
PATIENCE = 60.0
PROGRESS = {"worker": "commands_settled", "router": "routed"}


def long_outage(
    on: str, seed: int, away: float, *, patience: float = PATIENCE, bug: str | None = None
) -> Trial:
    """`patience`: how many seconds late is late enough to be counted as never."""
    plan = sagas.Plan(
        0, workers=2, routers=2, visibility_timeout=2.0, batch_size=20, pause=0.01, bug=bug
    )
    with tempfile.TemporaryDirectory() as folder, place_named(on, Path(folder), rough=False) as place:
        assert isinstance(place, PostgresPlace)
        with (
            SyncCommandBus(place.bus_url, migrate=True) as bus,
            sagas.fleet_of(place.bus_url, plan) as fleet,
            sagas.fleet_of(place.bus_url, plan) as leaving,
            _Calls(place.bus_url) as calls,
        ):
            for child in _children(fleet) + _children(leaving):
                child.expect("ready")
            feeder = _Feeder(bus)
            wait_until(lambda: calls.open == 2, "callers are connected", 30)
            wait_until(lambda: feeder.fed() and _progress(fleet)[1], "everything works before", 30)
            place.go_away()
            gone = time.monotonic()
            time.sleep(max(0.0, away / 2 - CALL_SECONDS))
            stops = _stop(leaving)
            time.sleep(max(0.0, gone + away - CALL_SECONDS - time.monotonic()))
            calls.begin()
            time.sleep(max(0.0, gone + away - time.monotonic()))
            place.come_back()
            resumed = _resumed(fleet, feeder, calls, patience)
    broken = [
        f"P15: {what} worked {seconds:.1f} s after the server was back"
        for what, seconds in resumed.items()
        if seconds > RESUME_SECONDS_MAX
    ]
    broken += [
        f"P18: {what} took {seconds:.1f} s to stop without the server"
        for what, seconds in stops.items()
        if seconds > sagas.GRACE + AWAY_SECONDS
    ]
    note = "; ".join(
        [
            "works again after " + ", ".join(f"{what} {s:.1f} s" for what, s in resumed.items()),
            "stops took " + ", ".join(f"{what} {s:.1f} s" for what, s in stops.items()),
        ]
    )
    faults = Counter({"outage": 1})
    return Trial(f"server away for {away:.0f} s, {on}", seed, len(resumed), faults, broken, note)


class _Feeder:
    """Starts sagas all the while, so that each process has something to do."""

    def __init__(self, bus: SyncCommandBus) -> None:
        self._manager = SyncProcessManager(bus, PlaceOrder)
        self._count = 0

    def fed(self) -> bool:
        self._count += 8
        with suppress(StoreUnavailable):
            self._manager.start_many([ProcessStart(Order(self._count + n)) for n in range(8)])
        return True


class _Calls:
    """A send of each runtime that waits for a connection, on buses that are open already."""

    def __init__(self, url: str) -> None:
        self.open = 0
        self.ended: dict[str, float] = {}
        self._begin = threading.Event()
        for name, target in (("send, asyncio", self._awaiting), ("send, threads", self._blocking)):
            threading.Thread(target=target, args=(url, name), daemon=True).start()

    def begin(self) -> None:
        self._begin.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.begin()  # a thread that still waited would keep the program from ending

    def _blocking(self, url: str, name: str) -> None:
        with SyncCommandBus(url) as bus:
            self.open += 1
            self._begin.wait()
            with suppress(StoreUnavailable):
                bus.send("elsewhere", "note")
                self.ended[name] = time.monotonic()

    def _awaiting(self, url: str, name: str) -> None:
        async def send() -> None:
            async with CommandBus(url) as bus:
                self.open += 1
                await asyncio.to_thread(self._begin.wait)
                with suppress(StoreUnavailable):
                    await bus.send("elsewhere", "note")
                    self.ended[name] = time.monotonic()

        asyncio.run(send())


def _children(fleet: sagas.Fleet) -> list[Child]:
    return [child for role in PROGRESS for child in fleet.of_role(role)]


def _name(child: Child) -> str:
    return f"{child.config['role']}, {child.config['runtime']}"


def _progress(fleet: sagas.Fleet) -> tuple[dict[str, int], bool]:
    """How much each process has done, and whether each has done something; one that has ended does
    nothing."""
    done = {_name(child): _done(child) for child in _children(fleet)}
    return done, all(done.values())


def _done(child: Child) -> int:
    if child.process.poll() is not None:
        return 0
    with suppress(AssertionError, BrokenPipeError):  # it ends just now
        return int(child.metrics()[PROGRESS[child.config["role"]]])
    return 0


def _stop(fleet: sagas.Fleet) -> dict[str, float]:
    """Seconds from SIGTERM to the end of each process."""
    children = _children(fleet)
    began = time.monotonic()
    for child in children:
        child.signal(signal.SIGTERM)
    took: dict[str, float] = {}

    def all_ended() -> bool:
        for child in children:
            if child.process.poll() is not None:
                took.setdefault(_name(child), time.monotonic() - began)
        return len(took) == len(children)

    with suppress(AssertionError):
        wait_until(all_ended, "they have ended", 4 * AWAY_SECONDS)
    return {_name(child): took.get(_name(child), time.monotonic() - began) for child in children}


def _resumed(fleet: sagas.Fleet, feeder: _Feeder, calls: _Calls, patience: float) -> dict[str, float]:
    """Seconds until each process has done something again, and until each call has ended."""
    began = time.monotonic()
    before, _ = _progress(fleet)
    took: dict[str, float] = {}

    def all_resumed() -> bool:
        feeder.fed()
        for name, done in _progress(fleet)[0].items():
            if done > before[name]:
                took.setdefault(name, time.monotonic() - began)
        for name, ended in list(calls.ended.items()):
            took.setdefault(name, ended - began)
        return len(took) == len(before) + 2

    with suppress(AssertionError):
        wait_until(all_resumed, "everything works", patience)
    missing = {*before, "send, asyncio", "send, threads"} - took.keys()
    return took | dict.fromkeys(missing, time.monotonic() - began)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.outage", description=__doc__)
    parser.add_argument("--on", default="postgres", choices=["postgres", "pgmq"])
    parser.add_argument("--away", type=float, default=30.0, help="seconds without a server")
    options = parser.parse_args()
    trial = long_outage(options.on, 1, options.away)
    print(trial)
    return 1 if trial.broken else 0


if __name__ == "__main__":
    sys.exit(main())
