"""Connections that outlive a bus in the conformance suite: as good as new, and none is left over."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from commandbus.testing.waiting import eventually
from tests.postgres.database import empty_url, postgres_configuration
from tests.postgres.keeping import keeping, session

pytestmark = pytest.mark.postgres

OF_BUSES = (
    "select count(*) from pg_stat_activity where datname = current_database()"
    " and application_name like 'commandbus%'"
)


@pytest.fixture
def url() -> Iterator[str]:
    with keeping():
        yield empty_url()


def answer(connection: psycopg.Connection[Any], query: str) -> Any:
    row = connection.execute(query.encode()).fetchone()
    assert row is not None
    return row[0]


def test_a_connection_is_used_again_and_has_kept_nothing(url: str) -> None:
    with session(url) as first:
        backend = first.info.backend_pid
        first.execute("listen something")
        first.execute("set lock_timeout = '7s'")
        first.execute("select pg_advisory_lock(7)")
        first.execute("create temp table mine (n integer)")
    with session(url) as second:
        assert second.info.backend_pid == backend
        assert answer(second, "select count(*) from pg_listening_channels()") == 0
        assert answer(second, "show lock_timeout") == "0"
        assert answer(second, "select count(*) from pg_locks where locktype = 'advisory'") == 0
        assert answer(second, "select to_regclass('mine') is null")


def test_one_that_is_broken_or_in_a_transaction_is_not_used_again(url: str) -> None:
    with session(url) as first, psycopg.connect(url, autocommit=True) as other:
        broken = first.info.backend_pid
        other.execute("select pg_terminate_backend(%s, 5000)", [broken])
    with session(url) as second:
        busy = second.info.backend_pid
        second.execute("begin")
    with session(url) as third:
        assert third.info.backend_pid not in {broken, busy}


@pytest.mark.parametrize("runtime", ["asyncio", "threads"])
def test_buses_hand_their_connections_on_and_none_is_left_at_the_end(runtime: str) -> None:
    backends = "select pid from pg_stat_activity where application_name like 'commandbus%'"
    with keeping():
        seen = []
        for _ in range(2):
            bus = postgres_configuration().open(runtime)
            bus.send()
            with psycopg.connect(bus.configuration.url) as connection:
                seen.append({pid for (pid,) in connection.execute(backends.encode())})
            bus.close()
        assert seen[0]
        assert seen[0] <= seen[1]
    with psycopg.connect(empty_url(), autocommit=True) as connection:
        eventually(lambda: answer(connection, OF_BUSES) == 0)
