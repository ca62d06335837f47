"""Histories that break one promise each, for the tests of the checker."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.chaos.case import Event, Final, Trace
from tests.chaos.checker import INTERRUPTED, RECORDED
from tests.chaos.good_history import (
    Good,
    T,
    answered,
    asked,
    claimed,
    fault,
    handled,
    sent,
    settled,
)
from tests.chaos.kinds import (
    PACED,
    follow_up_of,
)

Bad = Callable[[Good], None]
BAD: dict[str, tuple[str, Bad]] = {}
ASKED = ("cancel_invoked", "stop_requested")


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


@bad("P1")
def a_command_has_two_outcomes(it: Good) -> None:
    it.finals["a again"] = it.finals["a"]


@bad("P2")
def a_bulk_send_is_there_in_part(it: Good) -> None:
    it.events[0]["commands"].append(it.events[0]["commands"][0] | {"id": "absent"})


@bad("P2")
def a_failed_send_took_effect(it: Good) -> None:
    without(it.events, "send_ok", "a")
    it.events.append(answered("a", T + 0.05, "send_failed"))


@bad("P3")
def a_repeated_send_makes_a_second_command(it: Good) -> None:
    it.finals["c again"] = replace(it.finals["c"], sequence=98)


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
def an_occurrence_is_sent_twice(it: Good) -> None:
    it.occurrences.append(it.occurrences[0])


@bad("P12")
def an_occurrence_is_left_out(it: Good) -> None:
    del it.occurrences[1]


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


@bad("P10")
def a_rate_is_exceeded(it: Good) -> None:
    paced(it, 9)


def paced(it: Good, count: int) -> None:
    """So many commands that have a rate are sent and claimed within a tenth of a second."""
    for number in range(count):
        name, at = f"paced {number}", T + 120
        it.events.append(sent(name, at, kind=PACED))
        it.events.append(claimed(at + 0.1, 10, 600 + number, name, **{name: 600 + number}))


@bad("P30")
def a_request_to_stop_is_not_heard(it: Good) -> None:
    asked_to_stop(it, T + 76)


def asked_to_stop(it: Good, until: float) -> None:
    """An operator asks i to stop while it runs, and it runs until then."""
    it.events += [{"event": kind, "at": T + 73, "pid": 3, "id": "i"} for kind in ASKED]
    move(it, "i", "handled", T + 72.9)
    move(it, "i", "finished", until)


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
    it.events.append(fault("kill worker", T - 0.4, 77))
    lost = lost_of("w-host-77-0", "The worker stopped renewing its lease (crash 1 of 3).")
    for name in list(it.finals)[:5]:
        change(it.finals, name, trail=(*it.finals[name].trail, lost, lost))


@bad("P23")
def all_deaths_are_noticed_by_the_end_of_a_lease(it: Good) -> None:
    for pid, name in zip((71, 72, 73), it.finals, strict=False):
        it.events.append(fault("kill worker", T + 0.2, pid))
        lost = lost_of(f"w-host-{pid}-0", "The worker stopped renewing its lease (crash 1 of 3).")
        change(it.finals, name, trail=(*it.finals[name].trail, lost))
