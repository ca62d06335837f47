"""The checker is checked: a good history passes, and each kind of broken promise is found."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.chaos.case import Batch, Case, Event, Final, Store, Terms, Trace
from tests.chaos.checker import INTERRUPTED, RECORDED, check
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
        self.batches: dict[str, Batch] = {}
        self.effects: list[tuple[str, int]] = []
        self.held_keys: list[str] = []
        self.replies: list[str] = []
        self.slots = [(TICK, f"2026-01-01T00:00:0{second}+00:00") for second in range(3)]
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
            tuple(self.slots),
            tuple(self.lies),
        )
        return Case(self.events, store, Terms(lease=1.0, grace=0.5, concurrency=8))

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


Bad = Callable[[Good], None]
BAD: dict[str, tuple[str, Bad]] = {}


def bad(promise: str) -> Callable[[Bad], Bad]:
    def add(spoil: Bad) -> Bad:
        BAD[spoil.__name__] = promise, spoil
        return spoil

    return add


def without(events: list[Event], kind: str, command_id: str) -> None:
    events[:] = [
        event
        for event in events
        if not (event["event"] == kind and command_id in (event.get("id"), *event.get("ids", ())))
    ]


def change(finals: dict[str, Final], command_id: str, **columns: Any) -> None:
    finals[command_id] = replace(finals[command_id], **columns)


@bad("P1")
def an_acknowledged_command_is_gone(it: Good) -> None:
    del it.finals["a"]


@bad("P1")
def a_command_never_ends(it: Good) -> None:
    change(it.finals, "a", status="IN_PROGRESS")


@bad("P1")
def a_command_is_completed_without_a_run(it: Good) -> None:
    without(it.events, "handled", "a")


@bad("P1")
def a_command_comes_from_nowhere(it: Good) -> None:
    it.finals["nobody"] = replace(it.finals["a"], id="nobody")


@bad("P2")
def a_bulk_send_is_there_in_part(it: Good) -> None:
    it.events[0]["commands"].append(it.events[0]["commands"][0] | {"id": "absent"})


@bad("P2")
def a_failed_send_took_effect(it: Good) -> None:
    without(it.events, "send_ok", "a")
    it.events.append(answered("a", T + 0.05, "send_failed"))


@bad("P3")
def a_repeated_send_makes_a_second_command(it: Good) -> None:
    it.finals["c again"] = it.finals["c"]


@bad("P3")
def a_repeated_send_goes_unreported(it: Good) -> None:
    it.events.append(answered("b", T + 0.5))


@bad("P5")
def a_handler_runs_twice_under_one_token(it: Good) -> None:
    it.events.append(handled("a", T + 0.17, 10, 1))


@bad("P5")
def a_command_is_delivered_for_ever(it: Good) -> None:
    it.events += [handled("a", T + 3 + token, 10, token) for token in range(20, 26)]


@bad("P6")
def a_stale_outcome_is_accepted(it: Good) -> None:
    it.events.append(settled("b", T + 1.45, 11, 2))
    change(it.finals, "b", trail=tuple(t for t in it.finals["b"].trail if t.kind != "WORKER_LOST"))


@bad("P6")
def an_outcome_is_accepted_after_its_lease_was_taken_back(it: Good) -> None:
    without(it.events, "settled", "b")
    it.events[:] = [event for event in it.events if event["at"] != T + 1.40]
    it.events.append(settled("b", T + 1.35, 11, 2))


@bad("P6")
def two_workers_are_given_one_token(it: Good) -> None:
    it.events.append(claimed(T + 0.18, 11, 1, "a"))


@bad("P6")
def a_worker_settles_with_a_token_of_another(it: Good) -> None:
    next(e for e in it.events if e["event"] == "settled")["pid"] = 11


@bad("P6")
def two_outcomes_are_accepted(it: Good) -> None:
    it.events.append(settled("a", T + 0.4, 12, 9))


@bad("P7")
def attempts_are_counted_without_end(it: Good) -> None:
    change(it.finals, "a", attempts=7)


@bad("P7")
def a_killer_is_not_parked(it: Good) -> None:
    it.events[0]["commands"][0]["type"] = "exit"


@bad("P7")
def a_command_is_given_up_too_soon(it: Good) -> None:
    change(it.finals, "a", status="IN_TROUBLESHOOTING_QUEUE", reason="EXHAUSTED", error="X")


@bad("P7")
def a_command_is_parked_after_one_crash(it: Good) -> None:
    change(it.finals, "b", status="IN_TROUBLESHOOTING_QUEUE", reason="WORKER_LOST", error="X")


@bad("P8")
def a_refusal_is_recorded_as_a_success(it: Good) -> None:
    it.events[0]["commands"][0]["type"] = "reject"


@bad("P8")
def an_error_is_lost(it: Good) -> None:
    change(it.finals, "a", status="IN_TROUBLESHOOTING_QUEUE", reason="PERMANENT")


@bad("P8")
def a_command_is_given_up_after_one_stop(it: Good) -> None:
    stopped = Trace("RELEASED", T + 0.3, {"attempt": 1, "reason": INTERRUPTED})
    parked = {"status": "IN_TROUBLESHOOTING_QUEUE", "reason": "NEVER_FINISHED", "error": "stopped"}
    change(it.finals, "a", trail=(*it.finals["a"].trail, stopped), **parked)


@bad("P9")
def a_delayed_command_runs_early(it: Good) -> None:
    next(e for e in it.events if e["event"] == "handled" and e["id"] == "c")["at"] = T + 1.0


@bad("P9")
def a_retry_ignores_its_backoff(it: Good) -> None:
    failed = Trace("FAILED", T + 1.3, {"attempt": 1, "retry_in": 10.0})
    change(it.finals, "b", trail=(*it.finals["b"].trail[:3], failed, *it.finals["b"].trail[3:]))


@bad("P10")
def one_claim_is_out_of_order(it: Good) -> None:
    it.events[:] = [event for event in it.events if event["event"] != "claimed"]
    it.events.append(claimed(T + 1.55, 10, 1, "b", "a"))


@bad("P10")
def a_claim_overtakes_what_waits(it: Good) -> None:
    first = next(e for e in it.events if e["event"] == "claimed")
    first.update(at=T + 0.70, began=T + 0.69)


@bad("P4")
def an_effect_happens_twice(it: Good) -> None:
    it.effects.append(("t", 121))


@bad("P4")
def an_effect_is_missing(it: Good) -> None:
    it.effects.clear()


@bad("P4")
def an_effect_of_a_parked_command_stays(it: Good) -> None:
    change(it.finals, "t", status="IN_TROUBLESHOOTING_QUEUE", reason="EXHAUSTED", error="X")


@bad("P4")
def a_follow_up_is_lost(it: Good) -> None:
    del it.finals[follow_up_of("t")]


@bad("P6")
def a_handler_runs_without_a_claim(it: Good) -> None:
    it.events[:] = [e for e in it.events if e["event"] != "claimed" or e["members"][0]["id"] != "a"]


@bad("P11")
def two_live_commands_have_one_key(it: Good) -> None:
    trail = it.finals["k"].trail
    change(it.finals, "k", trail=(*trail[:-1], replace(trail[-1], at=T + 60)))


@bad("P11")
def a_parked_command_loses_its_key(it: Good) -> None:
    change(it.finals, "k", status="IN_TROUBLESHOOTING_QUEUE", reason="PERMANENT", error="X")


@bad("P11")
def a_send_that_was_undone_is_there(it: Good) -> None:
    it.finals["m"] = replace(it.finals["k"], id="m", sequence=99)


@bad("P11")
def a_sender_gets_a_holder_that_never_was(it: Good) -> None:
    it.events += asked("o", T + 42, "key_kept", holder="m")


@bad("P11")
def a_key_is_lost(it: Good) -> None:
    it.held_keys.append("d key")


@bad("P12")
def a_batch_counts_one_twice(it: Good) -> None:
    it.batches["B"] = replace(it.batches["B"], completed=3)


@bad("P12")
def a_batch_is_completed_twice(it: Good) -> None:
    it.finals["r again"] = replace(it.finals["r"], id="r again")


@bad("P12")
def a_batch_is_never_completed(it: Good) -> None:
    del it.finals["r"]


@bad("P12")
def a_batch_is_completed_before_its_last_command(it: Good) -> None:
    trail = it.finals["q"].trail
    change(it.finals, "q", trail=(*trail[:-1], replace(trail[-1], at=T + 70)))


@bad("P12")
def a_batch_with_a_parked_command_is_completed(it: Good) -> None:
    change(it.finals, "q", status="IN_TROUBLESHOOTING_QUEUE", reason="PERMANENT", error="X")
    it.batches["B"] = replace(it.batches["B"], completed=1, parked=1)


@bad("P14")
def the_trail_says_what_cannot_be(it: Good) -> None:
    first, received, *rest = it.finals["a"].trail
    change(it.finals, "a", trail=(received, first, *rest))


@bad("P14")
def a_crash_is_not_on_record(it: Good) -> None:
    change(it.finals, "b", trail=tuple(t for t in it.finals["b"].trail if t.kind != "WORKER_LOST"))


@bad("P14")
def the_trail_ends_otherwise_than_the_record(it: Good) -> None:
    change(it.finals, "a", trail=it.finals["a"].trail[:-1])


@bad("P14")
def a_delivery_is_not_on_record(it: Good) -> None:
    change(it.finals, "b", attempts=1, trail=(it.finals["b"].trail[0], *it.finals["b"].trail[2:]))


def move(it: Good, command_id: str, kind: str, at: float) -> None:
    """Another moment for what one command had happen to it."""
    for event in it.events:
        members = [member["id"] for member in event.get("members", ())]
        if event["event"] == kind and command_id in (event.get("id"), *members):
            event["at"] = at
            if "began" in event:
                event["began"] = at - 0.01


@bad("P5")
def a_command_is_passed_from_worker_to_worker(it: Good) -> None:
    apart = {"reason": "to be run apart from others whose worker died", "attempt": 1}
    returns = [Trace(kind, T + 0.2, apart) for _ in range(4) for kind in ("RECEIVED", "RELEASED")]
    change(it.finals, "a", trail=(it.finals["a"].trail[0], *returns, *it.finals["a"].trail[1:]))


@bad("P10")
def a_member_of_a_group_overtakes(it: Good) -> None:
    move(it, "v", "handled", T + 70.38)


@bad("P10")
def a_limit_is_exceeded(it: Good) -> None:
    for name in ("y", "z", "i"):
        move(it, name, "handled", T + 74.3)


@bad("P12")
def a_slot_is_sent_twice(it: Good) -> None:
    it.slots.append(it.slots[0])


@bad("P12")
def a_slot_is_left_out(it: Good) -> None:
    del it.slots[1]


@bad("P13")
def a_reply_is_lost(it: Good) -> None:
    it.replies.clear()


@bad("P13")
def a_reply_comes_twice(it: Good) -> None:
    it.replies.append("w")


@bad("P14")
def a_recorded_step_is_repeated(it: Good) -> None:
    it.events.append({"event": "step", "at": T + 73.5, "pid": 11, "id": "x", "token": 200})


@bad("P15")
def a_redelivery_comes_late_though_others_are_taken(it: Good) -> None:
    # Fresh commands are claimed all the while, h among them.
    others = [f"other {number}" for number in range(9)]
    it.events += [
        claimed(T + 103.2 + 0.3 * n, 21, 500 + n, one, **{one: 200 + n}) for n, one in enumerate(others)
    ]
    it.events[:] = [e for e in it.events if e["event"] != "handled" or e["at"] != T + 103.4]
    it.events.append(handled("g", T + 105.9, 21, 191, attempt=2))


@bad("P15")
def a_redelivery_comes_late_though_a_worker_is_free(it: Good) -> None:
    it.events[:] = [e for e in it.events if e["event"] != "handled" or e["at"] != T + 103.4]
    it.events += [claimed(T + 103.6, 23, 300, "f", f=99), settled("f", T + 103.7, 23, 300)]
    it.events += [{"event": "quiet", "at": T + at, "pid": 23} for at in (102, 109)]
    it.events.append(handled("g", T + 105.2, 21, 191, attempt=2))


@bad("P16")
def a_session_leaks(it: Good) -> None:
    it.events.append({"event": "leak", "at": T + 1, "pid": 10, "id": "t", "found": ["a", "b"]})


@bad("P18")
def a_stop_takes_too_long(it: Good) -> None:
    next(e for e in it.events if e["event"] == "exiting")["at"] = T + 113


@bad("P18")
def a_stop_never_ends(it: Good) -> None:
    it.events[:] = [e for e in it.events if e["event"] != "exiting"]
    it.events.append({"event": "quiet", "at": T + 130, "pid": 1})


@bad("P18")
def a_stop_forgets_a_command(it: Good) -> None:
    it.events = [e | {"pid": 22} if e["pid"] == 20 else e for e in it.events]
    it.events[:] = [e for e in it.events if e["event"] != "fault" or e["victim"] != 20]


@bad("P21")
def a_read_lies(it: Good) -> None:
    it.lies.append("stats of d tell 3 COMPLETED, the tables have 4")


@bad("P30")
def a_canceled_command_is_run(it: Good) -> None:
    it.events += [claimed(T + 81, 10, 400, "j", j=70), handled("j", T + 81.1, 10, 400)]


@bad("P30")
def a_command_is_canceled_without_a_request(it: Good) -> None:
    it.events[:] = [e for e in it.events if e["event"] not in ("cancel_invoked", "canceled")]


@bad("P30")
def something_is_claimed_in_a_pause(it: Good) -> None:
    move(it, "h", "claimed", T + 85.5)


def lost_of(worker: str, cause: str) -> Trace:
    details = {"attempt": 1, "worker": worker, "crashes": 1, "lease_id": 1, "error": cause}
    return Trace("WORKER_LOST", T + 0.3, details)


@bad("P23")
def a_death_counts_more_crashes_than_commands_ran(it: Good) -> None:
    lost = lost_of("w-host-77-0", f"{RECORDED} 77 was killed by SIGKILL (crash 1 of 3).")
    for name in list(it.finals)[:5]:
        change(it.finals, name, trail=(*it.finals[name].trail, lost, lost))


@bad("P23")
def the_end_of_a_lease_counts_a_crash_for_all_that_a_killed_worker_held(it: Good) -> None:
    it.events.append(fault("kill worker", T + 0.2, 77))
    lost = lost_of("w-host-77-0", "The worker stopped renewing its lease (crash 1 of 3).")
    for name in list(it.finals)[:5]:
        change(it.finals, name, trail=(*it.finals[name].trail, lost, lost))


@bad("P23")
def all_deaths_are_noticed_by_the_end_of_a_lease(it: Good) -> None:
    for pid, name in zip((71, 72, 73), it.finals, strict=False):
        it.events.append(fault("kill worker", T + 0.2, pid))
        lost = lost_of(f"w-host-{pid}-0", "The worker stopped renewing its lease (crash 1 of 3).")
        change(it.finals, name, trail=(*it.finals[name].trail, lost))


def test_a_good_history_passes() -> None:
    assert check(Good().case()) == []


@pytest.mark.parametrize(("promise", "spoil"), BAD.values(), ids=BAD.keys())
def test_a_broken_promise_is_found_with_a_witness(promise: str, spoil: Bad) -> None:
    it = Good()
    spoil(it)
    found = check(it.case())
    assert promise in {violation.promise for violation in found}, [str(v) for v in found]
    assert all(violation.witness for violation in found)


def test_a_late_redelivery_is_excused_while_no_worker_lives() -> None:
    it = Good()
    move(it, "g", "claimed", T + 108)
    it.events[:] = [e for e in it.events if e["event"] != "claimed" or e["at"] != T + 108]
    it.events += [
        claimed(T + 102, 20, 190, "g", g=90),
        claimed(T + 108, 24, 191, "g", attempt=2, g=90),
        handled("g", T + 108.1, 24, 191, attempt=2),
    ]
    it.events[:] = [e for e in it.events if e["pid"] != 21]
    assert "P15" not in {violation.promise for violation in check(it.case())}


def test_a_fleet_that_comes_back_has_its_time_from_its_first_claim() -> None:
    it = Good()
    it.events[:] = [e for e in it.events if e["event"] != "handled" or e["at"] != T + 103.4]
    it.events[:] = [e for e in it.events if e["pid"] != 21]
    it.events += [
        claimed(T + 109.0, 24, 600, "fresh", fresh=300),
        claimed(T + 109.1, 24, 191, "g", attempt=2, g=90),
        handled("g", T + 109.2, 24, 191, attempt=2),
    ]
    assert "P15" not in {violation.promise for violation in check(it.case())}


def test_a_redelivery_within_an_outage_is_not_judged() -> None:
    it = Good()
    a_redelivery_comes_late_though_others_are_taken(it)
    assert "P15" in {violation.promise for violation in check(it.case())}
    it.events.append(fault("outage", T + 101))
    assert "P15" not in {violation.promise for violation in check(it.case())}


def test_a_killed_process_may_leave_lines_out() -> None:
    """It dies between its commit and its journal: what is missing proves nothing."""
    it = Good()
    for kind in ("settled", "refused"):
        it.events = [event for event in it.events if event["event"] != kind]
    assert check(it.case()) == []


def test_a_claim_that_a_crashed_server_forgot_makes_no_worker_stale() -> None:
    """Its number may be higher than that of the next claim: the server forgot the number, too."""
    it = Good()
    it.events.append(claimed(T + 0.12, 12, 7, "a"))
    before = {violation.promise for violation in check(it.case())}
    it.events.append(
        {"event": "fault", "at": T + 0.14, "pid": 1, "fault": "kill server", "victim": None}
    )
    assert "P6" in before
    assert check(it.case()) == []


def test_a_worker_that_slept_through_its_lease_begins_nothing_early() -> None:
    """Worker 11 claimed b before worker 10 failed with it, and begins it during the backoff."""
    it = Good()
    failed = Trace("FAILED", T + 1.45, {"attempt": 2, "retry_in": 0.5})
    trail = it.finals["b"].trail
    change(it.finals, "b", trail=(*trail[:-2], trail[-2], failed, *trail[-2:]), attempts=3)
    it.events = [e for e in it.events if e.get("id") != "b" or e["event"] != "handled"]
    it.events.append(handled("b", T + 1.47, 11, 2))
    assert "P9" not in {violation.promise for violation in check(it.case())}
    it.events.append(handled("b", T + 1.48, 10, 3, attempt=2))
    it.events = [
        e | {"at": T + 1.46} if e["event"] == "claimed" and e["at"] == T + 1.40 else e
        for e in it.events
    ]
    assert "P9" in {violation.promise for violation in check(it.case())}
