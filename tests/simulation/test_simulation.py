"""The worker core over the memory store: thousands of orders of events, faults at every step."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.simulation.bugs import BUGS, Bug
from tests.simulation.runner import replay, run_seeds
from tests.support.extent import sample
from tests.tidy.project import ROOT

PARTS = 5
SEEDS_PER_PART = sample(300, 2_000)
SEEDS_PER_BUG = 8_000
RARE = {
    "who_waits_in_a_chain_is_forgotten_at_a_stop": 7_600,
    "no_claim_follows_when_a_suspect_has_left": 2_600,
    "parking_frees_the_unique_key": 2_900,
    "a_full_worker_keeps_the_wakeup_to_itself": 2_500,
}
"""Seeds to begin with, for bugs that few interleavings show: seconds of every test run."""


@pytest.mark.parametrize("part", range(PARTS))
def test_every_promise_holds_in_every_interleaving(part: int) -> None:
    first = part * SEEDS_PER_PART
    result = run_seeds(range(first, first + SEEDS_PER_PART))
    assert result.failures == [], "replay with: python -m tests.simulation --seed N"
    assert result.scenarios == SEEDS_PER_PART
    assert result.commands > 3 * SEEDS_PER_PART, "scenarios became too small to mean anything"


@pytest.mark.parametrize("broken", BUGS.values(), ids=BUGS.keys())
def test_a_seeded_bug_is_caught(broken: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch)
    first = RARE.get(broken.__name__, 0)
    result = run_seeds(range(first, first + SEEDS_PER_BUG), failures_max=1)
    assert result.failures, f"{result.scenarios} interleavings did not notice"
    seed, failure = result.failures[0]
    assert replay(seed)[0] == failure


def test_at_least_twenty_bugs_are_seeded() -> None:
    assert len(BUGS) >= 20


def test_a_seed_replays_exactly() -> None:
    for seed in range(40):
        assert replay(seed) == replay(seed)


def test_a_seed_replays_exactly_in_another_process() -> None:
    failure, history = replay(11)
    told = subprocess.run(
        [sys.executable, "-m", "tests.simulation", "--seed", "11"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    assert failure is None
    assert told == [*history, "seed 11: every promise kept"]
