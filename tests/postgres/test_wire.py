"""Sends that go through libpq, without a driver's cursor."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import psycopg
import pytest

from commandbus import CommandBus, SendRequest
from commandbus.engines.postgres import wire
from commandbus.engines.postgres.statements import queries
from commandbus.errors import SchemaOutdated
from commandbus.operations.sending import encode_request
from commandbus.store.op import Op, Statement
from commandbus.store.records import Capacity
from commandbus.store.waiting import finish
from commandbus.sync import SyncCommandBus
from tests.postgres.database import postgres_configuration

pytestmark = pytest.mark.postgres

PLAIN = queries("commandbus").insert_plain


@pytest.fixture
def bus() -> Iterator[SyncCommandBus]:
    with SyncCommandBus(postgres_configuration().url) as bus:
        yield bus


def prepared(bus: SyncCommandBus) -> list[str]:
    """What was prepared on the connection that single sends share."""
    source = bus.engine.session._sources(None).senders  # type: ignore[attr-defined]
    connection = finish(source.getconn())
    source.putconn(connection)
    return list(connection.names)


def test_a_plain_send_is_prepared_once(bus: SyncCommandBus) -> None:
    for n in range(3):
        bus.send("orders", "ship", n)
    assert prepared(bus) == [PLAIN]
    assert bus.stats("orders").ready == 3


def test_what_finds_no_room_among_the_prepared_is_sent_as_well(
    bus: SyncCommandBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "NAMES_MAX", 1)
    bus.send("orders", "ship")
    bus.send("orders", "ship", delay=60)
    assert prepared(bus) == [PLAIN]
    assert (bus.stats("orders").ready, bus.stats("orders").scheduled) == (1, 1)


def test_a_statement_whose_plan_is_stale_is_prepared_again(bus: SyncCommandBus) -> None:
    bus.send("orders", "ship")
    with psycopg.connect(bus.url, autocommit=True) as connection:
        row = connection.execute(
            "select pg_get_functiondef('commandbus.add_plain'::regproc)"
        ).fetchone()
        assert row is not None
        changed = row[0].replace("OUT seq bigint", "OUT seq numeric").replace("S bigint", "S numeric")
        for definition in (changed, row[0]):
            connection.execute("drop function commandbus.add_plain")
            connection.execute(definition)
            bus.send("orders", "ship")
    assert bus.stats("orders").ready == 3


def test_what_was_prepared_outlives_the_rollback_of_a_transaction(bus: SyncCommandBus) -> None:
    def in_a_transaction(error: Exception | None = None) -> Op[None]:
        yield Statement("select pg_advisory_xact_lock(1)")
        new = encode_request(bus.scope, SendRequest("orders", "ship"))
        yield from bus.scope.insert([new], Capacity(None))
        if error is not None:
            raise error

    session = bus.engine.reserved_session
    session.run(in_a_transaction())
    with pytest.raises(LookupError):
        session.run(in_a_transaction(LookupError()))
    session.run(in_a_transaction())
    assert bus.stats("orders").ready == 2


def test_a_statement_that_was_refused_is_not_taken_for_a_prepared_one(bus: SyncCommandBus) -> None:
    with psycopg.connect(bus.url, autocommit=True) as connection:
        connection.execute("alter function commandbus.add_plain rename to hidden")
        with pytest.raises(SchemaOutdated):
            bus.send("orders", "ship")
        assert prepared(bus) == []
        connection.execute("alter function commandbus.hidden rename to add_plain")
    bus.send("orders", "ship")
    assert bus.stats("orders").ready == 1


def test_statements_longer_than_a_socket_takes_arrive_whole() -> None:
    text = "é" * 120_000

    async def send_together() -> list[str]:
        async with CommandBus(postgres_configuration().url) as bus:
            sent = await asyncio.gather(*(bus.send("orders", "ship", text) for _ in range(30)))
            records = [await bus.get_command(one.command_id) for one in sent]
            return [record.data for record in records if record is not None]

    assert asyncio.run(send_together()) == [text] * 30
