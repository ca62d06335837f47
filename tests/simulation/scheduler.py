"""What comes next: chaos by the seed, then calm until everything has come to its end."""

from __future__ import annotations

from commandbus.worker.events import StopRequested
from tests.simulation.oracle import Violation
from tests.simulation.shell import VirtualWorker
from tests.simulation.world import LEASE, POLL_MAX, SECOND, World, weighted

STEPS_MIN, STEPS_MAX = 30, 80
CALM_TURNS_MAX = 5_000

_draw = weighted(
    {
        "deliver": 24,
        "answer": 8,
        "lull": 9,
        "claim": 14,
        "settle": 12,
        "finish": 13,
        "advance": 11,
        "tick": 5,
        "send": 7,
        "send_again": 0.5,
        "renew": 3,
        "crash": 1.2,
        "freeze": 1.2,
        "stop": 1.0,
        "start": 1.2,
        "cancel": 1.5,
        "pause": 1.5,
        "operate": 2.5,
        "adjust": 0.7,
    }
)


def simulate(seed: int, trace: list[str] | None = None) -> World:
    """Run one scenario; raises Violation when a promise is broken."""
    world = World(seed, trace)
    for _ in range(world.rng.randint(STEPS_MIN, STEPS_MAX)):
        step(world)
    world.oracle.check_all(world.domains, world.now)
    calm(world)
    return world


def step(world: World) -> None:
    """One thing happens."""
    world.steps += 1
    action = _draw(world.rng)
    match action:
        case "send":
            world.send()
        case "send_again":
            world.send_again()
        case "cancel":
            world.cancel()
        case "pause":
            world.toggle_pause()
        case "operate":
            world.operate()
        case "advance":
            advance(world)
        case "lull":
            if world.prompt:
                lull(world)
        case "start":
            if len(world.workers) < 3:
                world.start_worker()
        case _:
            worker = _choose(world)
            if worker is not None:
                act(world, worker, action)
    world.bury()


def _choose(world: World) -> VirtualWorker | None:
    able = [w for w in world.workers if w.frozen_until <= world.now]
    return able[int(world.rng.random() * len(able))] if able else None


def act(world: World, worker: VirtualWorker, action: str) -> None:
    done = True
    match action:
        case "claim":
            done = world.perform_claim(worker)
        case "settle":
            done = world.perform_settle(worker)
        case "finish":
            done = world.finish_any(worker)
        case "answer":
            done = worker.answer()
        case "renew":
            worker.renew()
            if worker.reclaim_at <= world.now:
                worker.reclaim()
        case "crash":
            world.crash(worker)
        case "freeze":
            world.freeze(worker)
        case "stop":
            world.stop(worker)
        case "adjust":
            world.adjust(worker)
        case "tick":
            if worker.overdue():
                worker.tick()
        case _:
            done = world.deliver(worker)
    if not done:
        do_something(world, worker)


def do_something(world: World, worker: VirtualWorker) -> bool:
    return (
        world.deliver(worker)
        or worker.answer()
        or world.perform_claim(worker)
        or world.perform_settle(worker)
    )


def advance(world: World) -> None:
    rng = world.rng
    if not world.prompt:
        jump = rng.random()
        moments = [m for w in world.workers if (m := w.next_moment()) is not None and m > world.now]
        if jump < 0.5 and moments:
            world.now = min(moments)
        elif jump < 0.9:
            world.now += int(jump * SECOND)
        else:
            world.now += int(jump * LEASE * 1.2 * SECOND)
        return
    # Healthy processes: what has happened is heard, and what is due is done, before time goes on.
    awake = [w for w in world.workers if w.frozen_until <= world.now]
    for worker in awake:
        if world.deliver(worker) or worker.answer():
            return
        if worker.overdue():
            worker.tick()
            return
        if any(moment <= world.now for moment in worker.renewals.values()):
            worker.renew()
            return
        if worker.reclaim_at <= world.now:
            worker.reclaim()
            return
    check_no_worker_oversleeps(world, awake)
    later = world.now + int(rng.random() * 3 * SECOND)
    moments = [m for w in awake if (m := w.next_moment()) is not None and m > world.now]
    moments += [w.frozen_until for w in world.workers if w.frozen_until > world.now]
    world.now = min([later, *moments])


def lull(world: World) -> None:
    """For a moment all processes do what they can; then all that could run must be running."""
    awake = [w for w in world.workers if w.frozen_until <= world.now]
    while any(worker.alive and do_something(world, worker) for worker in awake):
        pass
    check_no_worker_oversleeps(world, [worker for worker in awake if worker.alive])


def check_no_worker_oversleeps(world: World, awake: list[VirtualWorker]) -> None:
    """Wake-ups arrive in a prompt world: free slots beside ready work are a lost one. Suspects may be
    left for others, and the end of a dead worker's lease must be noticed: both within a second."""
    alive = {worker.name for worker in world.workers}
    for domain in world.domains:
        if not world.oracle.startable(domain, alive, world.now):
            continue
        serving = [w for w in awake if domain in w.domains]
        sleeping = [worker.name for worker in serving if worker.asleep()]
        if sleeping and not any(worker.about_to_claim() for worker in serving):
            raise Violation(f"P15: {sleeping} sleep beside ready work of domain {domain}")


def calm(world: World) -> None:
    """Faults stop: everything ends within a bound, and the workers stop when asked."""
    world.faults = False
    world.log("faults stop")
    for domain in sorted(world.oracle.paused):
        world.resume(domain)
    for worker in world.workers:
        worker.frozen_until = 0
    if not any(w.domains == world.domains and not w.core.stopping for w in world.workers):
        world.start_worker(of_all=True)
    ends = [run.ends_at for worker in world.workers for run in worker.running]
    ends += [held.until for held in world.oracle.leases.values()]
    ends += [command.due_at for command in world.oracle.commands.values()]
    patience = LEASE + 1 if world.prompt else 2 * POLL_MAX + 2 * LEASE
    _settle_down(world, max([world.now, *ends]) + int(patience * SECOND))
    if world.operate_on_all_parked():
        _settle_down(world, world.now + int((1 if world.prompt else POLL_MAX + LEASE) * SECOND))
    left = world.oracle.unfinished()
    if left:
        raise Violation(f"P1: {[c.number for c in left]} never ended")
    for worker in world.workers:
        if worker.owed:
            raise Violation(f"{worker.name} never recorded {sorted(worker.owed)}")
        if worker.core.leases or worker.renewals:
            raise Violation(
                f"{worker.name} keeps leases of work that has ended: "
                f"{sorted(worker.core.leases)} {sorted(worker.renewals)}"
            )
    world.oracle.check_all(world.domains, world.now)
    for worker in list(world.workers):
        worker.handle(StopRequested(1.0))
    world.bury()
    while world.workers and turn(world):
        pass
    if world.workers:
        raise Violation(f"P18: {world.workers[0].name} has nothing to do and does not stop")


def _settle_down(world: World, bound: int) -> None:
    for _ in range(CALM_TURNS_MAX):
        if turn(world):
            continue
        if not world.oracle.unfinished() and all(w.core.idle for w in world.workers):
            return
        if world.prompt:
            check_no_worker_oversleeps(world, world.workers)
        moments = [m for w in world.workers if (m := w.next_moment()) is not None]
        if not moments:
            raise Violation("P15: nothing will ever happen again")
        world.now = max(world.now, min(moments))
        if world.now > bound:
            left = [command.number for command in world.oracle.unfinished()]
            raise Violation(f"P15: {left} did not end in time after the faults stopped")
    raise Violation("P15: endless activity after the faults stopped")


def turn(world: World) -> bool:
    """Everybody does what can be done at this moment; whether anything was done."""
    done = False
    for worker in list(world.workers):
        while worker.alive and do_something(world, worker):
            done = True
        for run in [run for run in worker.running if run.ends_at <= world.now]:
            if worker.alive:
                world.finish(worker, run)
                done = True
        if worker.alive and worker.renewals and min(worker.renewals.values()) <= world.now:
            worker.renew()
            done = True
        if worker.alive and worker.reclaim_at <= world.now:
            worker.reclaim()
            done = True
        if worker.alive and worker.overdue():
            worker.tick()
            done = True
    world.bury()
    return done
