"""Memory and SQLite, side by side through thousands of random steps: P20, and P14 on the way."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from commandbus.engines.sqlite import store as sqlite
from commandbus.testing.clock import FakeClock
from tests.stateful.machine import Engines
from tests.stateful.side_by_side import SideBySide, embedded_engines

RUNS = settings(
    max_examples=80,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    database=None,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)
QUICK = settings(RUNS, phases=(Phase.generate,))


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[type[Engines]]:
    clock = FakeClock()
    with embedded_engines(tmp_path, clock) as engines:

        class Embedded(Engines):
            both = SideBySide(engines, clock)

        yield Embedded


def test_memory_and_sqlite_cannot_be_told_apart(embedded: type[Engines]) -> None:
    run_state_machine_as_test(embedded, settings=RUNS)
    assert len(embedded.both.engines) == 2


@pytest.mark.parametrize("query", ["free_keys", "delete_lease", "expired_leases", "take_head"])
def test_a_query_that_is_wrong_on_one_engine_is_noticed(
    query: str, embedded: type[Engines], monkeypatch: pytest.MonkeyPatch
) -> None:
    ineffective = getattr(sqlite.SQL, query).replace("where", "where false and")
    monkeypatch.setattr(sqlite.SQL, query, ineffective)
    with pytest.raises(Exception):  # noqa: B017, PT011 - whichever comparison notices first
        run_state_machine_as_test(embedded, settings=QUICK)
