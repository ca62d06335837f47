"""Sagas under kill -9: `python -m tests.chaos.sagas --sagas 10000 --kill-every 2`.

Workers and routers of both runtimes are killed again and again while sagas run, of which some are
refused and some get parked. Then every saga must be completed, undone in the right order, or waiting
for an operator; and after the operator has acted, all must have ended.
"""

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from commandbus import CommandBusError
from commandbus.processes import ProcessEvent, ProcessRecord, ProcessStart, ProcessStatus
from commandbus.sync import SyncCommandBus, SyncProcessManager, SyncTroubleshootingQueue
from tests.chaos.case import Violation
from tests.chaos.saga_process import STEPS, UNDOS, Order, PlaceOrder
from tests.os_processes.lab import Child

ENDED = {
    ProcessStatus.COMPLETED,
    ProcessStatus.COMPENSATED,
    ProcessStatus.FAILED,
    ProcessStatus.CANCELED,
}
RUNTIMES = ("asyncio", "threads")
PAGE = 1_000
GRACE = 0.5
"""What a stop leaves running handlers."""


@dataclass
class Plan:
    sagas: int
    workers: int = 2
    routers: int = 2
    kill_every: float = 2.0
    seconds: float = 300.0
    """How long it may take until every saga has ended or waits."""
    visibility_timeout: float = 5.0
    batch_size: int = 100
    seed: int = 1
    pause: float = 0.0
    """How long a handler takes."""
    concurrency: int = 8
    bug: str | None = None
    """A mistake that every process makes, see bugs.py."""


@dataclass
class Report:
    statuses: Counter[str]
    kills: int
    seconds: float
    steps: int
    violations: list[Violation]


class Fleet:
    """Workers and routers; who is killed is replaced."""

    def __init__(self, url: str, plan: Plan) -> None:
        self._url, self._plan = url, plan
        self._random = random.Random(plan.seed)
        self._children: list[Child] = []
        self.kills = 0

    def start(self) -> None:
        roles = ["worker"] * self._plan.workers + ["router"] * self._plan.routers
        for number, role in enumerate(roles):
            self._children.append(self._child(role, RUNTIMES[number % 2]))

    def _child(self, role: str, runtime: str) -> Child:
        config = {
            "url": self._url,
            "role": role,
            "runtime": runtime,
            "visibility_timeout": self._plan.visibility_timeout,
            "batch_size": self._plan.batch_size,
            "concurrency": self._plan.concurrency,
            "pause": self._plan.pause,
            "grace": GRACE,
            "bug": self._plan.bug,
        }
        return Child("tests.chaos.saga_process", config)

    def kill_one(self) -> None:
        """Only one that works: a process that is killed while it starts proves nothing."""
        ready = [n for n, child in enumerate(self._children) if child.was_ready.is_set()]
        if not ready:
            return
        position = self._random.choice(ready)
        victim = self._children[position]
        victim.kill()
        self.kills += 1
        config = victim.config
        self._children[position] = self._child(config["role"], config["runtime"])

    def wait_until_ready(self) -> None:
        for child in self._children:
            assert child.was_ready.wait(30), child.errors

    def of_role(self, role: str) -> list[Child]:
        return [child for child in self._children if child.config["role"] == role]

    def replace_ended(self) -> None:
        """Whatever was told to stop is started again."""
        for position, child in enumerate(self._children):
            if child.process.poll() is not None:
                if not child.process.stdout.closed:
                    child.wait()
                self._children[position] = self._child(child.config["role"], child.config["runtime"])

    def check_alive(self) -> None:
        for child in self._children:
            code = child.process.poll()
            assert code is None, f"{child.config['role']} ended with {code}:\n{child.errors}"

    def end(self) -> None:
        for child in self._children:
            if child.process.poll() is None:
                child.kill()
            else:
                child.wait()


@contextmanager
def fleet_of(url: str, plan: Plan) -> Iterator[Fleet]:
    fleet = Fleet(url, plan)
    try:
        fleet.start()
        yield fleet
    finally:
        fleet.end()


def orders(plan: Plan) -> list[Order]:
    """One in ten is refused at some step, one in ten parks at some step or compensation."""
    chance = random.Random(plan.seed)
    made = []
    for number in range(plan.sagas):
        order = Order(number)
        kind = number % 10
        if kind == 0:
            order.fails = chance.choice(STEPS)
        elif kind == 1:
            order.parks = chance.choice(STEPS)
        elif number % 50 == 2:
            order.fails, order.parks = "ship", chance.choice(list(UNDOS.values()))
        made.append(order)
    return made


def run(url: str, plan: Plan) -> Report:
    """Start the sagas, kill, wait, check, let an operator act, check again."""
    with SyncCommandBus(url) as bus:
        manager = SyncProcessManager(bus, PlaceOrder)
        starts = [ProcessStart(order) for order in orders(plan)]
        began = time.monotonic()
        with fleet_of(url, plan) as fleet:
            for first in range(0, len(starts), PAGE):
                manager.start_many(starts[first : first + PAGE])
            until_settled(bus, fleet, plan, {ProcessStatus.RUNNING, ProcessStatus.COMPENSATING})
            took = time.monotonic() - began
            waiting = Counter(str(record.status) for record in all_of(bus))
            assert waiting["RUNNING"] == waiting["COMPENSATING"] == 0, waiting
            act(bus, plan, fleet)
        records = list(all_of(bus))
        assert len(records) == plan.sagas, f"{len(records)} of {plan.sagas} sagas are there"
        steps = sum(len(record.steps) for record in records)
        violations = [
            violation
            for record in records
            for violation in check(record, bus.get_process_audit(record.process_id))
        ]
        statuses = waiting | Counter({f"finally {r.status}": 0 for r in records})
        statuses.update(f"finally {record.status}" for record in records)
        return Report(statuses, fleet.kills, took, steps, violations)


def until_settled(bus: SyncCommandBus, fleet: Fleet, plan: Plan, moving: set[ProcessStatus]) -> None:
    deadline = time.monotonic() + plan.seconds
    # On a machine so slow that processes are killed as soon as they are ready, nothing would ever end.
    calm = time.monotonic() + plan.seconds / 3
    next_kill = time.monotonic() + plan.kill_every
    while any(bus.list_processes(status=status, limit=1) for status in moving):
        assert time.monotonic() < deadline, f"not settled: {_states(bus)}"
        time.sleep(0.2)
        fleet.check_alive()
        if next_kill <= time.monotonic() < calm:
            fleet.kill_one()
            next_kill = time.monotonic() + plan.kill_every


def act(bus: SyncCommandBus, plan: Plan, fleet: Fleet) -> None:
    """An operator vouches for what is parked, and repeats what only its worker's death has parked."""
    queue = SyncTroubleshootingQueue(bus)
    moving = {ProcessStatus.RUNNING, ProcessStatus.COMPENSATING}
    for _ in range(20):
        page = queue.list_troubleshooting(limit=PAGE)
        if not page:
            break
        for record in page:
            try:
                if record.reason == "WORKER_LOST" or record.domain == PlaceOrder.reply_to:
                    queue.acting("ann").operator_retry(record.command_id)
                else:
                    queue.acting("ann").operator_complete(record.command_id, "by hand")
            except CommandBusError as error:
                raise AssertionError(f"an operator could not act on {record}") from error
        if page.next is None:
            until_settled(bus, fleet, plan, moving)
    until_settled(bus, fleet, plan, moving | {ProcessStatus.WAITING_FOR_TROUBLESHOOTING})


def all_of(bus: SyncCommandBus) -> Iterator[ProcessRecord]:
    after: str | None = None
    while True:
        page = bus.list_processes(limit=PAGE, after=after)
        yield from page
        if (after := page.next) is None:
            return


def _states(bus: SyncCommandBus) -> Counter[str]:
    return Counter(str(record.status) for record in all_of(bus))


def check(record: ProcessRecord, events: Sequence[ProcessEvent]) -> Iterator[Violation]:
    """The saga ended as it had to, and did nothing twice and nothing in a wrong order."""

    def broken(what: str) -> Violation:
        lines = (f"{event.event_type} {event.step or ''} {event.details or ''}" for event in events)
        return Violation("P13", what, (f"saga {record.state} is {record.status}", *lines))

    if record.status not in ENDED:
        yield broken("it has not ended")
    counted = Counter((str(event.event_type), event.step) for event in events)
    for (kind, step), count in counted.items():
        if count > 1 and (kind in _ONCE or not kind.startswith("STEP_")):
            yield broken(f"{kind} of {step} {count} times")
    if counted_ignored := sum(n for (kind, _), n in counted.items() if kind == "REPLY_IGNORED"):
        yield broken(f"{counted_ignored} replies came twice, or to nobody")
    done = [e.step for e in events if e.event_type == "STEP_COMPLETED"]
    undone = [e.step for e in events if e.event_type == "COMPENSATION_COMPLETED"]
    fails = record.state["fails"]
    expected = list(STEPS) if fails is None else list(STEPS[: STEPS.index(fails)])
    if not done == expected == record.state["done"]:
        yield broken(f"done {done}, noted {record.state['done']}, expected {expected}")
    backwards = [UNDOS[step] for step in reversed(expected) if step in UNDOS] if fails else []
    if undone != backwards:
        yield broken(f"undone {undone}, expected {backwards}")
    ending = ProcessStatus.COMPLETED
    if fails is not None:
        ending = ProcessStatus.COMPENSATED if backwards else ProcessStatus.FAILED
    if record.status is not ending:
        yield broken(f"it is {record.status}, expected {ending}")


_ONCE = ("STEP_SENT", "STEP_COMPLETED", "STEP_FAILED")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sagas", type=int, default=1_000)
    parser.add_argument("--kill-every", type=float, default=2.0, help="seconds between two kills")
    parser.add_argument("--seconds", type=float, default=600.0, help="the longest it may take")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--routers", type=int, default=2)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds that a handler takes")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--url", help="the store; default: a new SQLite file")
    parser.add_argument("--postgres", action="store_true", help="a PostgreSQL of its own")
    chosen = parser.parse_args()
    plan = Plan(
        chosen.sagas,
        chosen.workers,
        chosen.routers,
        chosen.kill_every,
        chosen.seconds,
        seed=chosen.seed,
        pause=chosen.pause,
    )
    with tempfile.TemporaryDirectory() as folder:
        url = chosen.url or (_postgres() if chosen.postgres else f"sqlite:///{Path(folder)}/sagas.db")
        report = run(url, plan)
    rate = report.steps / report.seconds
    print(f"{plan.sagas} sagas, {report.kills} kills, {report.seconds:.1f} s, {rate:.0f} steps/s")
    for status, count in sorted(report.statuses.items()):
        print(f"{count:>8} {status}")
    for violation in report.violations[:10]:
        print(violation)
    return 1 if report.violations else 0


def _postgres() -> str:
    # Here, so that SQLite needs no psycopg.
    from tests.postgres.database import shared_url

    return shared_url()


if __name__ == "__main__":
    sys.exit(main())
