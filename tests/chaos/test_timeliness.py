"""What is no evidence of a late redelivery: a second death, a claim of the command itself, a start that
a busy machine delays."""

from __future__ import annotations

from tests.chaos.bad_histories import change
from tests.chaos.case import Trace
from tests.chaos.checker import check
from tests.chaos.good_history import Good, T, claimed, fault, handled, settled
from tests.chaos.timeliness import NOT_BEGUN


def late(it: Good) -> bool:
    return "P15" in {violation.promise for violation in check(it.case())}


def claims_go_on(it: Good) -> None:
    """Fresh commands are claimed all the while, and g begins three seconds after its lease."""
    it.events[:] = [e for e in it.events if e["event"] != "handled" or e["at"] != T + 103.4]
    it.events[:] = [e for e in it.events if e["event"] != "claimed" or e["at"] != T + 103.3]
    it.events += [
        claimed(T + 103.2 + 0.3 * n, 21, 500 + n, f"other {n}", **{f"other {n}": 200 + n})
        for n in range(8)
    ]
    taken = claimed(T + 106.0, 21, 191, "g", "behind", attempt=2, g=90, behind=400)
    taken["members"][1]["attempt"] = 1
    it.events += [taken, handled("g", T + 106.3, 21, 191, attempt=2)]


def test_a_command_that_others_overtake_is_late() -> None:
    it = Good()
    claims_go_on(it)
    assert late(it)


def test_a_second_death_restarts_the_time_though_no_journal_has_the_claim() -> None:
    it = Good()
    claims_go_on(it)
    again = Trace("WORKER_LOST", T + 105.9, {"attempt": 2, "lease_id": 195})
    trail = it.finals["g"].trail
    change(it.finals, "g", trail=(*trail[:-2], again, *trail[-2:]))
    it.events.append(fault("kill worker", T + 104.8, 25))
    assert not late(it)


def test_the_claim_that_takes_a_command_is_no_evidence_that_it_was_overtaken() -> None:
    it = Good()
    claims_go_on(it)
    it.events[:] = [
        e for e in it.events if e["event"] != "claimed" or "other" not in e["members"][0]["id"]
    ]
    # More urgent work kept the fleet busy.
    it.events += [
        claimed(T + 103.2 + 0.3 * n, 21, 500 + n, f"urgent {n}", **{f"urgent {n}": n}) for n in range(9)
    ]
    assert not late(it)


def test_a_command_that_a_recorder_gave_back_is_judged_as_well() -> None:
    it = Good()
    claims_go_on(it)
    first = next(
        e for e in it.events if e["event"] == "claimed" and e["members"][0]["id"] == "g"
    )  # by the worker that died
    given_back = {"attempt": 1, "reason": NOT_BEGUN, "worker": f"w-host-{first['pid']}-1"}
    trail = tuple(
        Trace("RELEASED", trace.at, given_back) if trace.kind == "WORKER_LOST" else trace
        for trace in it.finals["g"].trail
    )
    change(it.finals, "g", trail=trail)
    assert late(it)


def full_all_the_while(it: Good, *earlier: tuple[str, float]) -> None:
    """No fresh commands are claimed; worker 21 first settles eight commands, by these events, and then
    holds eight more, as many as it has slots, until g begins."""
    claims_go_on(it)
    it.events[:] = [
        e for e in it.events if e["event"] != "claimed" or "other" not in e["members"][0]["id"]
    ]
    ended = {f"ended {n}": 300 + n for n in range(8)}
    held = {f"held {n}": n for n in range(8)}
    it.events.append(claimed(T + 102.0, 21, 501, *ended, **ended))
    it.events += [
        settled(name, at + n / 1_000, 21, 501, how)
        for how, at in earlier
        for n, name in enumerate(ended)
    ]
    it.events.append(claimed(T + 103.1, 21, 502, *held, **held))


def test_a_worker_whose_slots_were_full_all_the_while_had_no_room() -> None:
    it = Good()
    full_all_the_while(it, ("settled", T + 102.4))
    assert not late(it)


def test_a_settle_that_is_repeated_frees_no_slot_twice() -> None:
    it = Good()
    full_all_the_while(it, ("settle_unknown", T + 102.2), ("settled", T + 102.4))
    assert not late(it)


def test_a_worker_with_free_slots_had_room() -> None:
    it = Good()
    full_all_the_while(it, ("settled", T + 102.4))
    it.events[-1]["members"] = it.events[-1]["members"][:4]
    assert late(it)
