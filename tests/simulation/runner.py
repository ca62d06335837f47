"""Runs scenarios and collects what fails."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tests.simulation.router_world import RouterWorld, simulate_routers
from tests.simulation.scheduler import simulate
from tests.simulation.world import World

Scenario = Callable[[int, list[str] | None], World | RouterWorld]
SCENARIOS: dict[str, Scenario] = {"workers": simulate, "routers": simulate_routers}


@dataclass(slots=True)
class Result:
    scenarios: int = 0
    steps: int = 0
    commands: int = 0
    failures: list[tuple[int, str]] = field(default_factory=list)


def run_seeds(seeds: Iterable[int], *, failures_max: int = 5, scenario: str = "workers") -> Result:
    """Run scenarios until `failures_max` of them have failed."""
    result = Result()
    for seed in seeds:
        result.scenarios += 1
        try:
            world = SCENARIOS[scenario](seed, None)
        except Exception as error:  # whatever a scenario raises is a finding, with its seed
            result.failures.append((seed, f"{type(error).__name__}: {error}"))
            if len(result.failures) >= failures_max:
                break
        else:
            result.steps += world.steps
            result.commands += len(world.oracle.commands)
    return result


def replay(seed: int, scenario: str = "workers") -> tuple[str | None, list[str]]:
    """One scenario again, exactly: how it failed, if it did, and everything that happened."""
    history: list[str] = []
    try:
        SCENARIOS[scenario](seed, history)
    except Exception as error:  # as above
        return f"{type(error).__name__}: {error}", history
    return None, history
