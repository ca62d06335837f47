"""Wake-ups over a direct connection, while all else goes through a pooler in transaction mode."""

from __future__ import annotations

import psycopg
import pytest

from commandbus import CommandBus
from commandbus.errors import ConfigurationError
from commandbus.sync import SyncCommandBus
from commandbus.testing.waiting import eventually
from tests.postgres.database import empty_url
from tests.postgres.test_trouble_fleet import needs_pgbouncer
from tests.support.pgbouncer import pooler
from tests.support.working import DOMAIN, working

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(180)]
DIRECT = "postgresql://postgres@db/shop"


@needs_pgbouncer
@pytest.mark.parametrize("runtime", ["asyncio", "threads"])
def test_a_worker_behind_a_pooler_is_woken_over_its_direct_connection(
    runtime: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = empty_url()
    monkeypatch.setenv("COMMANDBUS_LISTEN_URL", url)
    with pooler(url) as pooled:
        through = f"{pooled}&pooler=on"
        with SyncCommandBus(through) as bus, working(through, runtime) as done:
            (info,) = eventually(lambda: [one for one in bus.list_workers() if one.session], 20)
            with psycopg.connect(url, autocommit=True) as direct:
                asleep = "select 1 from commandbus.sleeper where process = %s"
                eventually(lambda: direct.execute(asleep, [info.session]).fetchone())
            for _ in range(3):
                sent = bus.send(DOMAIN, "ship").command_id
                assert eventually(lambda sent=sent: done.has([sent]))


@needs_pgbouncer
def test_behind_a_pooler_alone_a_process_has_no_session() -> None:
    """The connections of a pooler outlive its clients. Its backends are not the ones that it names,
    which is how a process notices a pooler that its URL does not speak of."""
    url = empty_url()
    with pooler(url) as pooled:
        with psycopg.connect(pooled) as connection:
            ((backend,),) = connection.execute("select pg_backend_pid()").fetchall()
            assert backend != connection.info.backend_pid
        through = f"{pooled}&pooler=on"
        with SyncCommandBus(through) as bus, working(through, poll_interval=0.2):
            (info,) = eventually(lambda: list(bus.list_workers()), 20)
            assert info.session == ""


def test_it_can_be_an_argument_or_an_option_of_the_url() -> None:
    as_argument = CommandBus(f"{DIRECT}?pooler=on", listen_url=DIRECT)
    as_option = CommandBus(f"{DIRECT}?pooler=on&listen_url={DIRECT.replace('/', '%2F')}")
    for bus in (as_argument, as_option):
        location = bus.engine.location  # type: ignore[attr-defined]
        assert location.notify
        assert "dbname=shop" in location.listen_conninfo


@pytest.mark.parametrize(
    ("url", "listen_url", "problem"),
    [
        ("sqlite:///x.db", DIRECT, "does not exist for"),
        (f"{DIRECT}?notify=off", DIRECT, "notify=off"),
        (DIRECT, f"{DIRECT}?schema=other", "belongs into the URL of the bus"),
        (DIRECT, "sqlite:///x.db", "not the URL of a PostgreSQL database"),
        (f"{DIRECT}?pooler=on&notify=on", None, "give listen_url="),
    ],
)
def test_what_cannot_be_is_refused(url: str, listen_url: str | None, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        CommandBus(url, listen_url=listen_url)
