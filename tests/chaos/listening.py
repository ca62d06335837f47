"""Listening connections are killed, all at once and again and again: what is sent while nobody hears
must be carried out all the same, long before anybody would look by itself."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import LiteralString
from uuid import uuid4

import psycopg

from commandbus import SendRequest
from commandbus.sync import SyncCommandBus
from tests.chaos.places import place_named
from tests.chaos.trial import Trial
from tests.os_processes.lab import Child, wait_until

WORKERS = 10
BOUND = 5.0
"""P15: what was sent to workers that do not listen runs within this; a worker's own look comes
after a minute."""
LISTENERS: LiteralString = (
    "select pid from pg_stat_activity where application_name = 'commandbus listen'"
)
KILL: LiteralString = f"select pg_terminate_backend(pid) from ({LISTENERS}) l"


def kill_listeners(on: str, seed: int, kills: int = 500) -> Trial:
    waited: list[float] = []
    killed = 0
    with tempfile.TemporaryDirectory() as folder, place_named(on, Path(folder), rough=False) as place:
        url, effects = place.url, Path(folder) / "effects.jsonl"
        with (
            SyncCommandBus(place.bus_url) as bus,
            psycopg.connect(place.own_url, autocommit=True) as admin,
        ):
            # A domain for each, so that nobody hears for another.
            domains = [f"listen{number}" for number in range(WORKERS)]
            children = [_worker(url, domain, effects, number) for number, domain in enumerate(domains)]
            try:
                for child in children:
                    child.expect("ready")
                while killed < kills:
                    wait_until(
                        lambda: _listening(admin) >= WORKERS, "everybody listens again", 3 * BOUND
                    )
                    killed += len(admin.execute(KILL).fetchall())
                    waited.append(_round(bus, domains, effects))
                broken = [f"P15: heard again after {s:.1f} s" for s in waited if s > BOUND]
                stopped = [child.stop() for child in children]
            except AssertionError as error:
                broken, stopped = [f"P15: {error}"], []
            finally:
                for child in children:
                    child.kill()
    slowest = max(waited, default=0.0)
    note = (
        f"{len(waited):,} rounds; what was sent to {WORKERS} workers that did not listen was carried "
        f"out after {slowest:.1f} s at the latest ({BOUND:.0f} s are promised; by themselves they "
        "would have looked after a minute)"
    )
    if len(stopped) < WORKERS and not broken:
        broken.append("a worker had ended")
    faults = Counter({"kill listener": killed})
    return Trial(f"killed listeners, {on}", seed, len(waited) * WORKERS, faults, broken, note)


def _worker(url: str, domain: str, effects: Path, number: int) -> Child:
    config = {
        "role": "worker",
        "url": url,
        "domain": domain,
        "effects": str(effects),
        "runtime": ("asyncio", "threads")[number % 2],
        "poll_interval": 60.0,
        "concurrency": 2,
    }
    return Child("tests.os_processes.child", config)


def _listening(admin: psycopg.Connection) -> int:
    return len(admin.execute(LISTENERS).fetchall())


def _round(bus: SyncCommandBus, domains: list[str], effects: Path) -> float:
    """Send to all, at once after the kill; until the last was carried out."""
    began, ids = time.monotonic(), {str(uuid4()) for _ in domains}
    bus.send_many([SendRequest(d, "note", command_id=i) for d, i in zip(domains, ids, strict=True)])
    offset = effects.stat().st_size if effects.exists() else 0

    def all_done() -> bool:
        with effects.open("rb") as file:
            file.seek(max(0, offset - 100_000))
            text = file.read().decode()
        return all(one in text for one in ids)

    wait_until(lambda: effects.exists() and all_done(), "everything has been carried out", 60)
    return time.monotonic() - began
