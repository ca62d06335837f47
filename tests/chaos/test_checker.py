"""The checker is checked: a good history passes, and each kind of broken promise is found."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest

from tests.chaos.case import Case, Event, Final, Trace
from tests.chaos.checker import check

T = 1_000_000.0
"""When the histories below begin."""


def sent(
    command_id: str, at: float, *, kind: str = "note", delay: float = 0, priority: int = 5
) -> Event:
    command = {"id": command_id, "domain": "d", "type": kind, "priority": priority, "delay": delay}
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


def good() -> tuple[list[Event], dict[str, Final]]:
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


Bad = Callable[[list[Event], dict[str, Final]], None]
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
def an_acknowledged_command_is_gone(events: list[Event], finals: dict[str, Final]) -> None:
    del finals["a"]


@bad("P1")
def a_command_never_ends(events: list[Event], finals: dict[str, Final]) -> None:
    change(finals, "a", status="IN_PROGRESS")


@bad("P1")
def a_command_is_completed_without_a_run(events: list[Event], finals: dict[str, Final]) -> None:
    without(events, "handled", "a")


@bad("P1")
def a_command_comes_from_nowhere(events: list[Event], finals: dict[str, Final]) -> None:
    finals["z"] = replace(finals["a"], id="z")


@bad("P2")
def a_bulk_send_is_there_in_part(events: list[Event], finals: dict[str, Final]) -> None:
    events[0]["commands"].append(events[0]["commands"][0] | {"id": "y"})


@bad("P2")
def a_failed_send_took_effect(events: list[Event], finals: dict[str, Final]) -> None:
    without(events, "send_ok", "a")
    events.append(answered("a", T + 0.05, "send_failed"))


@bad("P3")
def a_repeated_send_makes_a_second_command(events: list[Event], finals: dict[str, Final]) -> None:
    finals["c again"] = finals["c"]


@bad("P3")
def a_repeated_send_is_not_told(events: list[Event], finals: dict[str, Final]) -> None:
    events.append(answered("b", T + 0.5))


@bad("P5")
def a_handler_runs_twice_under_one_token(events: list[Event], finals: dict[str, Final]) -> None:
    events.append(handled("a", T + 0.17, 10, 1))


@bad("P5")
def a_command_is_delivered_for_ever(events: list[Event], finals: dict[str, Final]) -> None:
    events += [handled("a", T + 3 + token, 10, token) for token in range(20, 26)]


@bad("P6")
def a_stale_outcome_is_accepted(events: list[Event], finals: dict[str, Final]) -> None:
    events.append(settled("b", T + 1.45, 11, 2))
    change(finals, "b", trail=tuple(t for t in finals["b"].trail if t.kind != "WORKER_LOST"))


@bad("P6")
def an_outcome_is_accepted_after_its_lease_was_taken_back(
    events: list[Event], finals: dict[str, Final]
) -> None:
    without(events, "settled", "b")
    events[:] = [event for event in events if event["at"] != T + 1.40]
    events.append(settled("b", T + 1.35, 11, 2))


@bad("P6")
def two_workers_are_given_one_token(events: list[Event], finals: dict[str, Final]) -> None:
    events.append(claimed(T + 0.18, 11, 1, "a"))


@bad("P6")
def a_worker_settles_with_a_token_of_another(events: list[Event], finals: dict[str, Final]) -> None:
    next(e for e in events if e["event"] == "settled")["pid"] = 11


@bad("P6")
def two_outcomes_are_accepted(events: list[Event], finals: dict[str, Final]) -> None:
    events.append(settled("a", T + 0.4, 12, 9))


@bad("P7")
def attempts_are_counted_without_end(events: list[Event], finals: dict[str, Final]) -> None:
    change(finals, "a", attempts=7)


@bad("P7")
def a_killer_is_not_parked(events: list[Event], finals: dict[str, Final]) -> None:
    events[0]["commands"][0]["type"] = "exit"


@bad("P7")
def a_command_is_given_up_too_soon(events: list[Event], finals: dict[str, Final]) -> None:
    change(finals, "a", status="IN_TROUBLESHOOTING_QUEUE", reason="EXHAUSTED", error="X")


@bad("P7")
def a_command_is_parked_after_one_crash(events: list[Event], finals: dict[str, Final]) -> None:
    change(finals, "b", status="IN_TROUBLESHOOTING_QUEUE", reason="WORKER_LOST", error="X")


@bad("P8")
def a_refusal_is_recorded_as_a_success(events: list[Event], finals: dict[str, Final]) -> None:
    events[0]["commands"][0]["type"] = "reject"


@bad("P8")
def an_error_is_lost(events: list[Event], finals: dict[str, Final]) -> None:
    change(finals, "a", status="IN_TROUBLESHOOTING_QUEUE", reason="PERMANENT")


@bad("P9")
def a_delayed_command_runs_early(events: list[Event], finals: dict[str, Final]) -> None:
    next(e for e in events if e["event"] == "handled" and e["id"] == "c")["at"] = T + 1.0


@bad("P9")
def a_retry_ignores_its_backoff(events: list[Event], finals: dict[str, Final]) -> None:
    failed = Trace("FAILED", T + 1.3, {"attempt": 1, "retry_in": 10.0})
    change(finals, "b", trail=(*finals["b"].trail[:3], failed, *finals["b"].trail[3:]))


@bad("P10")
def one_claim_is_out_of_order(events: list[Event], finals: dict[str, Final]) -> None:
    events[:] = [event for event in events if event["event"] != "claimed"]
    events.append(claimed(T + 1.55, 10, 1, "b", "a"))


@bad("P10")
def a_claim_overtakes_what_waits(events: list[Event], finals: dict[str, Final]) -> None:
    first = next(e for e in events if e["event"] == "claimed")
    first.update(at=T + 0.70, began=T + 0.69)


@bad("P14")
def a_crash_is_not_on_record(events: list[Event], finals: dict[str, Final]) -> None:
    change(finals, "b", trail=tuple(t for t in finals["b"].trail if t.kind != "WORKER_LOST"))


@bad("P14")
def the_trail_ends_otherwise_than_the_record(events: list[Event], finals: dict[str, Final]) -> None:
    change(finals, "a", trail=finals["a"].trail[:-1])


@bad("P14")
def a_delivery_is_not_on_record(events: list[Event], finals: dict[str, Final]) -> None:
    change(finals, "b", attempts=1, trail=(finals["b"].trail[0], *finals["b"].trail[2:]))


def test_a_good_history_passes() -> None:
    events, finals = good()
    assert check(Case(events, finals.values())) == []


@pytest.mark.parametrize(("promise", "spoil"), BAD.values(), ids=BAD.keys())
def test_a_broken_promise_is_found_with_a_witness(promise: str, spoil: Bad) -> None:
    events, finals = deepcopy(good())
    spoil(events, finals)
    found = check(Case(events, finals.values()))
    assert promise in {violation.promise for violation in found}, [str(v) for v in found]
    assert all(violation.witness for violation in found)


def test_a_killed_process_may_leave_lines_out() -> None:
    """It dies between its commit and its journal: what is missing proves nothing."""
    events, finals = good()
    for kind in ("claimed", "settled", "refused"):
        events = [event for event in events if event["event"] != kind]
    assert check(Case(events, finals.values())) == []
