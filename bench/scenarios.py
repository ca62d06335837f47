"""What is measured of a subject. Each scenario gets a fresh store, or several, and yields figures."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import psycopg

from bench.figures import percentile
from bench.lab import Lab, Place
from bench.peers.catalogue import DRAIN_COMMANDS, Subject
from bench.peers.child import Child, DriverFailed

CUT_SECONDS = 6.0
"""A drain that takes longer ends here, and the rate is that of what was done."""
SILENT_SECONDS = 8.0
BUSY_SECONDS = 0.005
CALL_SLOTS = 16
WAIT_SECONDS = 0.001
AWAKE_SECONDS = 0.010
AWAKE_COMMANDS = 2_000
SEND_SECONDS = 1.0
PICKUPS = 250
PICKUP_PAUSE = 0.02
URGENTS = 100
URGENT_BACKLOG_SECONDS, URGENT_BACKLOG_MAX = 4.0, 250_000

Figures = dict[str, float]


@dataclass
class Drained:
    """How a drain went: when how many handlers had begun, of all processes together."""

    count: int
    marks: list[tuple[float, int]] = field(default_factory=list)
    first: float = 0.0
    ended: float = 0.0
    memory: float = 0.0
    worker_cpu: float = 0.0

    @property
    def done(self) -> int:
        return min(self.count, self.marks[-1][1])

    @property
    def rate(self) -> float:
        return self.done / (self.ended - self.first)

    def at(self, share: float) -> float:
        """The moment when that share of what was done had begun."""
        wanted, before = share * self.done, (self.first, 0)
        for moment, begun in self.marks:
            if begun >= wanted:
                part = (wanted - before[1]) / max(1, begun - before[1])
                return before[0] + part * (moment - before[0])
            before = (moment, begun)
        return before[0]

    @property
    def last_to_first_tenth(self) -> float:
        return (self.at(0.1) - self.first) / max(1e-6, self.at(1.0) - self.at(0.9))


def fill(lab: Lab, place: Place, count: int, size: int = 100) -> float:
    """Commands per second."""
    found = lab.call(place, "fill", count=count, size=size)
    return float(count / found["seconds"])


def drain(
    lab: Lab,
    place: Place,
    count: int,
    concurrency: int,
    processes: int = 1,
    busy: float = 0.0,
    is_all: bool = True,
    call: bool = False,
) -> Drained:
    """Carry out a backlog that is already there, or only the first `count` of it."""
    with contextlib.ExitStack() as stack:
        task = {"concurrency": concurrency, "count": count, "busy": busy, "call": call}
        children = [stack.enter_context(lab.start(place, "work", **task)) for _ in range(processes)]
        for child in children:
            child.wait_for("ready")
        return await_drain(lab, place, children, count, is_all)


def await_drain(
    lab: Lab, place: Place, children: Sequence[Child], count: int, is_all: bool = True
) -> Drained:
    """From "go" to the last durable outcome."""
    drained = Drained(count)
    begun: dict[int, int] = {}  # by process: a driver may have children that work
    before = sum(child.cpu_seconds() for child in children)
    with lab.watch(place) as unfinished:
        for child in children:
            child.go()
        started = heard = time.monotonic()
        while sum(begun.values()) < count:
            now = time.monotonic()
            if drained.first and now - drained.first > CUT_SECONDS:
                break
            if now - heard > SILENT_SECONDS:
                why = next(filter(None, (child.complaint() for child in children)), "")
                done = sum(begun.values())
                raise DriverFailed(f"{done} of {count} commands, then silence. {why}".strip())
            for child in children:
                event = child.next(0.002)
                if event is not None and "begun" in event:
                    # Threads of a driver may overtake each other between counting and telling.
                    begun[event["pid"]] = max(event["begun"], begun.get(event["pid"], 0))
                    drained.first = min(drained.first or event["first"], event["first"])
                    drained.marks.append((event["at"], sum(begun.values())))
                    heard = now
        is_whole = is_all and sum(begun.values()) >= count
        while is_whole and unfinished() and time.monotonic() - started < 2 * CUT_SECONDS:
            time.sleep(0.002)
        drained.ended = time.monotonic() if is_whole else drained.marks[-1][0]
    drained.worker_cpu = sum(child.cpu_seconds() for child in children) - before
    drained.memory = max(child.peak_megabytes() for child in children)
    return drained


def drain_100(lab: Lab, subject: Subject, scale: float) -> Figures:
    """The drain at concurrency 100, and all that is counted beside it."""
    count = scaled(subject.commands(100), scale)
    with lab.place(subject) as place:
        is_counted = subject.store == "postgres"
        zero = lab.meter(place) if is_counted else None
        bulk = fill(lab, place, count)
        sent = lab.meter(place) if is_counted else None
        drained = drain(lab, place, count, 100)
        figures = {
            "bulk_send": bulk,
            "drain_100": drained.rate,
            "memory": drained.memory,
            "worker_cpu": 1e6 * drained.worker_cpu / drained.done,
        }
        if zero and sent:
            end = lab.meter(place)
            figures["send_cpu"] = 1e6 * (sent.cpu - zero.cpu) / count
            figures["send_wal"] = (sent.wal - zero.wal) / count
            figures["wal"] = (end.wal - sent.wal) / drained.done
            figures["commits"] = (end.commits - sent.commits) / drained.done
            figures["dead"] = (end.dead - zero.dead) / drained.done
            figures["server_cpu"] = 1e6 * (end.cpu - sent.cpu) / drained.done
        if subject.best == 100:
            figures["drain_best"] = drained.rate
        return figures


def drain_in_one_process(lab: Lab, subject: Subject, scale: float, concurrency: int = 100) -> Figures:
    """For a store that dies with its process: filled and drained there."""
    count = scaled(subject.commands(concurrency), scale)
    with lab.place(subject) as place:
        with lab.start(place, "run", concurrency=concurrency, count=count) as child:
            bulk = count / child.wait_for("filled")["filled"]
            child.wait_for("ready")
            drained = await_drain(lab, place, [child], count)
        if concurrency == 10:
            return {"drain_10": drained.rate}
        rates = {"drain_100": drained.rate, "drain_best": drained.rate}
        return {"bulk_send": bulk, "memory": drained.memory, **rates}


def drain_n(lab: Lab, subject: Subject, scale: float, concurrency: int, processes: int = 1) -> float:
    count = scaled(subject.commands(concurrency), scale)
    with lab.place(subject) as place:
        fill(lab, place, count)
        return drain(lab, place, count, concurrency, processes).rate


def drain_10(lab: Lab, subject: Subject, scale: float) -> Figures:
    if subject.store == "memory":
        return drain_in_one_process(lab, subject, scale, 10)
    rate = drain_n(lab, subject, scale, 10)
    return {"drain_10": rate, "drain_best": rate} if subject.best == 10 else {"drain_10": rate}


def drain_hundred(lab: Lab, subject: Subject, scale: float) -> Figures:
    is_memory = subject.store == "memory"
    return (drain_in_one_process if is_memory else drain_100)(lab, subject, scale)


def drain_best(lab: Lab, subject: Subject, scale: float) -> Figures:
    if subject.best in (10, 100):
        return {}  # measured there
    return {"drain_best": drain_n(lab, subject, scale, subject.best)}


def drain_2(lab: Lab, subject: Subject, scale: float) -> Figures:
    return {"drain_2": drain_n(lab, subject, scale, subject.best, 2)}


def busy(lab: Lab, subject: Subject, scale: float) -> Figures:
    """Handlers that wait 5 ms: 100 at once can do 20,000 per second."""
    rate = min(100 / BUSY_SECONDS, subject.rates[100])
    count = scaled(int(rate * 2) // 100 * 100, scale)
    with lab.place(subject) as place:
        if subject.store == "memory":
            task = {"concurrency": 100, "count": count, "busy": BUSY_SECONDS}
            with lab.start(place, "run", **task) as child:
                child.wait_for("ready")
                drained = await_drain(lab, place, [child], count)
        else:
            fill(lab, place, count)
            drained = drain(lab, place, count, 100, busy=BUSY_SECONDS)
        return {"busy": 100 * drained.rate / (100 / BUSY_SECONDS)}


def calls(lab: Lab, subject: Subject, scale: float) -> Figures:
    """Handlers that make one system call; and, of ours, those that wait a millisecond."""
    count = scaled(subject.commands(10), scale)
    figures: Figures = {}
    with lab.place(subject) as place:
        fill(lab, place, count)
        figures["drain_call"] = drain(lab, place, count, CALL_SLOTS, call=True).rate
    if subject.is_ours:
        count = scaled(int(2 * CALL_SLOTS / WAIT_SECONDS), scale)
        with lab.place(subject) as place:
            fill(lab, place, count)
            drained = drain(lab, place, count, CALL_SLOTS, busy=WAIT_SECONDS)
            figures["drain_wait"] = drained.rate
    return figures


def snapshot(lab: Lab, subject: Subject, scale: float) -> Figures:
    """A drain while somebody holds a snapshot from before it: no dead row can be removed."""
    count = scaled(subject.commands(subject.best, 4.0, 2 * DRAIN_COMMANDS), scale)
    with lab.place(subject) as place:
        fill(lab, place, count)
        with psycopg.connect(place.url.partition("&transport")[0]) as holder:
            holder.execute("set transaction isolation level repeatable read")
            holder.execute("select count(*) from pg_class")
            drained = drain(lab, place, count, subject.best)
        return {"snapshot": 100 * drained.last_to_first_tenth, "snapshot_rate": drained.rate}


def singles(lab: Lab, subject: Subject, scale: float) -> Figures:
    """Sends, one command each, while a worker has enough to do to stay awake."""
    seconds = max(0.3, SEND_SECONDS * min(1.0, scale))
    figures: Figures = {}
    with lab.place(subject) as place:
        fill(lab, place, min(AWAKE_COMMANDS, subject.bulk_rate // 2))
        task = {"concurrency": 10, "count": 0, "busy": AWAKE_SECONDS}
        with lab.start(place, "work", **task) as worker:
            worker.wait_for("ready")
            worker.go()
            worker.wait_for("begun")
            for senders in (1, 16):
                found = lab.call(place, "singles", senders=senders, seconds=seconds)
                figures[f"send_{senders}"] = found["count"] / found["seconds"]
    return figures


def pickup(lab: Lab, subject: Subject, scale: float) -> Figures:
    """From the moment before the send, in one process, to the handler's start in another."""
    count = scaled(PICKUPS, scale, 20)
    # Where the concurrency is the size of a batch, ten would not keep up with the sends.
    concurrency = 100 if subject.best > 100 else 10
    late: list[float] = []
    with (
        lab.place(subject) as place,
        lab.start(place, "work", concurrency=concurrency, count=0) as worker,
    ):
        worker.wait_for("ready")
        worker.go()
        time.sleep(0.7)  # until it waits for work
        with lab.start(place, "paced", count=count + 3, pause=PICKUP_PAUSE) as sender:
            sender.wait_for("ready")
            sender.go()
            while len(late) < count + 3:
                late.append(worker.wait_for("late", 15)["late"] * 1_000)
    late = late[3:]  # the first ones open connections and prepare statements
    return {"pickup_p50": percentile(late, 0.5), "pickup_p99": percentile(late, 0.99)}


def urgent(lab: Lab, subject: Subject, scale: float) -> Figures:
    """The same for commands of high priority, while a backlog of others is drained."""
    if not (subject.is_ours or subject.has_urgent):
        return {}
    count = scaled(URGENTS, scale, 20) + 3
    seconds = max(1.0, URGENT_BACKLOG_SECONDS * min(1.0, scale))
    backlog = subject.commands(subject.best, seconds, URGENT_BACKLOG_MAX)
    late: list[float] = []
    begun = 0
    with lab.place(subject) as place:
        fill(lab, place, backlog)
        with (
            lab.start(place, "paced", count=count, pause=PICKUP_PAUSE, urgent=True) as sender,
            lab.start(place, "work", concurrency=subject.best, count=backlog) as worker,
        ):
            sender.wait_for("ready")
            worker.wait_for("ready")
            worker.go()
            worker.wait_for("begun")
            sender.go()
            while len(late) < count:
                event = worker.next(SILENT_SECONDS)
                if event is None:
                    raise DriverFailed(f"{len(late)} of {count} urgent commands, then silence")
                begun = max(begun, event.get("begun", 0))
                if "late" in event:
                    late.append(event["late"] * 1_000)
    if begun >= backlog:
        raise DriverFailed("the backlog was drained before the last urgent command")
    late = late[3:]
    return {"urgent_p50": percentile(late, 0.5), "urgent_p99": percentile(late, 0.99)}


def scaled(count: int, scale: float, least: int = 200) -> int:
    return max(least, int(count * scale))


Scenario = Callable[[Lab, Subject, float], Figures]
SCENARIOS: dict[str, Scenario] = {
    "drain": drain_hundred,
    "drain_10": drain_10,
    "drain_best": drain_best,
    "drain_2": drain_2,
    "busy": busy,
    "calls": calls,
    "singles": singles,
    "pickup": pickup,
    "urgent": urgent,
    "snapshot": snapshot,
}
