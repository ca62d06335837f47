"""The first use of a queue, by many at once: one creates it, and nothing that uses it has to wait."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from commandbus import HandlerRegistry, SendRequest
from commandbus.domain.priority import LABELS
from commandbus.engines.postgres.location import parse
from commandbus.engines.postgres.pgmq.installation import look
from commandbus.engines.postgres.schema import connect
from commandbus.errors import StoreUnavailable
from commandbus.sync import SyncCommandBus, SyncWorker
from commandbus.testing import Harness
from commandbus.testing.waiting import eventually
from tests.pgmq.database import empty_url, pgmq_configuration, shared_url
from tests.postgres.database import UPKEEP

pytestmark = [pytest.mark.postgres, pytest.mark.pgmq]

SENDERS, ROUNDS = 6, 4
PATIENCE_SECONDS = 30


@pytest.fixture(params=["asyncio", "threads"])
def bus(request: pytest.FixtureRequest) -> Iterator[Harness]:
    harness = pgmq_configuration().open(request.param)
    yield harness
    harness.close()


def deadlocks(url: str) -> int:
    """What the server counted, once all sessions but this one have ended."""
    others = (
        "select count(*) from pg_stat_activity where datname = current_database() and pid <> %s"
        " and application_name <> %s"
    )
    count = (
        "select deadlocks from pg_stat_database where datname = current_database()"
        " and pg_stat_clear_snapshot() is not null"
    )
    with psycopg.connect(url, autocommit=True) as connection:
        own = connection.info.backend_pid
        eventually(lambda: connection.execute(others, [own, UPKEEP]).fetchone() == (0,))
        row = connection.execute(count).fetchone()
        assert row is not None
        return int(row[0])


def test_a_queue_that_is_known_is_bound_without_a_lock(bus: Harness) -> None:
    """By a process that looked before another one had created it."""
    bus.send()
    bind = bus.store.messages.bind
    with psycopg.connect(shared_url()) as user:
        user.execute("update pgmq.q_orders__commands set vt = vt")
        bound = bus.spawn(lambda: bus.bus.session.run(bind("orders", LABELS["normal"], replies=False)))
        assert bound.result(PATIENCE_SECONDS) is None


def test_a_queue_that_is_bound_again_has_no_other_index_than_at_first(bus: Harness) -> None:
    domain = f"d{uuid4().hex[:8]}"
    bus.send(domain)
    indexes = "select indexname from pg_indexes where tablename = %s"
    with psycopg.connect(shared_url(), autocommit=True) as connection:
        for _ in range(2):
            found = connection.execute(indexes, [f"q_{domain}__commands"]).fetchall()
            assert found == [(f"q_{domain}__commands_pkey",)]
            bus.run(bus.store.messages.bind(domain, LABELS["normal"], replies=False))


def test_a_batch_that_is_refused_leaves_no_belief_in_its_queue(bus: Harness) -> None:
    """Its queue was created in the transaction that was undone."""
    domain, batch_id = f"d{uuid4().hex[:8]}", uuid4()
    bus.call(bus.bus.create_batch, [SendRequest("orders", "ship")], batch_id=batch_id)
    taken = bus.store.put_document

    def refused(document: Any) -> Any:
        yield from taken(document)
        return False

    bus.store.put_document = refused
    with pytest.raises(Exception, match="exists already"):
        bus.call(bus.bus.create_batch, [SendRequest(domain, "ship")])
    bus.store.put_document = taken
    bus.call(bus.bus.create_batch, [SendRequest(domain, "ship")])
    assert bus.stats(domain).depth == 1


def _use(kind: int, bus: SyncCommandBus, domain: str) -> None:
    if kind == 0:
        bus.send(domain, "ship")
    elif kind == 1:
        bus.create_batch([SendRequest(domain, "ship"), SendRequest(domain, "ship", priority="high")])
    else:
        with psycopg.connect(shared_url()) as connection:
            bus.within(connection).send(domain, "ship", priority="low")


def test_many_use_a_fresh_queue_at_once_while_a_worker_claims() -> None:
    url = empty_url()
    before = deadlocks(url)
    for _ in range(ROUNDS):
        _all_at_once(url, f"d{uuid4().hex[:8]}")
    assert deadlocks(url) == before


def _all_at_once(url: str, domain: str) -> None:
    start = threading.Barrier(SENDERS + 1, timeout=30)
    registry = HandlerRegistry()
    registry.register(domain, "ship", lambda command, context: None)

    def send(number: int) -> None:
        with SyncCommandBus(url, transport="pgmq") as own:
            start.wait()
            _use(number % 3, own, domain)

    with (
        SyncCommandBus(url, transport="pgmq") as bus,
        ThreadPoolExecutor(SENDERS) as senders,
    ):
        sent = [senders.submit(send, number) for number in range(SENDERS)]
        worker = SyncWorker(bus, domain, registry, poll_interval=0.1)
        thread = threading.Thread(target=worker.run, daemon=True)
        start.wait()
        thread.start()
        try:
            for each in sent:
                each.result(30)
            eventually(lambda: bus.stats(domain).completed == SENDERS + SENDERS // 3)
        finally:
            worker.stop()
            thread.join(30)


def test_a_server_that_goes_away_while_a_bus_opens_is_unavailable() -> None:
    place = parse(shared_url())
    with connect(place) as connection, psycopg.connect(shared_url()) as other:
        other.execute("select pg_terminate_backend(%s, 5000)", [connection.info.backend_pid])
        with pytest.raises(StoreUnavailable):
            look(connection, place)
