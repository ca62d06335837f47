"""Process routers over the memory store: faults at every op of their loops, and an oracle."""

from __future__ import annotations

import pytest

from tests.simulation.bugs import Bug
from tests.simulation.router_bugs import ROUTER_BUGS
from tests.simulation.runner import replay, run_seeds

SEEDS = 60
SEEDS_PER_BUG = 400
RARE = {
    "a_run_that_an_operator_ends_for_a_canceled_process_has_no_actor": 2572,
}
"""Seeds to begin with, for bugs that few interleavings show."""


def test_every_process_ends_as_promised_in_every_interleaving() -> None:
    result = run_seeds(range(SEEDS), scenario="routers")
    assert result.failures == [], "replay with: python -m tests.simulation --of routers --seed N"
    assert result.commands > 5 * SEEDS, "scenarios became too small to mean anything"


@pytest.mark.parametrize("broken", ROUTER_BUGS.values(), ids=ROUTER_BUGS.keys())
def test_a_seeded_bug_of_routing_is_caught(broken: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch)
    first = RARE.get(broken.__name__, 0)
    seeds = range(first, first + SEEDS_PER_BUG)
    result = run_seeds(seeds, failures_max=1, scenario="routers")
    assert result.failures, f"{result.scenarios} interleavings did not notice"
    seed, failure = result.failures[0]
    assert replay(seed, "routers")[0] == failure


def test_a_seed_of_routers_replays_exactly() -> None:
    for seed in range(3):
        assert replay(seed, "routers") == replay(seed, "routers")
