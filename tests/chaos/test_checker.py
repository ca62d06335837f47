"""The checker is checked: a good history passes, and each kind of broken promise is found."""

from dataclasses import replace

import pytest

from tests.chaos.bad_histories import (
    BAD,
    Bad,
    a_claim_overtakes_what_waits,
    a_redelivery_comes_late_though_others_are_taken,
    all_deaths_are_noticed_by_the_end_of_a_lease,
    asked_to_stop,
    change,
    move,
    paced,
    the_end_of_a_lease_counts_a_crash_for_all_that_a_killed_worker_held,
)
from tests.chaos.case import Trace
from tests.chaos.checker import check
from tests.chaos.good_history import Good, T, claimed, fault, handled


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


@pytest.mark.parametrize(
    "spoil",
    [
        all_deaths_are_noticed_by_the_end_of_a_lease,
        the_end_of_a_lease_counts_a_crash_for_all_that_a_killed_worker_held,
    ],
)
def test_without_recorders_deaths_are_noticed_by_the_end_of_a_lease(spoil: Bad) -> None:
    it = Good()
    spoil(it)
    assert "P23" in {violation.promise for violation in check(it.case())}
    it.terms = replace(it.terms, recorders=False)
    assert "P23" not in {violation.promise for violation in check(it.case())}


def test_a_burst_within_its_rate_breaks_nothing() -> None:
    it = Good()
    paced(it, 5)
    assert "P10" not in {violation.promise for violation in check(it.case())}


def test_a_handler_that_gives_way_soon_has_heard_the_request() -> None:
    it = Good()
    asked_to_stop(it, T + 73.5)
    assert "P30" not in {violation.promise for violation in check(it.case())}


def test_a_request_to_stop_whose_worker_was_harmed_is_not_judged() -> None:
    it = Good()
    asked_to_stop(it, T + 76)
    it.events.append(fault("freeze worker", T + 74, 10))
    assert "P30" not in {violation.promise for violation in check(it.case())}


def test_what_a_dying_worker_was_claiming_does_not_wait() -> None:
    """The server locks rows for a claim, and undoes it when its client is gone: no journal has it."""
    it = Good()
    a_claim_overtakes_what_waits(it)
    claiming = {"event": "claiming", "at": T + 0.1, "pid": 99}
    it.events += [claiming, fault("kill worker", T + 0.3, 99)]
    assert "P10" not in {violation.promise for violation in check(it.case())}
    it.events.append(claimed(T + 0.2, 99, 901))
    assert "P10" in {violation.promise for violation in check(it.case())}
    it.events.append({"event": "claim_unknown", "at": T + 0.3, "began": T + 0.2, "pid": 99})
    assert "P10" not in {violation.promise for violation in check(it.case())}


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
