"""How many statements a worker sends that has nothing to do.

All workers idle at the same time, each in a database of its own, and the server's log says who sent
what: its statistics would count autovacuum, too, and know nothing of statements.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence

import psycopg

from bench.lab import Lab, Place
from bench.peers.catalogue import Subject
from bench.peers.child import DriverFailed
from commandbus.testing.postgres import PostgresUnavailable

SETTLE_SECONDS = 4.0
CONCURRENCY = 10


def count_statements(lab: Lab, subjects: Sequence[Subject], seconds: float) -> dict[str, float | str]:
    """By name: statements per second, or why there is no such figure."""
    found: dict[str, float | str] = {}
    with contextlib.ExitStack() as stack:
        databases: dict[str, str] = {}
        for subject in subjects:
            try:
                place = stack.enter_context(lab.place(subject))
                databases[_start(lab, place, stack)] = subject.name
            except (DriverFailed, PostgresUnavailable, psycopg.Error) as error:
                found[subject.name] = str(error)
        time.sleep(SETTLE_SECONDS)
        for name, count in _count(lab, seconds).items():
            if name in databases:
                found[databases[name]] = count / seconds
        for silent in databases.values():
            found.setdefault(silent, 0.0)
    return found


def _start(lab: Lab, place: Place, stack: contextlib.ExitStack) -> str:
    worker = stack.enter_context(lab.start(place, "work", concurrency=CONCURRENCY, count=0))
    worker.wait_for("ready")
    worker.go()
    name: str = place.task("work")["pg"]["database"]
    return name


def _count(lab: Lab, seconds: float) -> dict[str, int]:
    """Statements by database."""
    lab.configure({"log_line_prefix": "'%d|'", "log_min_duration_statement": "0"})
    try:
        begun = lab.log.stat().st_size
        time.sleep(seconds)
        with lab.log.open("rb") as log:
            log.seek(begun)
            return count_lines(log.read().decode("utf-8", "replace"))
    finally:
        lab.configure({"log_line_prefix": None, "log_min_duration_statement": None})


def count_lines(log: str) -> dict[str, int]:
    """A statement is logged once as text, or once as the execution of a prepared one."""
    counts: dict[str, int] = {}
    for line in log.splitlines():
        database, bar, rest = line.partition("|")
        if bar and rest.startswith("LOG:") and (" ms  statement: " in rest or " ms  execute " in rest):
            counts[database] = counts.get(database, 0) + 1
    return counts
