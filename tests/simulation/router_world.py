"""The world of the router simulation: chaos by the seed, then calm until every process has ended."""

from __future__ import annotations

from random import Random
from typing import Any
from unittest import mock
from uuid import UUID

import msgspec

from commandbus.domain.command import SendRequest
from commandbus.domain.lifecycle import FINAL
from commandbus.domain.process.values import ENDED
from commandbus.engines.memory.store import MemoryStore
from commandbus.errors import DuplicateProcessError, InvalidOperationError
from commandbus.operations import canceling, processes, routing, troubleshooting
from commandbus.operations.scope import Scope
from commandbus.settings import BusSettings
from commandbus.store import outage, replies
from commandbus.store.op import Log, Op, Wake, commits_by_itself, drive
from commandbus.store.records import ClaimReply, ClaimRequest
from commandbus.worker.backoff import BACKOFF_MAX
from tests.simulation.oracle import Violation
from tests.simulation.router_actors import SECOND, TIMER_INTERVAL, Actor, VirtualRouter, VirtualWorker
from tests.simulation.router_oracle import COMPLETION, RouterOracle
from tests.simulation.router_processes import DECLARATIONS, DOMAIN, REPLIES, SIGNAL
from tests.simulation.world import START, refuse, weighted

STEPS_MIN, STEPS_MAX = 60, 240
CALM_TURNS_MAX = 3_000
PATIENCE = 120.0
"""Seconds of calm in which all processes end."""
HEARD, POLLED = 0.2, TIMER_INTERVAL + 0.2
"""Seconds after which a deadline is noticed, where routers hear of it and where they may not."""
BATCH_PATIENCE = 620.0
"""Open batches are looked for every 300 s where no router knows of any, and every 600 s where routers
hear announcements."""

_draw = weighted(
    {
        "router": 48,
        "worker": 24,
        "advance": 14,
        "start": 4,
        "start_batch": 2.5,
        "signal": 3,
        "cancel": 0.7,
        "cancel_step": 1.5,
        "operate": 1,
        "crash": 0.5,
        "stop": 0.5,
        "freeze": 0.7,
        "join": 1.5,
        "late": 3,
    }
)


class StrictStore(MemoryStore):
    """A claim promotes due work and takes back expired leases only when it is asked to sweep, as the
    port allows; the memory engine does both at each claim."""

    sweeps = rescues = True
    workers_rescue = True

    def claim(self, request: ClaimRequest) -> Op[ClaimReply]:
        self.sweeps = request.sweep
        self.rescues = request.sweep and (self.workers_rescue or REPLIES in request.domains)
        reply = yield from super().claim(request)
        return msgspec.structs.replace(reply, hears=bool(self.session))

    def _reclaim(self, now: int) -> Op[int]:
        if not self.rescues:
            return 0
        return (yield from super()._reclaim(now))

    def _promote(self, domain: Any, now: int) -> None:
        if self.sweeps:
            super()._promote(domain, now)


class RouterWorld:
    def __init__(self, seed: int, trace: list[str] | None = None) -> None:
        rng = self.rng = Random(seed)
        self.trace = trace
        self.now = START
        self.steps = 0
        self.faults = True
        self.lossy = rng.random() < 0.5
        self.quiet = not self.lossy and rng.random() < 0.6
        """Announcements are late at most, and known to be heard: nothing polls for minutes."""
        self.alike = rng.random() < 0.7
        """Whether all routers serve all processes."""
        self.store = StrictStore(lambda: self.now)
        self.store.workers_rescue = rng.random() < 0.5
        self.store.session = "heard" if self.quiet else ""
        self.scope = Scope(self.store, BusSettings(), self.new_id)
        self.oracle = RouterOracle(self.scope, self.read)
        self.routers: list[VirtualRouter] = []
        self.workers: list[VirtualWorker] = []
        self.late: list[tuple[Actor, Wake]] = []
        """Wake-ups that are on their way."""
        self._born = 0
        self._starts_left = rng.randint(2, 6)
        self._routers_max = rng.choice((1, 1, 2, 3))
        for _ in range(self._routers_max):
            self.start_router()
        for _ in range(rng.randint(1, 2)):
            self.start_worker()
        self.start()

    def new_id(self) -> UUID:
        return UUID(int=self.rng.getrandbits(128))

    def run_time(self) -> int:
        draw = self.rng.random()
        if not self.faults or draw < 0.7:
            return int(draw * 300_000)
        return int(draw * 4 * SECOND) if draw < 0.95 else 10 * SECOND

    # The store.

    def read(self, op: Op[Any]) -> Any:
        return drive(op, refuse, [])

    def run(self, op: Op[Any], *, read: bool = False) -> Any:
        """One transaction, as a session of the memory engine runs it; then its wake-ups."""
        journal, after = self.store.journal, list[Wake | Log]()
        if read or commits_by_itself(op):
            result = drive(op, refuse, after)
        else:
            journal.begin()
            try:
                result = drive(op, refuse, after)
            except BaseException:
                journal.undo()
                raise
            journal.end()
        for wake in after:
            if isinstance(wake, Wake):
                self._announce(wake)
        return result

    def _announce(self, wake: Wake) -> None:
        for actor in (*self.routers, *self.workers):
            draw = self.rng.random() if self.faults and (self.lossy or self.quiet) else 1.0
            if draw < 0.2 and self.lossy:
                continue
            if draw < 0.5:
                self.late.append((actor, wake))
            else:
                actor.hear(wake)

    # What can happen.

    def start_router(self, *, of_all: bool = False) -> None:
        self._born += 1
        rng, kinds = self.rng, tuple(DECLARATIONS)
        served = kinds if of_all or self.alike else kinds[: rng.randint(1, 3)]
        router = VirtualRouter(self, f"r{self._born}", served, rng.choice((1, 2, 5, 50)))
        self.log("start", router.name, served)
        self.routers.append(router)

    def start_worker(self) -> None:
        self._born += 1
        self.workers.append(VirtualWorker(self, f"w{self._born}"))

    def start(self) -> None:
        if self._starts_left <= 0:
            return
        self._starts_left -= 1
        kind = self.rng.choice(tuple(DECLARATIONS))
        key = self.new_id()
        given = processes.ProcessStart({"log": []}, key)
        self.run(processes.start_processes(self.scope, DECLARATIONS[kind], [given]))
        self.oracle.started[key] = kind
        self.log("start", kind, key)
        if self.rng.random() < 0.1:
            try:
                self.run(processes.start_processes(self.scope, DECLARATIONS[kind], [given]))
            except DuplicateProcessError:
                return
            raise Violation(f"process {key} was started twice")

    def start_batch(self) -> None:
        if self._starts_left <= 0:
            return
        count = self.rng.randint(1, 3)
        self._starts_left -= 1
        kind = self.rng.choice(tuple(DECLARATIONS))
        states = [{"log": list[str]()} for _ in range(count)]
        done = SendRequest[Any](DOMAIN, COMPLETION)
        op = processes.create_process_batch(self.scope, DECLARATIONS[kind], states, on_complete=done)
        made = self.run(op)
        self.oracle.batches[made.batch_id] = made.process_ids
        self.oracle.started |= dict.fromkeys(made.process_ids, kind)
        self.log("start a batch of", kind, made.process_ids)

    def ask(self, what: str) -> None:
        """Signal or cancel some process, sometimes too late."""
        key = self.rng.choice(list(self.oracle.started))
        ended = self.oracle.row(key).status in ENDED
        try:
            if what == "signal":
                self.run(processes.signal_process(self.scope, key, SIGNAL, 1))
                self.oracle.signals[key] += 1
            else:
                self.run(processes.cancel_process(self.scope, key))
                self.oracle.canceled.add(key)
        except InvalidOperationError:
            if not ended:
                raise
        self.log(what, key, "too late" if ended else "")

    def cancel_step(self) -> None:
        """An operator cancels the command of a step that has not ended; compensations are let alone."""
        going = [
            record
            for record in self.oracle.records(DOMAIN)
            if record.status not in FINAL and not record.command_type.startswith(("un", "batch"))
        ]
        if going:
            record = self.rng.choice(going)
            terminate = self.rng.random() < 0.5
            op = canceling.cancel(self.scope, record.command_id, domain=DOMAIN, terminate=terminate)
            self.log("operator cancels", record.command_type, record.correlation_id, self.run(op))

    def step(self) -> None:
        """One thing happens."""
        self.steps += 1
        match _draw(self.rng):
            case "router":
                self._act(self.routers)
            case "worker":
                self._act(self.workers)
            case "advance":
                self._advance()
            case "start":
                self.start()
            case "start_batch":
                self.start_batch()
            case "crash":
                self._chosen().crash()
            case "stop" if self.routers:
                self.rng.choice(self.routers).stop()
            case "freeze":
                self._chosen().freeze(4.0)
            case "join" if len(self.routers) < self._routers_max:
                self.start_router()
            case "join" if len(self.workers) < 2:
                self.start_worker()
            case "late" if self.late:
                actor, wake = self.late.pop(int(self.rng.random() * len(self.late)))
                self.log("late wake-up of", actor.name)
                actor.hear(wake)
            case "cancel_step":
                self.cancel_step()
            case "operate":
                self._operate()
            case "signal" | "cancel" as what:
                self.ask(what)
            case _:
                pass
        self._bury()

    def _act(self, actors: list[Any]) -> None:
        able = [actor for actor in actors if actor.able]
        if able:
            self.rng.choice(able).step()

    def _chosen(self) -> Actor:
        actors: list[Actor] = [*self.routers, *self.workers]
        return self.rng.choice(actors) if actors else Actor(self, "nothing")

    def _bury(self) -> None:
        self.routers = [router for router in self.routers if router.alive]
        self.workers = [worker for worker in self.workers if worker.alive]

    def _advance(self) -> None:
        draw = self.rng.random()
        moments = [m for a in (*self.routers, *self.workers) if (m := a.next_moment()) > self.now]
        if draw < 0.6 and moments:
            self.now = min(moments)
        else:
            self.now += int(draw * (1 if draw < 0.93 else 5) * SECOND)

    # Calm.

    def calm(self) -> None:
        """Faults stop: everything ends within a bound."""
        self.faults = False
        self.log("faults stop")
        for router in self.routers:
            if len(router.declarations) < len(DECLARATIONS):
                router.crash()  # the deployment is finished
        self._bury()
        for actor in (*self.routers, *self.workers):
            actor.frozen_until = 0
        for actor, wake in self.late:
            actor.hear(wake)
        if not self.workers:
            self.start_worker()
        if self.rng.random() < 0.5 or any(router.stopping for router in self.routers):
            self._deploy()
        if not self.routers:
            self.start_router(of_all=True)
        self._prompt_from = self.now + int(BACKOFF_MAX * SECOND)
        self._until(lambda: not self.oracle.unfinished(), PATIENCE, "processes did not end")
        self._until(lambda: not self.oracle.busy(), BATCH_PATIENCE, "did not end")

    def _deploy(self) -> None:
        """All routers stop; steps end and deadlines pass before the next router starts."""
        for router in self.routers:
            router.stop()
        while self.routers:
            if not self._turn():
                if not all(router.loop.held for router in self.routers):
                    raise Violation("a router that holds nothing does not stop at once")
                self.now = max(self.now, min(router.next_moment() for router in self.routers))
            self._bury()
        until = self.now + int(self.rng.random() * 15 * SECOND)
        while self._turn() or self.now < until:
            moments = [worker.next_moment() for worker in self.workers]
            self.now = max(self.now, min([until, *moments]))
        self.log("routers come back")

    def _until(self, over: Any, patience: float, words: str) -> None:
        bound = self.now + int(patience * SECOND)
        for _ in range(CALM_TURNS_MAX):
            if self._turn():
                continue
            if self.now > self._prompt_from:
                # Nothing has anything to do at this moment: no deadline may have been missed.
                self.oracle.check_deadlines(self.now, HEARD if self.quiet else POLLED)
            if over():
                return
            if self._operate():
                bound += int(10 * SECOND)
                continue
            self.now = max(self.now, min(a.next_moment() for a in (*self.routers, *self.workers)))
            if self.now > bound:
                raise Violation(f"{words}: {self.oracle.busy()}")
        raise Violation(f"endless activity: {self.oracle.busy()}")

    def _turn(self) -> bool:
        done = False
        for actor in (*self.routers, *self.workers):
            for _ in range(200):
                if not (actor.alive and actor.step()):
                    break
                self.steps += 1
                done = True
            else:
                raise Violation(f"{actor.name} never waits")
        return done

    def _operate(self) -> bool:
        """An operator sends back what was parked because workers or routers died."""
        parked = self.oracle.parked()
        for record in parked:
            self.log("operator retries", record.command_type)
            try:
                self.run(troubleshooting.operator_retry(self.scope, record.command_id))
            except InvalidOperationError:  # its process has given it up
                self.run(troubleshooting.operator_cancel(self.scope, record.command_id))
        return bool(parked)

    def log(self, *words: Any) -> None:
        if self.trace is not None:
            text = " ".join(map(str, words))
            self.trace.append(f"{self.now / SECOND:12.6f}  {text[:300]}")


def simulate_routers(seed: int, trace: list[str] | None = None) -> RouterWorld:
    """Run one scenario; raises Violation when a promise is broken."""
    world = RouterWorld(seed, trace)
    # A line for each fault is no news.
    quiet = mock.patch.object(routing.logger, "disabled", True)
    silent = mock.patch.object(outage.logger, "disabled", True)
    with quiet, silent, mock.patch.object(replies, "new_id", world.new_id):
        for number in range(world.rng.randint(STEPS_MIN, STEPS_MAX)):
            world.step()
            if number % 40 == 0:
                world.oracle.check_always()
        world.calm()
        world.oracle.check_ended()
    return world
