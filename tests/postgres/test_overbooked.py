"""More workers than the server has connections: those that get one work, and no helper keeps one that
the work needs."""

from __future__ import annotations

import threading
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from commandbus import HandlerRegistry, SendRequest
from commandbus.engines.postgres.schema import upgrade
from commandbus.engines.postgres.shortage import Shortage
from commandbus.store.waiting import finish
from commandbus.sync import SyncCommandBus
from commandbus.testing import Configuration
from commandbus.testing.postgres import PostgresServer, create_database
from commandbus.testing.waiting import eventually
from commandbus.worker.backoff import BACKOFF_MAX
from tests.chaos.storm import DOMAIN
from tests.os_processes.lab import Child

pytestmark = [pytest.mark.postgres, pytest.mark.slow, pytest.mark.timeout(120)]

CONNECTIONS = 10
WORKERS_EACH = 4
COMMANDS = 200


@pytest.fixture(scope="module")
def own() -> Any:
    limits = {"max_connections": str(CONNECTIONS), "superuser_reserved_connections": "0"}
    with PostgresServer.start(settings=limits) as server:
        yield server


def asked(bus: SyncCommandBus, query: str) -> int:
    """A number that the server gives, on the connection that the bus has."""
    pool = bus.engine.sources_of_threads().pool  # type: ignore[attr-defined]
    connection = finish(pool.getconn())
    try:
        return int(connection.execute(query).fetchone()[0])
    finally:
        pool.putconn(connection)


def connections(bus: SyncCommandBus, name: str = "%") -> int:
    return asked(
        bus,
        "select count(*) from pg_stat_activity where backend_type = 'client backend'"
        f" and application_name like '{name}'",
    )


def sender(own: PostgresServer) -> SyncCommandBus:
    """A bus on a database of its own; it keeps the connections that it needs."""
    url = create_database(own)
    upgrade(url)
    return SyncCommandBus(f"{url}&pool_size=1&application_name=sender")


def test_workers_that_start_together_on_too_few_connections_make_progress(
    own: PostgresServer, tmp_path: Path
) -> None:
    children: list[Child] = []
    with sender(own) as bus:
        bus.send(DOMAIN, "note")
        assert connections(bus) == 2, "it keeps what it needs"
        url = bus.url.replace("&application_name=sender", "").replace("&pool_size=1", "")
        config = {"url": url, "effects": str(tmp_path / "effects"), "workers": WORKERS_EACH}
        try:
            for runtime in ("asyncio", "threads", "asyncio"):
                children.append(Child("tests.chaos.storm", config | {"runtime": runtime}))
            for child in children:
                child.expect("ready")
            eventually(lambda: connections(bus) == CONNECTIONS)
            bus.send_many([SendRequest(DOMAIN, "note")] * COMMANDS)
            eventually(lambda: bus.stats(DOMAIN).completed == COMMANDS + 1, 40)
        finally:
            for child in children:
                child.kill()


@pytest.mark.parametrize("runtime", ["asyncio", "threads"])
def test_the_listener_gives_its_connection_up_for_a_claim(own: PostgresServer, runtime: str) -> None:
    registry, done = HandlerRegistry(), threading.Event()
    registry.register(DOMAIN, "note", lambda command, context: done.set())
    with sender(own) as bus, ExitStack() as others:
        bus.send("other", "note")
        assert connections(bus) == 2
        url = bus.url.replace("=sender", "=fleet")
        fleet = Configuration("postgres", url).open(runtime)
        others.callback(fleet.close)
        with fleet.run_worker(registry, DOMAIN, poll_interval=3600.0, concurrency=1) as running:
            eventually(lambda: connections(bus, "commandbus listen") == 1)
            running.wait_until_idle()
            eventually(lambda: _only_the_listener_is_left(own, bus, others))
            bus.send(DOMAIN, "note")
            assert done.wait(20), "the claim had no connection"


def _only_the_listener_is_left(own: PostgresServer, bus: SyncCommandBus, others: ExitStack) -> bool:
    """End the other connections of the fleet, and take all that the server has left."""
    asked(
        bus,
        "select count(pg_terminate_backend(pid, 5000)) from pg_stat_activity"
        " where application_name = 'fleet'",
    )
    with suppress(psycopg.OperationalError):
        while True:
            others.enter_context(psycopg.connect(own.dsn()))
    return connections(bus) == CONNECTIONS and connections(bus, "fleet") == 0


def test_one_connection_that_was_cut_is_no_shortage() -> None:
    """The listener and the services try again at once; only a server that refuses again has too few."""
    shortage = Shortage(lambda: False)
    shortage.served()
    for _ in range(3):
        shortage.follower_refused()
        assert shortage.may_follow(0)
        shortage.follower_served()
    shortage.follower_refused()
    shortage.follower_refused()
    assert not shortage.may_follow(0)


def test_a_shortage_is_over_when_nothing_is_refused_any_more() -> None:
    """A claim that was refused may go on with a connection that came back: no new one tells that there
    are enough, and without the listener an idle worker would hear nothing."""
    now = 100.0
    shortage = Shortage(lambda: False, monotonic=lambda: now)
    assert not shortage.may_follow(0), "the work comes first"
    now += 60
    assert not shortage.may_follow(0)
    shortage.served()
    assert shortage.may_follow(0)
    shortage.refused()
    now += BACKOFF_MAX
    assert not shortage.may_follow(0), "what was refused may be about to try again"
    shortage.refused()
    now += BACKOFF_MAX
    assert not shortage.may_follow(0)
    now += 2
    assert shortage.may_follow(0)
