"""The fixtures for applications' tests on PostgreSQL."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from commandbus import CommandBus, CommandStatus, HandlerRegistry, ProcessManager
from commandbus.sync import SyncCommandBus
from commandbus.testing import drain
from commandbus.testing.sagas import DOMAIN, BookTrip, Trip

pytestmark = pytest.mark.postgres


async def test_a_bus_on_postgresql_for_asyncio(postgres_command_bus: CommandBus) -> None:
    registry = HandlerRegistry()
    for name in ("book_hotel", "book_car", "pay"):
        registry.register(DOMAIN, name, lambda command, context: None)
    registry.process(BookTrip)
    process_id = await ProcessManager(postgres_command_bus, BookTrip).start(Trip())
    assert len(await drain(postgres_command_bus, registry)) == 3
    record = await postgres_command_bus.get_process(process_id)
    assert record is not None
    assert record.status == "COMPLETED"


def test_a_bus_and_the_tables_of_the_application_share_a_database(
    sync_postgres_command_bus: SyncCommandBus, postgres_command_url: str
) -> None:
    registry = HandlerRegistry()

    @registry.handler("orders", "ship", transactional=True)
    def ship(command: Any, context: Any) -> None:
        context.connection.execute("insert into shipped values (%s)", [command.data])

    with psycopg.connect(postgres_command_url) as connection:
        connection.execute("create table shipped (n int)")
        sync_postgres_command_bus.within(connection).send("orders", "ship", 7)
    (record,) = drain(sync_postgres_command_bus, registry)
    assert record.status is CommandStatus.COMPLETED
    with psycopg.connect(postgres_command_url) as connection:
        assert connection.execute("select n from shipped").fetchall() == [(7,)]


@pytest.mark.parametrize("turn", [1, 2])
def test_each_test_has_an_empty_store(sync_postgres_command_bus: SyncCommandBus, turn: int) -> None:
    assert sync_postgres_command_bus.stats("orders").depth == 0
    sync_postgres_command_bus.send("orders", "ship")
