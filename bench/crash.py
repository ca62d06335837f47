"""`python -m bench.crash`: how soon the commands of a killed worker process are given back.

`commandbus worker` with several processes works on a steady load of short commands, with leases of
30 s. One process after another is killed by SIGKILL. Prints the time from the kill until no lease of
the dead worker is left, so that every command that it held is running again or waiting in the queue;
how many harmless commands were parked; and what became of commands that kill their process.

With `--elsewhere` workers have no flight recorder, as if each ran on a machine of its own: PostgreSQL
knows by a connection that a process is dead. Every command that it held counts a crash then.
"""

from __future__ import annotations

import argparse
import os
import queue
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from uuid import UUID

import psycopg

from commandbus import CommandStatus, SendRequest
from commandbus.engines.postgres.location import parse
from commandbus.engines.postgres.pgmq.installation import install
from commandbus.engines.postgres.schema import upgrade
from commandbus.sync import SyncCommandBus
from commandbus.testing.postgres import PostgresServer, create_database

DOMAIN = "crash"
PROCESSES = 3
KILLERS = 3
BACKLOG = 2_000
WORKING_SECONDS = 0.3, 1.0
"""So long a process has been working when it is killed."""
BAR_SECONDS = 1.0
SLOW_SHARE = 0.9
"""Of kills that take longer than this part of the bar, what was said about them is printed."""
ELSEWHERE_BAR_SECONDS = 3.0
WITHOUT_RECORDER = {"COMMANDBUS_RECORDER": "off"}
PATIENCE_SECONDS = 60.0
ENGINES = ("sqlite", "postgres", "pgmq")
APP = """
import os, signal, time
from commandbus import HandlerRegistry

registry = HandlerRegistry()

@registry.handler("crash", "Work")
def work(command, context):
    time.sleep(command.data)

@registry.handler("crash", "Kill")
def kill(command, context):
    os.kill(os.getpid(), signal.SIGKILL)
"""

CountLeases = Callable[[str], int]


class Fleet:
    """`commandbus worker`, and which of its processes serve, as it says itself."""

    def __init__(self, folder: Path, url: str, runtime: list[str], elsewhere: bool) -> None:
        (folder / "crash_app.py").write_text(APP)
        arguments = ["crash_app", "--processes", str(PROCESSES), "--concurrency", "8", *runtime]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "commandbus", "worker", *arguments],
            cwd=folder,
            env=os.environ
            | {"COMMANDBUS_URL": url}
            | ({"COMMANDBUS_RECORDER": "off"} if elsewhere else {}),
            stderr=subprocess.PIPE,
            text=True,
        )
        self.serving: queue.SimpleQueue[str] = queue.SimpleQueue()
        """Names of workers that have begun and were not killed."""
        self.said: list[tuple[float, str]] = []
        """What it and its processes have written, and when."""
        self.slow_seconds = SLOW_SHARE * (ELSEWHERE_BAR_SECONDS if elsewhere else BAR_SECONDS)
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.said.append((time.monotonic(), line.strip()))
            if " serves " in line:
                self.serving.put(next(word for word in line.split() if word.startswith("w-")))

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()


def wait_for(condition: Callable[[], bool], what: str, seconds: float = PATIENCE_SECONDS) -> float:
    """Seconds until it holds."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() > began + seconds:
            raise SystemExit(f"not within {seconds:g} s: {what}")
        time.sleep(0.002)
    return time.monotonic() - began


@contextmanager
def load(bus: SyncCommandBus, chance: random.Random) -> Iterator[None]:
    """Keeps short commands waiting."""
    done = threading.Event()

    def feed() -> None:
        while not done.wait(0.05):
            missing = BACKLOG - bus.stats(DOMAIN, cap=BACKLOG).ready
            if missing > 0:
                seconds = [chance.choice((0.0, 0.001, 0.02)) for _ in range(missing)]
                bus.send_many([SendRequest(DOMAIN, "Work", each) for each in seconds])

    feeder = threading.Thread(target=feed, daemon=True)
    feeder.start()
    try:
        yield
    finally:
        done.set()
        feeder.join()


def kill_one(fleet: Fleet, leases: CountLeases, chance: random.Random) -> float:
    """Seconds from the kill of a process that holds commands until it holds none."""
    worker = fleet.serving.get(timeout=PATIENCE_SECONDS)
    time.sleep(chance.uniform(*WORKING_SECONDS))
    wait_for(lambda: leases(worker) > 0, f"{worker} has claimed something")
    pid, killed = worker.split("-")[-2], time.monotonic()
    os.kill(int(pid), signal.SIGKILL)
    took = wait_for(lambda: leases(worker) == 0, f"the commands of {worker} are given back", 40.0)
    if took > fleet.slow_seconds:
        print(f"  {worker}: {took:.3f} s", flush=True)
        for at, line in list(fleet.said):
            if at > killed and pid in line:
                print(f"    {at - killed:.3f} {line}", flush=True)
    return took


def is_parked(bus: SyncCommandBus, command_id: UUID) -> bool:
    record = bus.get_command(command_id)
    return record is not None and record.status is CommandStatus.IN_TROUBLESHOOTING_QUEUE


def measure(
    url: str, folder: Path, kills: int, runtime: list[str], leases: CountLeases, elsewhere: bool
) -> bool:
    chance = random.Random(1)
    with SyncCommandBus(url) as bus:
        fleet = Fleet(folder, url, runtime, elsewhere)
        try:
            with load(bus, chance):
                took = sorted(kill_one(fleet, leases, chance) for _ in range(kills))
            wait_for(lambda: bus.stats(DOMAIN).depth == 0, "the backlog is done")
            killers = [bus.send(DOMAIN, "Kill").command_id for _ in range(KILLERS)]
            wait_for(lambda: all(is_parked(bus, one) for one in killers), "the killers are parked")
        finally:
            fleet.stop()
        parked = bus.query_commands(
            domain=DOMAIN, command_type="Work", status=CommandStatus.IN_TROUBLESHOOTING_QUEUE
        )
        causes = {
            (record.crashes, "SIGKILL" in record.error.message)
            for record in map(bus.get_command, killers)
            if record is not None and record.error is not None
        }
        done = bus.stats(DOMAIN).completed
    p50, p99 = took[len(took) // 2], took[min(len(took) - 1, int(len(took) * 0.99))]
    print(
        f"  {kills} kills, {done:,} completed; given back after p50 {p50:.3f}, p99 {p99:.3f}, "
        f"max {took[-1]:.3f} s; harmless parked: {len(parked)}; "
        f"killers (crashes, cause named): {causes}",
        flush=True,
    )
    if elsewhere:
        return p99 <= ELSEWHERE_BAR_SECONDS and {crashes for crashes, _ in causes} == {3}
    return p99 <= BAR_SECONDS and not parked and causes == {(3, True)}


def on_sqlite(stack: ExitStack, folder: Path) -> tuple[str, CountLeases]:
    path = folder / "bus.db"
    with SyncCommandBus(f"sqlite:///{path}"):
        connection = sqlite3.connect(path, check_same_thread=False)
        stack.callback(connection.close)

    def leases(worker: str) -> int:
        sql = "select count(*) from commandbus_lease where worker = ?"
        return int(connection.execute(sql, (worker,)).fetchone()[0])

    return f"sqlite:///{path}", leases


def on_postgres(stack: ExitStack, engine: str) -> tuple[str, CountLeases]:
    server = PostgresServer.start()
    stack.callback(server.stop)
    url = create_database(server)
    (install if engine == "pgmq" else upgrade)(url)
    connection = stack.enter_context(psycopg.connect(parse(url).conninfo, autocommit=True))

    def leases(worker: str) -> int:
        sql = "select count(*) from commandbus.lease where worker = %s"
        found = connection.execute(sql, (worker,)).fetchone()
        return 0 if found is None else int(found[0])

    return url + ("&transport=pgmq" if engine == "pgmq" else ""), leases


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.crash", description=__doc__)
    parser.add_argument("engines", nargs="*", default=ENGINES, help=" ".join(ENGINES))
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--elsewhere", action="store_true", help="No flight recorder; PostgreSQL only.")
    parser.add_argument("--threads", action="store_true", help="Workers on threads.")
    options = parser.parse_args()
    good = True
    for engine in options.engines:
        if options.elsewhere and engine == "sqlite":
            continue
        print(f"{engine}, leases of 30 s, {PROCESSES} processes", flush=True)
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            url, leases = on_sqlite(stack, folder) if engine == "sqlite" else on_postgres(stack, engine)
            runtime = ["--threads"] * options.threads
            good &= measure(url, folder, options.kills, runtime, leases, options.elsewhere)
    raise SystemExit(0 if good else 1)


if __name__ == "__main__":
    main()
