"""Memory beside SQLite and PostgreSQL, through thousands of random steps: P20, and P14 on the way."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from commandbus.domain.moment import Duration
from commandbus.engines.postgres.schema import upgrade
from commandbus.engines.sqlite import heads
from commandbus.engines.sqlite import store as sqlite
from commandbus.testing.clock import FakeClock
from commandbus.testing.postgres import create_database
from tests.postgres.database import server
from tests.stateful.machine import Engines
from tests.stateful.side_by_side import SideBySide, beside_the_model
from tests.support.extent import sample

RUNS = settings(
    max_examples=sample(50, 80),
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    database=None,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)
QUICK = settings(RUNS, max_examples=80, phases=(Phase.generate,))


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[type[Engines]]:
    clock = FakeClock()
    url = f"sqlite:///{tmp_path / 'stateful.db'}?synchronous=off"
    with beside_the_model(url, clock) as engines:

        class Embedded(Engines):
            both = SideBySide(engines, clock)

        yield Embedded


class ServersClock(FakeClock):
    """A clock that a database follows, because its function is replaced."""

    def __init__(self, connection: psycopg.Connection) -> None:
        super().__init__()
        self._connection = connection
        connection.execute("create table clock as select %s::bigint as us", (self(),))
        connection.execute(
            "create or replace function commandbus.now_us() returns bigint language sql volatile"
            " return (select us from public.clock)"
        )

    def advance(self, duration: Duration) -> datetime:
        moment = super().advance(duration)
        self._connection.execute("update clock set us = %s", (self(),))
        return moment


@pytest.mark.postgres
def test_memory_and_postgresql_behave_alike() -> None:
    url = create_database(server(os.getpid()))
    upgrade(url)
    with psycopg.connect(url, autocommit=True) as connection:
        clock = ServersClock(connection)
        with beside_the_model(url, clock) as engines:

            class Served(Engines):
                both = SideBySide(engines, clock)

            run_state_machine_as_test(Served, settings=settings(QUICK, max_examples=40))
            assert len(Served.both.engines) == 2


def test_memory_and_sqlite_behave_alike(embedded: type[Engines]) -> None:
    run_state_machine_as_test(embedded, settings=RUNS)
    assert len(embedded.both.engines) == 2


@pytest.mark.parametrize("query", ["free_keys", "delete_lease", "expired_leases", "take_head"])
def test_a_query_that_is_wrong_on_one_engine_is_noticed(
    query: str, embedded: type[Engines], monkeypatch: pytest.MonkeyPatch
) -> None:
    ineffective = getattr(sqlite.SQL, query).replace("where", "where false and")
    for module in (sqlite, heads):
        monkeypatch.setattr(module.SQL, query, ineffective)
    with pytest.raises(Exception):  # noqa: B017, PT011 - whichever comparison notices first
        run_state_machine_as_test(embedded, settings=QUICK)
