"""`python -m tests.support.fleet --processes 10 --commands 20000`: many workers, each command once."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from commandbus import SendRequest
from commandbus.sync import SyncCommandBus
from commandbus.testing.postgres import PostgresServer, create_database
from tests.os_processes import journal
from tests.os_processes.lab import DOMAIN, Child, wait_until

CHUNK = 5_000


@dataclass
class Result:
    sent: set[str]
    runs: Counter[str]
    """How often each command was carried out."""
    shares: Counter[int]
    """How many each process did."""
    seconds: float


def run(url: str, folder: Path, processes: int, commands: int, **options: object) -> Result:
    """Worker processes of both runtimes share a backlog, which begins when all are ready."""
    effects = folder / "effects.jsonl"
    shared = {"url": url, "domain": DOMAIN, "effects": str(effects), "role": "worker"} | options
    children = [
        Child("tests.os_processes.child", shared | {"runtime": ("asyncio", "threads")[number % 2]})
        for number in range(processes)
    ]
    try:
        for child in children:
            child.expect("ready")
        with SyncCommandBus(url) as bus:
            began = time.monotonic()
            sent: set[str] = set()
            for begin in range(0, commands, CHUNK):
                count = min(CHUNK, commands - begin)
                requests = [SendRequest(DOMAIN, "note", {"n": n}) for n in range(count)]
                sent |= {str(result.command_id) for result in bus.send_many(requests)}

            def drained() -> bool:
                stats = bus.stats(DOMAIN)
                return stats.ready + stats.scheduled + stats.running == 0

            wait_until(drained, "every command has ended", 300)
            seconds = time.monotonic() - began
        for child in children:
            child.stop()
    finally:
        for child in children:
            if child.process.poll() is None:
                child.kill()
    events = list(journal.read(effects))
    runs = Counter(event["id"] for event in events)
    return Result(sent, runs, Counter(event["pid"] for event in events), seconds)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.support.fleet", description=__doc__)
    parser.add_argument("--processes", type=int, default=10)
    parser.add_argument("--commands", type=int, default=20_000)
    options = parser.parse_args()
    with PostgresServer.start(durable=True) as server, tempfile.TemporaryDirectory() as folder:
        url = create_database(server)
        with SyncCommandBus(url, migrate=True):
            pass
        result = run(url, Path(folder), options.processes, options.commands)
    twice = sum(count > 1 for count in result.runs.values())
    missing = len(result.sent - result.runs.keys())
    print(
        f"{len(result.sent):,} commands, {options.processes} processes, {result.seconds:.1f} s:"
        f" {missing} missing, {twice} more than once; shares {sorted(result.shares.values())}"
    )
    return 1 if missing or twice else 0


if __name__ == "__main__":
    sys.exit(main())
