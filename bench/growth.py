"""`python -m bench.growth`: how the cost of a command grows with backlog, fleet and payload.

Adds to the results of the last run, for the same page; takes some minutes. `--ten-million` adds a
backlog of 10,000,000 commands, which takes some minutes more and 15 GB of disk. `--parts fleet`
measures that part alone, and keeps what was found of the others.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psycopg

from bench import machine
from bench.__main__ import RESULTS, reason_of, say
from bench.figures import Results, number
from bench.lab import Lab
from bench.peers.catalogue import Subject, subjects
from bench.scenarios import drain, fill

BACKLOGS = (1_000, 10_000, 100_000, 1_000_000)
FLEETS = (1, 2, 4, 8)
PAYLOADS = (100, 1_024, 4_096, 16_384, 65_536)
FLEET_COMMANDS = 100_000
SAMPLE = 20_000
PAYLOAD_BYTES = 80_000_000
PARTS = ("backlog", "fleet", "payload")
CONCURRENCY = 100

Point = dict[str, float]


def backlog(lab: Lab, subject: Subject, size: int) -> Point:
    """How fast the first commands of a backlog go, and sends beside it."""
    with lab.place(subject) as place:
        empty = _size_of(place.url)
        filled = fill(lab, place, size)
        full = _size_of(place.url)
        sent = lab.call(place, "singles", senders=16, seconds=1.0)
        drained = drain(lab, place, min(size, SAMPLE), CONCURRENCY, is_all=False)
        return {
            "at": size,
            "bulk": filled,
            "send_16": sent["count"] / sent["seconds"],
            "drain": drained.rate,
            "bytes": (full - empty) / size,
        }


def fleet(lab: Lab, subject: Subject, processes: int) -> Point:
    with lab.place(subject) as place:
        fill(lab, place, FLEET_COMMANDS)
        before = lab.meter(place)
        drained = drain(lab, place, FLEET_COMMANDS, CONCURRENCY, processes)
        after = lab.meter(place)
        return {
            "at": processes,
            "drain": drained.rate,
            "server_cpu": 1e6 * (after.cpu - before.cpu) / FLEET_COMMANDS,
            "worker_cpu": 1e6 * drained.worker_cpu / FLEET_COMMANDS,
            "commits": (after.commits - before.commits) / FLEET_COMMANDS,
        }


def payload(lab: Lab, subject: Subject, size: int) -> Point:
    count = max(1_000, min(SAMPLE, PAYLOAD_BYTES // size))
    with lab.place(subject) as place:
        before = lab.meter(place)
        bulk = fill(lab, place, count, size)
        sent = lab.meter(place)
        drained = drain(lab, place, count, CONCURRENCY)
        after = lab.meter(place)
        return {
            "at": size,
            "bulk": bulk,
            "drain": drained.rate,
            "send_wal": (sent.wal - before.wal) / count,
            "wal": (after.wal - sent.wal) / count,
        }


def connections(lab: Lab, subject: Subject) -> float:
    """What one worker holds, with nothing to do."""
    with lab.place(subject) as place, lab.start(place, "work", concurrency=CONCURRENCY, count=0) as one:
        one.wait_for("ready")
        one.go()
        time.sleep(2)
        with psycopg.connect(place.url) as connection:
            row = connection.execute(
                "select count(*) from pg_stat_activity where datname = current_database()"
                " and pid <> pg_backend_pid()"
            ).fetchone()
    assert row is not None
    return float(row[0])


def _size_of(url: str) -> float:
    with psycopg.connect(url) as connection:
        row = connection.execute("select pg_database_size(current_database())").fetchone()
    assert row is not None
    return float(row[0])


def measure(lab: Lab, sizes: tuple[int, ...], parts: Sequence[str]) -> dict[str, Any]:
    (subject,) = subjects(["commandbus"])
    lab.install(subject)
    plan: dict[str, tuple[Callable[[Lab, Subject, int], Point], tuple[int, ...]]] = {
        "backlog": (backlog, sizes),
        "fleet": (fleet, FLEETS),
        "payload": (payload, PAYLOADS),
    }
    found: dict[str, Any] = {"connections": connections(lab, subject)}
    say(f"connections of a worker: {found['connections']:.0f}")
    for name in parts:
        scenario, amounts = plan[name]
        found[name] = []
        for amount in amounts:
            try:
                point = scenario(lab, subject, amount)
            except Exception as error:  # one point less
                found.setdefault("failures", []).append(f"{name} {amount:,}: {reason_of(error)}")
                say(f"{name} {amount}: failed: {error}")
                continue
            found[name].append(point)
            rest = ", ".join(f"{key} {number(value)}" for key, value in point.items() if key != "at")
            say(f"{name} {amount:,}: {rest}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.growth", description=__doc__)
    parser.add_argument("--ten-million", action="store_true")
    parser.add_argument("--most", type=int, help="no backlog above this")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--page", action="store_true", help="write docs/benchmarks.md at the end")
    options = parser.parse_args()
    all_sizes = (*BACKLOGS, 10_000_000) if options.ten_million else BACKLOGS
    sizes = tuple(size for size in all_sizes if size <= (options.most or size))
    results = Results.load(options.results) if options.results.exists() else Results()
    began = time.monotonic()
    with Lab() as lab:
        if not results.about:
            results.about = machine.about(lab, 1, 1.0)
        results.growth.pop("failures", None)
        results.growth |= measure(lab, sizes, options.parts)
    results.growth["seconds"] = round(time.monotonic() - began)
    results.save(options.results)
    say(f"{results.growth['seconds']} s; results: {options.results}")
    if options.page:
        from bench import page

        page.write(results)


if __name__ == "__main__":
    main()
