"""Many processes on one server, and a pooler between them and the server."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from commandbus import SendRequest
from commandbus.sync import SyncCommandBus
from commandbus.testing.waiting import eventually
from tests.postgres.database import empty_url
from tests.support import fleet
from tests.support.pgbouncer import PROGRAM, pooler
from tests.support.working import DOMAIN, working

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(180)]
needs_pgbouncer = pytest.mark.skipif(
    PROGRAM is None, reason="!!! SKIPPED: pgbouncer is not installed; on Debian: apt install pgbouncer"
)


@pytest.fixture
def url() -> str:
    return empty_url()


def test_ten_processes_carry_out_each_command_exactly_once(url: str, tmp_path: Path) -> None:
    result = fleet.run(url, tmp_path, processes=10, commands=2_000, concurrency=4)
    assert result.runs.keys() == result.sent
    assert set(result.runs.values()) == {1}
    assert len(result.shares) >= 2, "the work was shared"


@needs_pgbouncer
@pytest.mark.parametrize("runtime", ["asyncio", "threads"])
def test_a_worker_behind_a_pooler_in_transaction_mode_polls(url: str, runtime: str) -> None:
    with pooler(url) as pooled:
        through = f"{pooled}&pooler=on"
        with (
            SyncCommandBus(through) as bus,
            working(through, runtime, poll_interval=0.2) as done,
            working(through, runtime, poll_interval=0.2) as other,
        ):
            ids = [bus.send(DOMAIN, "ship").command_id for _ in range(50)]
            ids += [r.command_id for r in bus.send_many([SendRequest(DOMAIN, "ship")] * 500)]
            eventually(lambda: all(i in done or i in other for i in ids), 30)
            assert set((done.runs + other.runs).values()) == {1}
            stats = bus.stats(DOMAIN)
            eventually(lambda: bus.stats(DOMAIN).running == 0)
            assert stats.ready == 0


@needs_pgbouncer
def test_the_pooler_being_killed_loses_nothing(url: str) -> None:
    """Its connections end; what was on its way is repeated through the next."""
    with working(f"{url}", poll_interval=0.2) as done:
        with pooler(url) as first, SyncCommandBus(f"{first}&pooler=on") as bus:
            sent = [bus.send(DOMAIN, "ship").command_id for _ in range(20)]
        with pooler(url) as second, SyncCommandBus(f"{second}&pooler=on") as bus:
            sent += [bus.send(DOMAIN, "ship").command_id for _ in range(20)]
        eventually(lambda: done.has(sent), 20)
        assert set(done.runs.values()) == {1}


@needs_pgbouncer
def test_nothing_of_ours_stays_in_the_connections_of_a_pooler(url: str) -> None:
    with pooler(url) as pooled, SyncCommandBus(f"{pooled}&pooler=on") as bus:
        bus.send(DOMAIN, "ship")
        bus.stats(DOMAIN)
        with psycopg.connect(pooled, autocommit=True, prepare_threshold=None) as connection:
            assert connection.execute("select count(*) from pg_prepared_statements").fetchone() == (0,)
            assert connection.execute("show synchronous_commit").fetchone() == ("on",)
            assert connection.execute("show statement_timeout").fetchone() == ("0",)
