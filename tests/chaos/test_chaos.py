"""A short stay in the laboratory with every test run; `make chaos` stays longer."""

import subprocess
from pathlib import Path

import pytest

from tests.chaos.checker import check
from tests.chaos.hunt import STAYS_MAX, hunt
from tests.chaos.kinds import KILLERS, TYPES
from tests.chaos.laboratory import Laboratory, Plan
from tests.chaos.places import place_named
from tests.chaos.stay import report

QUICK = TYPES | dict.fromkeys(KILLERS, 0.0)
"""Without commands that kill their worker three times over: `tests/os_processes` has those."""


MIX = {"one": 30.0, "bulk": 20.0, "batch": 25.0, "key": 25.0}
"""Some of each, also when a frozen connection holds up most senders."""
PATIENCE = 5.0
"""Redeliveries and stops have so many seconds here, where other tests keep the machine busy; `make
chaos` judges them with the numbers that are promised."""
PLACES = [
    "sqlite",
    pytest.param("postgres", marks=pytest.mark.postgres),
    pytest.param("pgmq", marks=[pytest.mark.postgres, pytest.mark.pgmq]),
]


@pytest.mark.timeout(180)
def test_a_seeded_bug_is_caught() -> None:
    """One with every run; `make chaos` hunts all."""
    assert hunt("an_error_is_taken_for_success", seed=7, seconds=2.0).caught


@pytest.mark.parametrize(
    "error", [AssertionError("a sender ended with 1"), subprocess.TimeoutExpired("a sender", 60)]
)
def test_a_bug_that_stops_the_laboratory_is_not_caught_by_that(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def break_off(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("tests.chaos.hunt._stay", break_off)
    catch = hunt("an_error_is_taken_for_success", seed=7)
    assert (catch.caught, catch.stays) == (False, STAYS_MAX)
    assert "a sender" in catch.witness


@pytest.mark.timeout(180)
@pytest.mark.parametrize("place", PLACES)
def test_seconds_of_faults_break_no_promise(tmp_path: Path, place: str) -> None:
    with place_named(place, tmp_path) as chosen:
        # An outage has seconds of its own: `make chaos` has one in every stay.
        chosen.certain = None
        plan = Plan(
            chosen, tmp_path, seed=20, seconds=4, calm=0.25, faults_min=8, types=QUICK, operators=True,
            mix=MIX, senders=3, redelivery=PATIENCE, load=PATIENCE - 1,
        )  # fmt: skip
        findings = Laboratory(plan).run()
    violations = check(findings.case)
    text = report(findings, violations)
    assert not violations, text
    assert not findings.died, text
    # A run in which nothing happened would prove nothing.
    assert findings.faults.total() >= 8, text
    assert len(findings.case.finals) >= 50, text
    assert set(findings.runtimes) == {"asyncio", "threads"}, text
    assert findings.case.claims, text
    assert findings.case.tries, text
    assert findings.case.store.batches, text
