"""Memory and SQLite, side by side through thousands of random steps: P20, and P14 on the way."""

from __future__ import annotations

from pathlib import Path

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from commandbus.testing.clock import FakeClock
from tests.stateful.machine import Engines
from tests.stateful.side_by_side import SideBySide, embedded_engines

RUNS = settings(
    max_examples=200,
    phases=(Phase.explicit, Phase.generate, Phase.shrink),
    report_multiple_bugs=False,
    stateful_step_count=30,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)


def test_memory_and_sqlite_cannot_be_told_apart(tmp_path: Path) -> None:
    clock = FakeClock()
    with embedded_engines(tmp_path, clock) as engines:

        class Embedded(Engines):
            both = SideBySide(engines, clock)

        run_state_machine_as_test(Embedded, settings=RUNS)
        assert len(engines) == 2
