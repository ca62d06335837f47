"""A history that keeps every promise, and the events that histories are made of."""

from dataclasses import replace

from tests.chaos.case import Batch, Case, Event, Final, Store, Terms, Trace
from tests.chaos.kinds import (
    ASKING,
    BATCH_DONE,
    FOLLOW_UP,
    GROUPED,
    LIMITED,
    STEPPED,
    TICK,
    follow_up_of,
)

T = 1_000_000.0
"""When the histories below begin."""


def sent(
    command_id: str, at: float, *, kind: str = "note", delay: float = 0, priority: int = 5
) -> Event:
    command = {"id": command_id, "domain": "d", "type": kind, "priority": priority, "delay": delay}
    command["data"] = {"failures": 0}
    return {"event": "send_invoked", "at": at, "pid": 1, "commands": [command]}


def answered(command_id: str, at: float, how: str = "send_ok") -> Event:
    return {"event": how, "at": at, "pid": 1, "ids": [command_id]}


def claimed(
    at: float, pid: int, token: int, *ids: str, attempt: int = 1, priority: int = 5, **keys: int
) -> Event:
    members = [
        {
            "id": command_id,
            "token": token,
            "attempt": attempt,
            "crashes": attempt - 1,
            "priority": priority,
            "seq": keys.get(command_id, ord(command_id[0]) - ord("a") + 1),
            "domain": "d",
        }
        for command_id in ids
    ]
    return {"event": "claimed", "at": at, "began": at - 0.01, "pid": pid, "members": members}


def handled(command_id: str, at: float, pid: int, token: int, attempt: int = 1) -> Event:
    facts = {"id": command_id, "token": token, "attempt": attempt}
    return {"event": "handled", "at": at, "pid": pid, **facts}


def settled(
    command_id: str, at: float, pid: int, token: int, how: str = "settled", attempt: int = 1
) -> Event:
    member = {
        "id": command_id,
        "token": token,
        "attempt": attempt,
        "outcome": "Succeeded",
        "final": True,
    }
    return {"event": how, "at": at, "began": at - 0.01, "pid": pid, "members": [member]}


def completed(command_id: str, sequence: int, began: float, *earlier: Trace, attempt: int = 1) -> Final:
    trail = (
        Trace("SENT", T),
        *earlier,
        Trace("RECEIVED", began, {"attempt": attempt}),
        Trace("COMPLETED", began + 0.1, {"attempt": attempt}),
    )
    crashes = sum(trace.kind == "WORKER_LOST" for trace in earlier)
    return Final(command_id, "COMPLETED", attempt, crashes, 3, 5, sequence, None, None, trail)


Finals = dict[str, Final]


class Good:
    """Histories and a store, for a test to spoil."""

    def __init__(self) -> None:
        self.events, self.finals = good()
        self.terms = Terms(lease=1.0, grace=0.5, concurrency=8)
        self.batches: dict[str, Batch] = {}
        self.effects: list[tuple[str, int]] = []
        self.held_keys: list[str] = []
        self.replies: list[str] = []
        self.occurrences = [(TICK, f"2026-01-01T00:00:0{second}+00:00") for second in range(3)]
        self.lies: list[str] = []
        self._with_transfer()
        self._with_key()
        self._with_batch()
        self._with_group()
        self._with_operator()
        self._with_death()

    def case(self) -> Case:
        store = Store(
            tuple(self.finals.values()),
            tuple(self.batches.values()),
            tuple(self.effects),
            tuple(self.held_keys),
            tuple(self.replies),
            tuple(self.occurrences),
            tuple(self.lies),
        )
        return Case(self.events, store, self.terms)

    def _add(self, name: str, number: int, kind: str, *, answer: str | None = "send_ok") -> None:
        """A command that is sent, and completed at once."""
        at, token = T + 10 + number, 100 + number
        self.events.append(sent(name, at, kind=kind))
        if answer:
            self.events.append(answered(name, at + 0.1, answer))
        key = {name: number}
        self.events += [
            claimed(at + 0.2, 10, token, name, **key),
            handled(name, at + 0.3, 10, token),
            settled(name, at + 0.4, 10, token),
        ]
        trail = (Trace("SENT", at), Trace("RECEIVED", at + 0.2), Trace("COMPLETED", at + 0.4))
        self.finals[name] = Final(name, "COMPLETED", 1, 0, 3, 5, number, None, None, trail, type=kind)

    def _with_transfer(self) -> None:
        """t moves something in its transaction, and sends a follow-up from it."""
        self._add("t", 20, "transfer")
        self._add(follow_up_of("t"), 21, FOLLOW_UP, answer=None)
        self.effects.append(("t", 120))

    def _with_key(self) -> None:
        """k has the key; l is told so; m is undone; n has it next."""
        for name, number in (("k", 30), ("n", 33)):
            self._add(name, number, "note", answer=None)
            self.finals[name] = replace(self.finals[name], key="key")
            del self.events[-4]  # a key is asked for in its own way
            self.events += asked(name, T + 10 + number, "key_kept")
        self.events += asked("l", T + 40.2, "key_kept", holder="k")
        self.events += asked("m", T + 41.5, "key_undone")

    def _with_group(self) -> None:
        """u and v are of one group, w wants a reply, x records a step, y and z share a limit with i."""
        for name, number in (("u", 60), ("v", 61)):
            self._add(name, number, GROUPED)
            self.events[-5]["commands"][0]["group"] = "G"
        self._add("w", 62, ASKING)
        self.replies.append("w")
        self._add("x", 63, STEPPED)
        for kind, at in (("step", T + 73.31), ("step_recorded", T + 73.32)):
            self.events.append({"event": kind, "at": at, "pid": 10, "id": "x", "token": 163})
        for name, number in (("y", 64), ("z", 65), ("i", 66)):
            self._add(name, number, LIMITED)
            end = {"event": "finished", "id": name, "token": 100 + number}
            self.events.append(end | {"at": T + 10 + number + 0.35, "pid": 10})

    def _with_operator(self) -> None:
        """An operator cancels j, and pauses the domain for a moment in which nothing is claimed."""
        self._add("j", 70, "note")
        del self.events[-3:]
        trail = (Trace("SENT", T + 80), Trace("CANCELED", T + 80.5))
        self.finals["j"] = replace(
            self.finals["j"], status="CANCELED", attempts=0, reason="by an operator", trail=trail
        )
        for kind, at in (("cancel_invoked", T + 80.4), ("canceled", T + 80.6)):
            self.events.append({"event": kind, "at": at, "pid": 3, "id": "j"})
        for kind, at in (("paused", T + 85), ("resume_invoked", T + 86)):
            self.events.append({"event": kind, "at": at, "pid": 3, "domain": "d"})

    def _with_death(self) -> None:
        """Worker 20 is killed with g, which worker 21 begins again after its lease; h is behind it.
        Worker 22 stops in time."""
        self._add("g", 90, "note")
        self._add("h", 91, "note")
        del self.events[-8:-5], self.events[-3:]
        self.events += [
            claimed(T + 102, 20, 190, "g", g=90),
            fault("kill worker", T + 102.1, 20),
            claimed(T + 103.3, 21, 191, "g", attempt=2, g=90),
            handled("g", T + 103.4, 21, 191, attempt=2),
            settled("g", T + 103.5, 21, 191, attempt=2),
            claimed(T + 106.0, 21, 192, "h", h=91),
            handled("h", T + 106.1, 21, 192),
            settled("h", T + 106.2, 21, 192),
            fault("stop worker", T + 110, 22),
            {"event": "exiting", "at": T + 110.4, "pid": 22},
        ]
        lost = (
            Trace("RECEIVED", T + 102, {"attempt": 1}),
            Trace("WORKER_LOST", T + 103.1, {"attempt": 1, "lease_id": 190}),
        )
        self.finals["g"] = completed("g", 90, T + 103.3, *lost, attempt=2)
        self.finals["h"] = completed("h", 91, T + 106.0)

    def _with_batch(self) -> None:
        """p and q are a batch, whose completion is r."""
        for name, number in (("p", 50), ("q", 50)):
            self._add(name, number, "note")
            self.events[-5]["batch"] = "B"
            self.finals[name] = replace(self.finals[name], batch="B", sequence=number + ord(name))
        self._add("r", 52, BATCH_DONE, answer=None)
        del self.events[-4]
        self.finals["r"] = replace(self.finals["r"], batch="B")
        self.batches["B"] = Batch("B", 2, 2, 0, 0, 0, complete=True)


def fault(name: str, at: float, victim: int | None = None) -> Event:
    return {"event": "fault", "at": at, "pid": 9, "fault": name, "victim": victim}


def asked(name: str, at: float, fate: str, holder: str | None = None) -> list[Event]:
    command = {"id": name, "domain": "d", "type": "note", "priority": 5, "delay": 0, "key": "key"}
    return [
        {"event": "key_invoked", "at": at, "pid": 1, "command": command, "keep": True},
        {"event": fate, "at": at + 0.1, "pid": 1, "id": name, "key": "key", "holder": holder},
    ]


def good() -> tuple[list[Event], Finals]:
    """Command a is done by worker 10. Worker 11 dies with b; worker 10 does it again, and the late
    outcome of 11 is refused. c is delayed, and its sender asks twice."""
    lost = (
        Trace("RECEIVED", T + 0.2, {"attempt": 1}),
        Trace("WORKER_LOST", T + 1.3, {"attempt": 1, "lease_id": 2}),
    )
    events = [
        sent("a", T + 0.00),
        answered("a", T + 0.05),
        sent("b", T + 0.06),
        answered("b", T + 0.10),
        sent("c", T + 0.11, delay=1.0),
        answered("c", T + 0.12, "send_unknown"),
        sent("c", T + 0.13, delay=1.0),
        answered("c", T + 0.14, "send_duplicate"),
        claimed(T + 0.15, 10, 1, "a"),
        handled("a", T + 0.16, 10, 1),
        settled("a", T + 0.30, 10, 1),
        claimed(T + 0.20, 11, 2, "b"),
        handled("b", T + 0.21, 11, 2),
        claimed(T + 1.40, 10, 3, "b", attempt=2),
        handled("b", T + 1.41, 10, 3, attempt=2),
        settled("b", T + 1.50, 10, 3, attempt=2),
        settled("b", T + 2.00, 11, 2, how="refused"),
        claimed(T + 1.55, 10, 4, "c"),
        handled("c", T + 1.56, 10, 4),
        settled("c", T + 1.60, 10, 4),
    ]
    finals = {
        "a": completed("a", 1, T + 0.15),
        "b": completed("b", 2, T + 1.40, *lost, attempt=2),
        "c": completed("c", 3, T + 1.55),
    }
    return events, finals
