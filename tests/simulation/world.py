"""The world of a simulation: one store, a few virtual workers, a clock that only the scheduler moves.

A seed decides everything: what is sent, which event or effect comes next, what fails and how. After the
chaos the faults stop, and everything must come to its end within a bound of virtual time.

Half of the worlds are *prompt*: processes are healthy between faults and wake-ups arrive, so a worker
with a free slot must never sleep beside ready work. In the others anything may be late or lost, and the
poll interval has to do.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from random import Random
from typing import Any, TypeVar
from uuid import UUID

from commandbus.domain.audit import AuditEvent
from commandbus.domain.command import CommandRecord
from commandbus.domain.outcome import Outcome, Released, Succeeded, decide_failure
from commandbus.domain.retry import RetryPolicy
from commandbus.engines.memory.store import MemoryStore
from commandbus.errors import (
    BusinessRuleException,
    DuplicateCommandError,
    InvalidOperationError,
    PermanentCommandError,
    RetryAfter,
    Snooze,
    StoreUnavailable,
    TransientCommandError,
)
from commandbus.operations import canceling, queues, sending, troubleshooting
from commandbus.operations.scope import Scope
from commandbus.settings import BusSettings, WorkerSettings
from commandbus.store.op import Log, Op, Rows, Statement, Wake, drive
from commandbus.store.records import Claimed, QueueStats, Settlement
from commandbus.store.wakeup import WakeHub
from commandbus.worker.events import (
    ClaimAnswered,
    ClaimFailed,
    PollChanged,
    Resized,
    Settled,
    SettleFailed,
    StopRequested,
    Woken,
)
from tests.simulation.oracle import PARKED, Oracle, Tracked, Violation
from tests.simulation.shell import Run, VirtualWorker

T = TypeVar("T")
SECOND = 1_000_000
START = 1_000 * SECOND
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LEASE = 10.0
POLL_MAX = 60.0
ATTEMPTS = 3
BUS_SETTINGS = BusSettings(max_attempts=ATTEMPTS)
POLICY = RetryPolicy(max_attempts=ATTEMPTS, backoff_schedule=[0.5, 2.0])
WORKER_SETTINGS = [
    WorkerSettings(
        concurrency=concurrency,
        prefetch=prefetch,
        poll_interval=poll,
        visibility_timeout=LEASE,
        jitter=jitter,
    )
    for concurrency in (1, 2, 3)
    for prefetch in (0, 2, None)
    for poll, jitter in ((POLL_MAX, 0.0), (5.0, 0.0), (POLL_MAX, 0.01))
]
ERRORS: list[Callable[[], BaseException]] = [
    lambda: TransientCommandError("DOWN", "try later"),
    lambda: TransientCommandError("DOWN", "try later"),
    lambda: ValueError("unforeseen"),
    lambda: PermanentCommandError("WRONG", "never"),
    lambda: BusinessRuleException("NO", "not allowed"),
    lambda: Snooze(1.5, "not yet"),
    lambda: RetryAfter(3.0),
]
UNREACHABLE = StoreUnavailable("the simulation says so")
POISON = ValueError("this settlement can never be stored")


class World:
    def __init__(self, seed: int, trace: list[str] | None = None) -> None:
        rng = self.rng = Random(seed)
        self.trace = trace
        self.now = START
        self.steps = 0
        self.faults = True
        self.grouped = seed % 3 == 0
        """Whether most commands have a group key."""
        self.prompt = rng.random() < 0.5
        self.lossy = not self.prompt and rng.random() < 0.6
        self.shared_hub = WakeHub() if rng.random() < 0.5 else None
        self.domains = ("a",) if rng.random() < 0.6 else ("a", "b")
        self.store = MemoryStore(lambda: self.now)
        self.scope = Scope(self.store, BUS_SETTINGS, self._new_id)
        self.oracle = Oracle(self._record, self._trail, self._stats)
        self.workers: list[VirtualWorker] = []
        self._born = 0
        self._sends_left = rng.randint(3, 8) + 4 * self.grouped
        for _ in range(rng.randint(1, 3)):
            self.start_worker()
        for _ in range(rng.randint(0, self._sends_left // 2 if self.prompt else self._sends_left)):
            self.send()

    # Time.

    @property
    def seconds(self) -> float:
        return self.now / SECOND

    def moment(self, seconds: float) -> int:
        """The first microsecond at which `seconds` have come."""
        moment = int(seconds * SECOND)
        while moment / SECOND < seconds:
            moment += 1
        return moment

    def handler_time(self) -> int:
        if not self.faults:
            return 20_000
        draw = self.rng.random()
        if draw < (0.4 if self.prompt else 0.7):
            return int(draw * 200_000)
        return int(draw * 3 * SECOND) if draw < 0.93 else 25 * SECOND

    # The store, as the workers and senders reach it.

    def run(self, op: Op[T]) -> T:
        after: list[Wake | Log] = []
        result = drive(op, refuse, after)
        for wake in after:
            if isinstance(wake, Wake):
                self.wake(wake.domain, wake.due_in, "notify", None)
        return result

    def wake(self, domain: str, due_in: float | None, source: str, only: WakeHub | None) -> None:
        """Processes hear of commits each for themselves; a chain stays inside its process."""
        if only is not None:
            only.wake(domain, due_in, source)
        elif self.shared_hub is not None:
            self.shared_hub.wake(domain, due_in, source)
        else:
            for worker in list(self.workers):
                if worker.alive:
                    worker.hub.wake(domain, due_in, source)

    def loses_wakeup(self) -> bool:
        return self.faults and self.lossy and self.rng.random() < 0.4

    def renew(self, lease_ids: list[int], seconds: float) -> list[int]:
        gone = self.run(self.store.renew(lease_ids, seconds))
        self.log("renew", lease_ids, "gone", gone)
        self.oracle.renewed(lease_ids, seconds, gone, self.now)
        return gone

    def _new_id(self) -> UUID:
        return UUID(int=self.rng.getrandbits(128))

    def _record(self, command_id: UUID, domain: str) -> CommandRecord | None:
        found = self.run(self.store.find(command_id, domain))
        return found[0] if found else None

    def _trail(self, command_id: UUID, domain: str) -> list[AuditEvent]:
        return self.run(self.store.audit_trail(command_id, domain))

    def _stats(self, domain: str) -> QueueStats:
        return self.run(self.store.stats(domain))

    # What can happen.

    def start_worker(self, *, of_all: bool = False) -> None:
        self._born += 1
        rng = self.rng
        settings = WORKER_SETTINGS[int(rng.random() * len(WORKER_SETTINGS))]
        domains = self.domains if of_all or rng.random() < 0.8 else self.domains[:1]
        hub = self.shared_hub or WakeHub()
        self.log("start", f"w{self._born}", settings.concurrency, settings.prefetch, domains)
        self.workers.append(VirtualWorker(self, f"w{self._born}", settings, domains, hub))

    def send(self) -> None:
        rng, oracle = self.rng, self.oracle
        if self._sends_left <= 0:
            return
        self._sends_left -= 1
        draw, now = rng.random(), self.now
        domain = self.domains[int(rng.random() * len(self.domains))]
        priority = (0, 5, 5, 10)[int(rng.random() * 4)]
        group = ("g", "g", "h", None)[int(rng.random() * 4)] if self.grouped else None
        delay = 0.0 if draw < 0.6 else round(draw * 8, 3)
        key = "k" if rng.random() < 0.3 else None
        attempts = None if draw < 0.7 else 1 + int(rng.random() * 3)
        expires = now + int(rng.random() * 12 * SECOND) if rng.random() < 0.12 else None
        command_id = self._new_id()
        op = sending.send(
            self.scope,
            domain,
            "Work",
            {"n": len(oracle.commands)},
            command_id=command_id,
            priority=priority,
            delay=delay,
            unique_key=key,
            group_key=group,
            max_attempts=attempts,
            expires_at=None if expires is None else EPOCH + timedelta(microseconds=expires),
        )
        result = self.run(op)
        self.log("send", domain, "priority", priority, "delay", delay, key, result.duplicate)
        oracle.sent(
            Tracked(
                number=len(oracle.commands) + 1,
                command_id=command_id,
                domain=domain,
                priority=priority,
                key=key,
                group=group,
                max_attempts=attempts or ATTEMPTS,
                expires_at=expires,
                due_at=now + int(delay * SECOND),
            ),
            result.command_id,
            result.duplicate,
        )

    def send_again(self) -> None:
        """Whoever does not know whether a send arrived repeats it with the same id."""
        command = self._any_command()
        if command is None or command.key is not None:
            return
        try:
            self.run(sending.send(self.scope, command.domain, "Work", command_id=command.command_id))
        except DuplicateCommandError:
            self.oracle.check_record(command)
        else:
            raise Violation(f"P3: #{command.number} was accepted twice")

    def _any_command(self) -> Tracked | None:
        known = list(self.oracle.commands.values())
        return known[int(self.rng.random() * len(known))] if known else None

    def cancel(self) -> None:
        command = self._any_command()
        if command is None:
            return
        try:
            self.run(self._cancel_waiting(command))
            accepted = True
        except InvalidOperationError:
            accepted = False
        self.log("cancel", command.number, accepted)
        self.oracle.canceled(command, accepted)

    def _cancel_waiting(self, command: Tracked) -> Op[None]:
        records = yield from self.scope.store.find(command.command_id, command.domain)
        yield from canceling.cancel_waiting(self.scope, records[0], "canceled")

    def operate(self) -> None:
        """An operator acts, mostly on something that is parked, sometimes too late."""
        parked = [c for c in self.oracle.commands.values() if c.status is PARKED]
        command = parked[0] if parked and self.rng.random() < 0.8 else self._any_command()
        if command is None:
            return
        kind = ("retry", "retry", "cancel", "complete")[int(self.rng.random() * 4)]
        op: Op[None]
        if kind == "retry":
            op = troubleshooting.operator_retry(self.scope, command.command_id)
        elif kind == "cancel":
            op = troubleshooting.operator_cancel(self.scope, command.command_id, reason="no")
        else:
            op = troubleshooting.operator_complete(self.scope, command.command_id)
        try:
            self.run(op)
            accepted = True
        except InvalidOperationError:
            accepted = False
        self.log("operator", kind, command.number, accepted)
        self.oracle.resolved(command, kind, accepted, self.now)

    def operate_on_all_parked(self) -> bool:
        """After the troubles an operator sends everything back that waits for one."""
        parked = [c for c in self.oracle.commands.values() if c.status is PARKED]
        for command in parked:
            op = troubleshooting.operator_retry(self.scope, command.command_id)
            self.run(op)
            self.log("operator", "retry", command.number)
            self.oracle.resolved(command, "retry", accepted=True, now=self.now)
        return bool(parked)

    def toggle_pause(self) -> None:
        domain = self.domains[int(self.rng.random() * len(self.domains))]
        if domain in self.oracle.paused:
            self.resume(domain)
        else:
            self.log("pause", domain)
            self.run(queues.pause(self.scope, domain))
            self.oracle.paused.add(domain)

    def resume(self, domain: str) -> None:
        self.log("resume", domain)
        self.oracle.paused.discard(domain)
        self.run(queues.resume(self.scope, domain))

    def deliver(self, worker: VirtualWorker) -> bool:
        if not worker.inbox:
            return False
        event = worker.inbox.popleft()
        if self.trace is not None:
            self.log(worker.name, "hears", _brief(event))
        worker.handle(event)
        return True

    def perform_claim(self, worker: VirtualWorker) -> bool:
        if worker.claim is None or worker.claim_answer is not None:
            return False
        draw = self.rng.random() if self.faults else 1.0
        if draw < 0.05:
            self.log(worker.name, "claim fails")
            worker.claim_answer = ClaimFailed(UNREACHABLE)
            return True
        worker.heard_late = False
        limit, request = worker.claim.limit, worker.request()
        reply = self.run(self.store.claim(request))
        self.log(worker.name, "claims", [c.seq for c in reply.claimed], reply.next_due_in)
        self.oracle.claimed(request, reply, self.now)
        if draw < 0.09:
            self.log(worker.name, "never learns of its claim")
            worker.claim_answer = ClaimFailed(UNREACHABLE)
        elif draw < 0.12:
            self.crash(worker)
        else:
            worker.claim_answer = ClaimAnswered(reply, limit)
            if not reply.claimed and self.faults:
                self._meanwhile(worker)
        return True

    def _meanwhile(self, worker: VirtualWorker) -> None:
        """Between an empty claim and its answer is where wake-ups get lost: much happens there."""
        draw = self.rng.random()
        if draw < 0.25:
            self.send()
        elif draw < 0.3:
            self.operate()
        if draw < 0.3 and not self.lossy:
            while self.deliver(worker):
                pass

    def perform_settle(self, worker: VirtualWorker) -> bool:
        if worker.settle is None or worker.settle_answer is not None:
            return False
        draw = self.rng.random() if self.faults else 1.0
        if draw < 0.07:
            self.log(worker.name, "settle fails")
            worker.settle_answer = SettleFailed(UNREACHABLE, passing=True)
            return True
        if draw < 0.10:
            self.log(worker.name, "settle is refused for good")
            worker.settle_answer = SettleFailed(POISON, passing=False)
            if len(worker.settle.batch) == 1:
                worker.owed -= {(s.seq, s.lease_id) for s in worker.settle.batch}
            return True
        batch = worker.settle.batch
        report = self.run(self.store.settle(batch))
        if self.trace is not None:
            shown = [(s.seq, s.lease_id, type(s.outcome).__name__) for s in batch]
            self.log(worker.name, "settles", shown, "lost", report.lost)
        self.oracle.settled(batch, report.lost, self.now)
        worker.owed -= {(s.seq, s.lease_id) for s in batch}
        if draw < 0.16:
            self.log(worker.name, "never learns of its settle")
            worker.settle_answer = SettleFailed(UNREACHABLE, passing=True)
        elif draw < 0.18:
            self.crash(worker)
        else:
            worker.settle_answer = Settled(report)
        return True

    def begun(self, claimed: Claimed) -> None:
        """A handler begins: nobody else of its group may be running, under a lease that holds."""
        runs = [run.claimed for worker in self.workers if worker.alive for run in worker.running]
        self.oracle.begun(claimed, runs, self.now)

    def finish(self, worker: VirtualWorker, run: Run) -> None:
        claimed = run.claimed
        outcome = self._outcome(claimed)
        settlement = Settlement(claimed.seq, claimed.lease_id, claimed.attempt, outcome, 1_000)
        self.log(worker.name, "finished", claimed.seq, type(outcome).__name__)
        worker.finish(run, settlement)

    def _outcome(self, claimed: Claimed) -> Outcome:
        draw = self.rng.random()
        if draw < 0.5 or not self.faults:
            return Succeeded('"done"')
        if draw < 0.55:
            return Released("no handler here", 0.5)
        return decide_failure(
            ERRORS[int(draw * 1000) % len(ERRORS)](),
            attempt=claimed.attempt,
            crashes=claimed.crashes,
            max_attempts=claimed.max_attempts or ATTEMPTS,
            policy=POLICY,
        )

    def finish_any(self, worker: VirtualWorker) -> bool:
        if not worker.running:
            return False
        run = worker.running[int(self.rng.random() * len(worker.running))]
        if self.prompt and run.ends_at > self.now and self.rng.random() < 0.8:
            return False
        self.finish(worker, run)
        return True

    def crash(self, worker: VirtualWorker) -> None:
        self.log(worker.name, "crashes")
        worker.end()
        self.bury()

    def bury(self) -> None:
        self.workers = [worker for worker in self.workers if worker.alive]

    def freeze(self, worker: VirtualWorker) -> None:
        if self.prompt and self.shared_hub is not None:
            return  # the whole process would stand still
        worker.frozen_until = self.now + int(LEASE * (0.3 + 1.5 * self.rng.random()) * SECOND)
        worker.heard_late = True
        self.log(worker.name, "freezes until", worker.frozen_until)

    def stop(self, worker: VirtualWorker) -> None:
        self.log(worker.name, "is asked to stop")
        worker.handle(StopRequested((0.0, 0.5, 5.0)[int(self.rng.random() * 3)]))

    def adjust(self, worker: VirtualWorker) -> None:
        draw = self.rng.random()
        if draw < 0.6:
            worker.handle(Resized(1 + int(draw * 5)))
        elif draw < 0.8:
            worker.handle(PollChanged(20.0))
        else:
            worker.handle(Woken("reconnect"))

    def log(self, *words: Any) -> None:
        if self.trace is not None:
            self.trace.append(f"{self.now / SECOND:12.6f}  " + " ".join(map(str, words)))


def _brief(event: Any) -> str:
    text = str(event)
    return text if len(text) < 160 else text[:160] + "…"


def refuse(statement: Statement) -> Rows:
    raise AssertionError(f"the memory engine executes no statements: {statement.sql}")


def weighted(table: dict[str, float]) -> Callable[[Random], str]:
    """A draw from a table of weights."""
    names, bounds = list(table), list(accumulate(table.values()))

    def draw(rng: Random) -> str:
        return names[bisect(bounds, rng.random() * bounds[-1])]

    return draw
