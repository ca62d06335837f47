"""Real processes on one store, faults at random, then quiet, then everything is looked at."""

import random
import signal
import subprocess
import time
from collections import Counter
from contextlib import closing, suppress
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any
from uuid import UUID

from commandbus import Misfire, Schedule, SendRequest
from commandbus.errors import StoreUnavailable
from commandbus.sync import SyncCommandBus
from tests.chaos.case import Case, Final, Terms, load
from tests.chaos.catalogue import READERS, has_recorders, switch_on
from tests.chaos.kinds import BURST, DOMAINS, LIMIT, LIMITED, PACED, RATE, TICK
from tests.chaos.places import Place
from tests.chaos.tables import Tables, read
from tests.os_processes.journal import Journal
from tests.os_processes.lab import Child, wait_until

RESUME_SECONDS_MAX = 10.0
"""P15: after a server is back, every worker has begun a handler again."""
GRACE = 0.5
"""What a stop leaves running handlers here; the checker wants an exit within one second more."""
LOOK_SECONDS = 0.1
BLIND_FROM = 20
TICK_SECONDS = 5.0
"""A schedule of one second sends its next occurrence within so many."""
FILL, FILL_SECONDS = 1_000, 0.005
"""A backlog is sent in groups, of commands that take so long: it must outlast the kills."""
FAULTS = {"kill worker": 5.0, "freeze worker": 3.0, "stop worker": 3.0, "kill sender": 2.0}


@dataclass
class Plan:
    place: Place
    folder: Path
    seed: int = 1
    seconds: float = 10.0
    workers: int = 4
    senders: int = 2
    lease: float = 1.0
    faults_min: int = 0
    commands_min: int = 0
    """Harm goes on until there were so many, up to three times as long: a slow machine has few."""
    calm: float = 0.5
    """Mean seconds between two faults."""
    pause: float = 0.02
    """Mean seconds between two sends of a sender, times two."""
    concurrency: int = 8
    longest: float = 0.02
    """Seconds that an ordinary handler takes at most."""
    drain_seconds: float = 60.0
    """How long nothing may end before it is held that nothing more will."""
    bug: str | None = None
    """A mistake that every process makes, see bugs.py."""
    types: dict[str, float] | None = None
    """Kinds of commands and how often each is sent, if not as usual."""
    mix: dict[str, float] | None = None
    """Ways to send and how often each, if not as usual."""
    keys: int | None = None
    """How many unique keys there are, if not as usual."""
    faults: dict[str, float] = field(default_factory=lambda: dict(FAULTS))
    """What is done to processes, and how often in proportion."""
    patient: bool = False
    """After a fault of the server, wait until every worker has claimed again, and note how long."""
    in_turn: bool = False
    """Kinds of commands are sent one after another, not at random."""
    only: dict[str, float] | None = None
    """What is done to processes and to the store, if not all of it."""
    backlog: int = 0
    """So many commands wait before the first worker starts."""
    ahead: int = 3_000
    """Senders pause while more than this waits."""
    operators: bool = False
    """Somebody pauses, resumes, cancels and retries all the while."""
    hurry: float = 1.0
    """Mean seconds between two actions of an operator, times two."""
    priorities: tuple[int, ...] = (0, 5, 5, 5, 10)
    load: float = 1.0
    redelivery: float = 1.0
    """See `Terms`."""

    @property
    def transactional(self) -> bool:
        """A worker of PostgreSQL that has a transactional handler leases each command by itself and
        writes no receipts, so one is registered only where it is sent to."""
        return self.place.transactional and (self.types is None or "transfer" in self.types)


@dataclass
class Findings:
    case: Case
    faults: Counter[str]
    refused: int
    seconds: float
    drained_in: float
    died: list[str] = field(default_factory=list)
    """What processes said that ended without being told to."""
    resumed: list[float] = field(default_factory=list)
    """How long it took until the last worker began a handler again after the server was back."""

    @property
    def runtimes(self) -> Counter[str]:
        """Runs in each runtime."""
        return Counter(run.get("runtime", "?") for runs in self.case.runs.values() for run in runs)


class Laboratory:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._chance = random.Random(plan.seed)
        self._journal = Journal(plan.folder / "history-laboratory.jsonl")
        self._workers: list[Child] = []
        self._senders: list[Child] = []
        self._frozen: list[tuple[float, Child]] = []
        self._started = 0
        self._faults: Counter[str] = Counter()
        self._died: list[str] = []
        self._told_to_stop: set[int] = set()
        self._resumed: list[float] = []

    def run(self) -> Findings:
        plan, began = self.plan, time.monotonic()
        with SyncCommandBus(plan.place.bus_url, migrate=True) as bus:
            try:
                self._fill(bus)
                self._arrange(bus)
                self._workers = [self._start_worker() for _ in range(plan.workers)]
                self._senders = [self._start_sender(number) for number in range(plan.senders)]
                if plan.operators:
                    self._senders.append(self._start_operator())
                for child in self._workers + self._senders:
                    assert child.was_ready.wait(30), child.errors
                self._do_harm(bus, began + plan.seconds)
                quiet = time.monotonic()
                self._drain(bus)
                drained_in = time.monotonic() - quiet
                self._stop_workers()
            finally:
                for child in self._workers + self._senders:
                    if child.process.poll() is None:
                        child.kill()
            if plan.bug in READERS:
                switch_on(plan.bug)
            effects = plan.place.effects()
            place = plan.place
            terms = Terms(
                plan.lease, GRACE, plan.concurrency, plan.load, plan.redelivery, place.in_sequence,
                place.one_writer, has_recorders(plan.bug),
            )  # fmt: skip
            case = load(plan.folder, read(plan.place.own_url, effects, bus), terms)
        refused = sum(len(event["members"]) for event in case.events if event["event"] == "refused")
        seconds = time.monotonic() - began
        faults = self._faults - plan.place.spared
        self._died += _blind(case)
        return Findings(case, faults, refused, seconds, drained_in, self._died, self._resumed)

    def _arrange(self, bus: SyncCommandBus) -> None:
        """Limits, and a schedule; where a store has no limits, commands of groups are not sent."""
        bus.put_schedule(
            Schedule(
                name=TICK, domain=DOMAINS[0], command_type=TICK, data={"seconds": 0}, every=1,
                misfire=Misfire.ALL,
            )
        )  # fmt: skip
        if self.plan.place.has_gates:
            for domain in DOMAINS:
                bus.set_limit(domain, LIMITED, concurrency=LIMIT)
                bus.set_limit(domain, PACED, rate=RATE, burst=BURST)

    def _fill(self, bus: SyncCommandBus) -> None:
        """A backlog, before anything runs."""
        for first in range(0, self.plan.backlog, FILL):
            commands = [
                {"id": str(UUID(int=self._chance.getrandbits(128), version=4)), "domain": DOMAINS[0],
                 "type": "note", "priority": 5, "delay": 0, "data": {"seconds": FILL_SECONDS}}
                for _ in range(min(FILL, self.plan.backlog - first))
            ]  # fmt: skip
            self._journal.write("send_invoked", commands=commands)
            bus.send_many(
                [
                    SendRequest(c["domain"], c["type"], c["data"], command_id=c["id"], priority=5)
                    for c in commands
                ]
            )
            self._journal.write("send_ok", ids=[command["id"] for command in commands])

    def _start_worker(self) -> Child:
        self._started += 1
        runtime = ("asyncio", "threads")[self._started % 2]
        more: dict[str, Any] = {"runtime": runtime}
        if self.plan.place.skews:
            more["skew"] = self._chance.choice((0, 0, -3600, 3600))
        return self._start("worker", f"{runtime}-{self._started}", **more)

    def _start_sender(self, number: int) -> Child:
        return self._start("sender", f"sender-{number}", number=number, seed=self.plan.seed)

    def _start_operator(self) -> Child:
        return self._start("operator", "operator", seed=self.plan.seed)

    def _start(self, role: str, name: str, **more: Any) -> Child:
        history = self.plan.folder / f"history-{name}.jsonl"
        config = {
            "role": role,
            "url": self.plan.place.url,
            "callers_url": self.plan.place.callers_url or self.plan.place.url,
            "mix": self.plan.mix,
            "keys": self.plan.keys,
            "in_turn": self.plan.in_turn,
            "bug": self.plan.bug,
            "transactional": self.plan.transactional,
            "types": self.plan.types,
            "history": str(history),
            "visibility_timeout": self.plan.lease,
            "concurrency": self.plan.concurrency,
            "longest": self.plan.longest,
            "poll_interval": self.plan.place.poll_interval,
            "grace": GRACE,
            "ahead": self.plan.ahead,
            "priorities": self.plan.priorities,
            "has_gates": self.plan.place.has_gates,
            "touches_sessions": self.plan.place.touches_sessions,
            "pause": self.plan.pause,
            "hurry": self.plan.hurry,
        }
        return Child("tests.chaos.process", config | more)

    def _had_enough(self, bus: SyncCommandBus) -> bool:
        if self._faults.total() < self.plan.faults_min:
            return False
        try:
            ended = sum(stats.completed for stats in map(bus.stats, DOMAINS))
        except StoreUnavailable:
            return False
        return ended >= self.plan.commands_min

    def _do_harm(self, bus: SyncCommandBus, until: float) -> None:
        latest = until + 2 * self.plan.seconds
        half = until - self.plan.seconds / 2
        while (now := time.monotonic()) < until or (now < latest and not self._had_enough(bus)):
            next_fault = now + self._chance.expovariate(1 / self.plan.calm)
            while time.monotonic() < min(next_fault, latest):
                self._thaw()
                self.plan.place.mend()
                self._replace_dead()
                time.sleep(0.02)
            certain = self.plan.place.certain if self.plan.only is None else None
            self._harm(certain if time.monotonic() > half else None)
        self._thaw(all_of_them=True)
        self.plan.place.mend(all_of_them=True)

    def _harm(self, certain: str | None) -> None:
        faults = self.plan.only or self.plan.faults | self.plan.place.faults
        (fault,) = self._chance.choices(list(faults), list(faults.values()))
        fault = certain or fault
        if fault not in FAULTS:
            self._note(fault)
            self.plan.place.harm(fault, self._chance)
            if self.plan.patient:
                while self.plan.place.is_harmed:
                    self.plan.place.mend()
                    time.sleep(0.02)
                self._wait_until_resumed()
            return
        frozen = [child for _, child in self._frozen]
        children = self._senders if "sender" in fault else self._workers
        candidates = [c for c in children if c not in frozen and c.pid not in self._told_to_stop]
        if not candidates:
            return
        victim = self._chance.choice(candidates)
        if victim.process.poll() is not None or not victim.was_ready.is_set():
            return
        self._note(fault, victim.pid)
        if fault == "freeze worker":
            victim.signal(signal.SIGSTOP)
            thaw_at = time.monotonic() + self.plan.lease * self._chance.uniform(2.0, 2.5)
            self._frozen.append((thaw_at, victim))
        elif fault == "stop worker":
            victim.signal(signal.SIGTERM)
            self._told_to_stop.add(victim.pid)
        else:
            victim.kill()

    def _wait_until_resumed(self) -> None:
        """Every worker has begun a handler since now."""
        since = time.monotonic()
        histories = {worker.config["history"]: 0 for worker in self._workers}
        for history in histories:
            histories[history] = Path(history).stat().st_size
        deaf = set(histories)

        def resumed() -> bool:
            for history in list(deaf):
                with Path(history).open("rb") as file:
                    file.seek(histories[history])
                    if b'"event": "handled"' in file.read():
                        deaf.remove(history)
            return not deaf

        try:
            wait_until(resumed, "every worker has begun a handler again", RESUME_SECONDS_MAX)
        except AssertionError:
            self._died.append(
                f"P15: {len(deaf)} workers ran no handler within {RESUME_SECONDS_MAX:g} s of a restart"
            )
        self._resumed.append(time.monotonic() - since)

    def _note(self, fault: str, victim: int | None = None) -> None:
        self._faults[fault] += 1
        self._journal.write("fault", fault=fault, victim=victim)

    def _thaw(self, *, all_of_them: bool = False) -> None:
        now = time.monotonic()
        for entry in list(self._frozen):
            if all_of_them or entry[0] <= now:
                self._frozen.remove(entry)
                entry[1].signal(signal.SIGCONT)

    def _replace_dead(self) -> None:
        for index, worker in enumerate(self._workers):
            if (code := worker.process.poll()) is not None:
                self._bury(worker, code)
                self._workers[index] = self._start_worker()
        for index, sender in enumerate(self._senders):
            if (code := sender.process.poll()) is not None:
                self._bury(sender, code)
                again = sender.config["role"] == "operator"
                self._senders[index] = self._start_operator() if again else self._start_sender(index)

    def _bury(self, child: Child, code: int) -> None:
        if child.pid in self._told_to_stop:
            self._told_to_stop.remove(child.pid)
        elif code == 0:
            self._died.append(f"process {child.pid} ended, though nobody had told it to")
        if not child.process.stdout.closed:
            child.wait()
        # 9 and a segmentation fault are the poison's doing, -9 ours, 0 a graceful stop, -15 one that
        # was asked to stop again at its very end.
        if code not in (0, 9, -signal.SIGSEGV, -signal.SIGKILL, -signal.SIGTERM):
            self._died.append(f"exit code {code}: {child.errors[-500:]}")
        if code in (9, -signal.SIGSEGV):
            self._note("killed by a command", child.pid)

    def _drain(self, bus: SyncCommandBus) -> None:
        """No more faults: senders learn the fate of their last sends, workers finish the rest."""
        self._replace_dead()
        for sender in self._senders:
            sender.order("stop")
        for sender in self._senders:
            try:
                while sender.expect_any()["event"] != "sent":
                    continue
                sender.wait()
            except (AssertionError, subprocess.TimeoutExpired) as error:
                self._died.append(f"a sender did not end as it should: {error}")
                sender.kill()
        self._senders = []
        with closing(Tables(self.plan.place.own_url)) as tables:
            # One more occurrence after the last fault: then those that were missed have been sent, too.
            before = tables.occurrences()
            with suppress(AssertionError):
                wait_until(lambda: tables.occurrences() > before, "the schedule goes on", TICK_SECONDS)
        bus.disable_schedule(TICK)

        # However long it takes, as long as it goes on; the checker names whatever has not ended.
        fewest, until = inf, time.monotonic() + self.plan.drain_seconds
        with closing(Tables(self.plan.place.own_url)) as tables:
            while fewest and time.monotonic() < until:
                time.sleep(LOOK_SECONDS)
                self._replace_dead()
                # The last member of a batch ends, and its end is a command that is carried out.
                left = tables.open_commands() or tables.closable_batches() or tables.open_commands()
                if left < fewest:
                    fewest, until = left, time.monotonic() + self.plan.drain_seconds

    def _stop_workers(self) -> None:
        for worker in self._workers:
            assert worker.was_ready.wait(30), worker.errors
            worker.signal(signal.SIGTERM)
        for worker in self._workers:
            try:
                while worker.expect_any(20)["event"] != "stopped":
                    continue
                worker.wait()
            except AssertionError as error:
                self._died.append(f"a worker did not stop: {error}")


def _blind(case: Case) -> list[str]:
    """Outcomes that nothing wrote down: then the checks of leases and tokens see nothing of them."""
    done = {
        is_transfer: [c for c, (final, *_) in case.finals.items() if _ran(final, is_transfer)]
        for is_transfer in (False, True)
    }
    return [
        f"no history has an outcome of {len(ids)} completed {'transfers' if transfers else 'commands'}"
        for transfers, ids in done.items()
        if len(ids) > BLIND_FROM and not any(case.settles[command_id] for command_id in ids)
    ]


def _ran(final: Final, is_transfer: bool) -> bool:
    return final.status == "COMPLETED" and (final.type == "transfer") == is_transfer
