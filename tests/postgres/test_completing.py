"""Exactly once with an ORM on PostgreSQL: SQLAlchemy with psycopg and asyncpg, and Django."""

from __future__ import annotations

import sys
from typing import Any

import psycopg
import pytest
from psycopg import conninfo

from commandbus import CommandBus, CommandStatus, HandlerRegistry
from commandbus.errors import ConfigurationError
from commandbus.sync import SyncCommandBus
from commandbus.testing import drain
from tests.frameworks.test_completing import finish, kill_a_worker
from tests.postgres.database import aging, empty_url
from tests.postgres.test_callers import socket_of, sqlalchemy_url

pytestmark = pytest.mark.postgres


@pytest.fixture
def url() -> str:
    url = empty_url()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("create table if not exists effect (n int, fence bigint)")
        connection.execute("truncate effect")
    return url


def effects(url: str) -> list[int]:
    with psycopg.connect(url) as connection:
        return [row[0] for row in connection.execute("select n from effect order by n")]


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
async def test_an_asyncio_session_of_sqlalchemy(url: str, driver: str) -> None:
    pytest.importorskip(driver)
    address = sqlalchemy_url(url, driver)
    from sqlalchemy import text
    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

    engine, registry = create_async_engine(address, connect_args=socket_of(url)), HandlerRegistry()

    @registry.handler("orders", "ship")
    async def ship(command: Any, context: Any) -> None:
        async with AsyncSession(engine) as session, session.begin():
            await session.execute(text("insert into effect (n) values (:n)"), {"n": command.data})
            await context.complete({"n": command.data}, within=session)
            if command.data == 2:
                raise ValueError("undo")

    async with CommandBus(url) as bus:
        for data in (1, 2):
            await bus.send("orders", "ship", data, max_attempts=1, reply_to="replies")
        kept, undone = await drain(bus, registry)
        replies = await bus.query_commands(domain="replies")
    await engine.dispose()
    assert (kept.status, kept.result) == (CommandStatus.COMPLETED, {"n": 1})
    assert undone.error_code == "ValueError"
    assert [reply.data["result"] for reply in replies] == [{"n": 1}]
    assert effects(url) == [1]


def test_a_blocking_session_of_sqlalchemy(url: str) -> None:
    address = sqlalchemy_url(url, "psycopg")
    from sqlalchemy import create_engine, text
    from sqlalchemy.orm import Session

    engine, registry = create_engine(address, connect_args=socket_of(url)), HandlerRegistry()

    @registry.handler("orders", "ship")
    def ship(command: Any, context: Any) -> None:
        with Session(engine) as session:
            session.execute(text("insert into effect (n) values (:n)"), {"n": command.data})
            context.complete("done", within=session)
            if command.data == 1:
                session.commit()

    with SyncCommandBus(url) as bus:
        for data in (1, 2):
            bus.send("orders", "ship", data, max_attempts=1)
        kept, undone = drain(bus, registry)
    engine.dispose()
    assert (kept.status, kept.result) == (CommandStatus.COMPLETED, "done")
    assert undone.error_code == "NOT_COMMITTED"
    assert effects(url) == [1]


@pytest.mark.parametrize("with_tables", [True, False])
def test_a_connection_to_another_database_is_refused(url: str, with_tables: bool) -> None:
    registry, refused = HandlerRegistry(), list[str]()
    name = "commandbus_elsewhere"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"drop database if exists {name}")
        connection.execute(f"create database {name} template template0")
    elsewhere = conninfo.make_conninfo(url, dbname=name)

    @registry.handler("orders", "ship")
    def ship(command: Any, context: Any) -> None:
        with psycopg.connect(elsewhere) as connection:
            with pytest.raises(ConfigurationError) as caught:
                context.complete(within=connection)
            refused.append(str(caught.value))

    try:
        if with_tables:
            parts = conninfo.conninfo_to_dict(elsewhere)
            with SyncCommandBus(
                f"postgresql://{parts['user']}@/{name}?host={parts['host']}&port={parts['port']}",
                migrate=True,
            ):
                pass
        with SyncCommandBus(url) as bus:
            bus.send("orders", "ship")
            drain(bus, registry)
        assert "another database" in refused[0]
    finally:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(f"drop database if exists {name} with (force)")


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
@pytest.mark.parametrize(("when", "runs"), [("before the commit", 1), ("after the commit", 0)])
def test_a_kill_around_the_commit_has_the_effects_once(url: str, when: str, runs: int) -> None:
    registry, where = HandlerRegistry(), socket_of(url)
    with SyncCommandBus(url) as bus:
        command_id = bus.send("orders", "ship").command_id
    address = sqlalchemy_url(url, "psycopg").render_as_string(hide_password=False)
    kill_a_worker(url, f"{address}?host={where['host']}&port={where['port']}", when)
    aging(url)(5)

    @registry.handler("orders", "ship")
    def ship(command: Any, context: Any) -> None:
        with psycopg.connect(url) as connection:
            connection.execute("insert into effect (n) values (1)")
            context.complete("again", within=connection)

    with SyncCommandBus(url) as bus:
        assert finish(bus, registry) == runs
        record = bus.get_command(command_id)
    assert record is not None
    assert (record.status, record.result) == (
        CommandStatus.COMPLETED,
        "again" if runs else "done",
    )
    assert effects(url) == [1]
