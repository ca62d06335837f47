"""`python -m tests.chaos.orchestration [schedules|batch|breaker|share …] [--sqlite]`: fleets under
schedules, a batch and a breaker, with a verdict each. `share` wants a machine of its own: it compares
the throughput of a batch with that of plain commands.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from statistics import median
from uuid import UUID

from commandbus import (
    BatchStatus,
    CommandRecord,
    CommandStatus,
    Misfire,
    Schedule,
    SendRequest,
)
from commandbus.domain.breaker import BreakerState
from commandbus.sync import SyncCommandBus, SyncTroubleshootingQueue
from commandbus.testing.postgres import PostgresServer, create_database
from tests.chaos.crew import COOLDOWN, DOMAIN, PROBES, TARGET, THRESHOLD, crew, recruit
from tests.os_processes import journal
from tests.os_processes.lab import wait_until

Verdict = tuple[int, str, list[str]]
"""How many commands, what came of them, and what is wrong; nothing, if it went as promised."""


def schedules(
    url: str, folder: Path, *, seconds: float = 60, processes: int = 8, kill_every: float = 2.5
) -> Verdict:
    """Five schedules of one second each, and every few seconds a process is killed: each occurrence
    sends exactly one command."""
    names = [f"s{number}" for number in range(5)]
    rng, kills = random.Random(7), 0
    with SyncCommandBus(url) as bus, crew(url, folder, processes, 4) as children:
        for name in names:
            bus.put_schedule(
                Schedule(
                    name=name, domain=DOMAIN, command_type="tick", data=name, every=1,
                    misfire=Misfire.ALL,
                )
            )  # fmt: skip
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(min(kill_every, max(0.0, end - time.monotonic())))
            place = rng.randrange(processes)
            children[place].kill()
            kills += 1
            children[place] = recruit(url, folder, kills, 4)
            children[place].expect("ready")
        # A last occurrence of each after the last kill, so that what was late has been caught up with.
        for name in names:
            seen = {item.schedule.name: item.last_run for item in bus.list_schedules()}
            wait_until(lambda n=name, s=seen: _moved(bus, n, s[n]), "the schedules go on")
        for name in names:
            bus.disable_schedule(name)
        occurrences: dict[str, list[datetime]] = {name: [] for name in names}
        page = bus.query_commands(domain=DOMAIN, command_type="tick", limit=1000)
        while True:
            for record in page:
                occurrences[record.data].append(datetime.fromisoformat(record.headers["occurrence"]))
            if page.next is None:
                break
            page = bus.query_commands(domain=DOMAIN, command_type="tick", limit=1000, after=page.next)
    wrong: list[str] = []
    for name, found in occurrences.items():
        first, last = min(found), max(found)
        wanted = int((last - first) / timedelta(seconds=1)) + 1
        wrong += [
            f"{name}: occurrence {at} was sent {n} times" for at, n in Counter(found).items() if n > 1
        ]
        if len(set(found)) != wanted:
            wrong.append(f"{name}: {wanted - len(set(found))} of {wanted} occurrences were not sent")
    total = sum(map(len, occurrences.values()))
    return total, f"each of {total:,} occurrences was sent once, {kills} kills", wrong


def _moved(bus: SyncCommandBus, name: str, before: datetime | None) -> bool:
    return any(item.schedule.name == name and item.last_run != before for item in bus.list_schedules())


def batch(url: str, folder: Path, *, size: int = 100_000, processes: int = 4) -> Verdict:
    """One in a hundred members is parked: at every moment the counts are those of the members, the
    batch stays open, and after the operator's bulk retry it completes once."""
    wrong: list[str] = []
    with SyncCommandBus(url) as bus:
        made = bus.create_batch(
            [SendRequest(DOMAIN, "member", {"broken": n % 100 == 0}) for n in range(size)],
            on_complete=SendRequest(DOMAIN, "whole"),
        )
        batch_id, looks = made.batch_id, 0
        with crew(url, folder, processes, 20):

            def look() -> bool:
                """Whether nothing goes on any more; the counts lie between two looks at the members."""
                nonlocal looks
                before, found = bus.stats(DOMAIN, cap=1), bus.get_batch(batch_id)
                after = bus.stats(DOMAIN, cap=1)
                assert found is not None
                looks += 1
                for name, low, count, high in (
                    ("completed", before.completed, found.completed, after.completed),
                    ("parked", before.parked, found.in_troubleshooting, after.parked),
                ):
                    if not min(low, high) <= count <= max(low, high):
                        wrong.append(f"look {looks}: {name} {count}, members {low} to {high}")
                if found.total != size:
                    wrong.append(f"look {looks}: total {found.total}")
                return after.completed + after.parked == size

            wait_until(look, "every member has ended or is parked", 600)
            found = bus.get_batch(batch_id)
            assert found is not None
            if found.status is not BatchStatus.IN_PROGRESS or found.in_troubleshooting != size // 100:
                wrong.append(f"before the retry it is {found}")
            (folder / "repaired").touch()
            queue = SyncTroubleshootingQueue(bus)
            report = queue.acting("ann").bulk("retry", domain=DOMAIN)
            wait_until(lambda: _is_complete(bus, batch_id), "the batch completes", 120)
            wait_until(lambda: list(journal.read(folder / "journal.jsonl")), "its command has run")
        page = bus.query_commands(domain=DOMAIN, command_type="whole")
        if len(page) != 1:
            wrong.append(f"it completed {len(page)} times")
        members = Counter(record.status for record in bus.list_batch_commands(batch_id, limit=1))
        if any(status is not CommandStatus.COMPLETED for status in members):
            wrong.append(f"a member is {members}")
    told = f"{size:,} members, {size // 100:,} parked, {looks:,} looks at the counts, {report}"
    return size, told, wrong


def _is_complete(bus: SyncCommandBus, batch_id: UUID) -> bool:
    found = bus.get_batch(batch_id)
    return found is not None and found.status is BatchStatus.COMPLETED


def breaker(url: str, folder: Path, *, processes: int = 4, commands: int = 400) -> Verdict:
    """Fifty handlers at once against a target that fails: each process makes no more calls than the
    threshold and what ran already, no attempt is used while it is open, all follow within a second,
    and when the target answers again one round of probes is enough."""
    concurrency, wrong = 50, list[str]()
    path, down = folder / "journal.jsonl", folder / "down"
    down.touch()
    with SyncCommandBus(url) as bus, crew(url, folder, processes, concurrency):
        bus.send_many([SendRequest(DOMAIN, "call", n) for n in range(commands)])
        opened = wait_until(lambda: _state(bus) is BreakerState.OPEN and time.time(), "it opens")
        # Long enough to see the others follow, shorter than the cool-down.
        time.sleep(COOLDOWN * 0.75)
        calls = Counter(line["pid"] for line in journal.read(path))
        late = [line for line in journal.read(path) if line["at"] > opened + 1.0]
        if late:
            wrong.append(f"{len(late)} calls more than a second after the fleet knew")
        for pid, count in calls.items():
            if count > THRESHOLD + concurrency:
                wrong.append(f"process {pid} made {count} calls")
        failed = len(list(journal.read(path)))
        used = sum(record.attempts for record in _pending(bus))
        if used != failed:
            wrong.append(f"{used} attempts were used for {failed} calls")
        down.unlink()
        repaired = time.time()
        wait_until(lambda: bus.stats(DOMAIN).completed == commands, "everything has completed", 120)
        good = sorted(line["at"] for line in journal.read(path) if line["at"] > repaired)
        bad = [line for line in journal.read(path) if line["at"] > repaired and line["failed"]]
        if bad:
            wrong.append(f"{len(bad)} calls failed after the repair")
        if good[0] > repaired + 2 * COOLDOWN + 1:
            wrong.append(f"the first probe came {good[0] - repaired:.1f} s after the repair")
    told = (
        f"{sum(calls.values())} calls of {len(calls)} processes before it opened (at most "
        f"{THRESHOLD} + {concurrency} running each), {len(late)} a second later; the first probe after "
        f"{good[0] - repaired:.1f} s, {PROBES} close it, all done after {good[-1] - repaired:.1f} s"
    )
    return commands, told, wrong


def _state(bus: SyncCommandBus) -> BreakerState | None:
    snapshot = bus.get_breaker(TARGET)
    return snapshot.state if snapshot else None


def _pending(bus: SyncCommandBus) -> list[CommandRecord]:
    return list(bus.query_commands(domain=DOMAIN, command_type="call", limit=1000))


def share(url: str, folder: Path, *, commands: int = 40_000, processes: int = 10) -> Verdict:
    """Ten processes settle one batch: at least 80 % of the throughput without it."""
    (folder / "repaired").touch()
    rates: dict[bool, list[float]] = {True: [], False: []}
    with SyncCommandBus(url) as bus:
        for turn in range(6):
            in_batch = turn % 2 == 1
            before = bus.stats(DOMAIN, cap=1).completed
            members = [SendRequest(DOMAIN, "member", {"broken": False}) for _ in range(commands)]
            if in_batch:
                bus.create_batch(members)
            else:
                bus.send_many([member.in_domain(DOMAIN) for member in members])
            with crew(url, folder, processes, 20):
                begin = before + commands // 4
                wait_until(lambda b=begin: _done(bus) >= b, "a quarter is done", 120)
                since, done = time.perf_counter(), _done(bus)
                wait_until(lambda b=before: _done(bus) >= b + commands, "all is done", 120)
                rates[in_batch].append((before + commands - done) / (time.perf_counter() - since))
    plain, batched = median(rates[False]), median(rates[True])
    told = f"{batched:,.0f}/s in one batch, {plain:,.0f}/s without: {batched / plain:.0%}"
    wrong = [] if batched >= 0.8 * plain else [f"{batched / plain:.0%} is less than 80 %"]
    return commands, told, wrong


def _done(bus: SyncCommandBus) -> int:
    time.sleep(0.02)
    return bus.stats(DOMAIN, cap=1).completed


WHOLES: dict[str, Callable[[str, Path], Verdict]] = {
    "schedules": schedules,
    "batch": batch,
    "breaker": breaker,
}
RUNS = WHOLES | {"share": share}


@contextmanager
def store(sqlite: bool) -> Iterator[tuple[str, Path]]:
    """A fresh store, and a folder."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if sqlite:
            yield f"sqlite:///{folder}/crew.db", folder
            return
        with PostgresServer.start(durable=True) as server:
            yield create_database(server), folder


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.orchestration", description=__doc__)
    parser.add_argument("runs", nargs="*", choices=[*RUNS, []], default=list(RUNS))
    parser.add_argument("--sqlite", action="store_true")
    options = parser.parse_args()
    failed = False
    for name in options.runs:
        with store(options.sqlite) as (url, folder):
            with SyncCommandBus(url, migrate=True):
                pass
            _, told, wrong = RUNS[name](url, folder)
        print(f"{name}: {told}")
        print(f"{name}: {'holds' if not wrong else 'BROKEN'}", *wrong[:20], sep="\n  ", flush=True)
        failed = failed or bool(wrong)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
