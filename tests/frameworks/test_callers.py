"""Sends inside transactions of SQLAlchemy and Django on a SQLite file; PostgreSQL has its own tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from commandbus import CommandBus, HandlerRegistry
from commandbus.errors import ConfigurationError, InvalidOperationError, PayloadError
from commandbus.sync import SyncCommandBus
from commandbus.testing import assert_sent, drain, sent_commands
from tests.support.django_site import set_up_django


def depth(bus: CommandBus | SyncCommandBus) -> int:
    with SyncCommandBus(bus.url) as other:
        return other.stats("orders").depth


def sqlalchemy_engine(folder: Path) -> Any:
    sqlalchemy = pytest.importorskip("sqlalchemy", reason="SQLAlchemy is not installed")
    return sqlalchemy.create_engine(f"sqlite:///{folder / 'commandbus.db'}")


@pytest.mark.parametrize("commit", [True, False])
def test_a_session_or_connection_of_sqlalchemy(
    sync_sqlite_command_bus: SyncCommandBus, tmp_path: Path, commit: bool
) -> None:
    from sqlalchemy import text
    from sqlalchemy.orm import Session

    engine = sqlalchemy_engine(tmp_path)
    for open_one in (engine.connect, lambda: Session(engine)):
        with open_one() as connection:
            sync_sqlite_command_bus.within(connection).send("orders", "ship")
            connection.execute(text("create table if not exists mine (id integer)"))
            connection.commit() if commit else connection.rollback()
    engine.dispose()
    assert depth(sync_sqlite_command_bus) == (2 if commit else 0)


@pytest.mark.parametrize("commit", [True, False])
async def test_a_blocking_session_under_asyncio(
    sqlite_command_bus: CommandBus, tmp_path: Path, commit: bool
) -> None:
    from sqlalchemy.orm import Session

    engine = sqlalchemy_engine(tmp_path)
    with Session(engine) as session:
        await sqlite_command_bus.within(session).send("orders", "ship")
        session.commit() if commit else session.rollback()
    engine.dispose()
    assert depth(sqlite_command_bus) == (1 if commit else 0)


async def test_an_asyncio_session_on_sqlite_is_refused(sqlite_command_bus: CommandBus) -> None:
    pytest.importorskip("greenlet", reason="SQLAlchemy has no asyncio here: greenlet is not installed")
    from sqlalchemy.ext.asyncio import AsyncSession

    async with AsyncSession() as session:
        with pytest.raises(ConfigurationError, match="no asyncio connections to SQLite"):
            sqlite_command_bus.within(session)


WITHOUT_GREENLET = """
import sys
sys.modules["greenlet"] = None
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session
from commandbus.integrations.sqlalchemy import send_after_commit
from commandbus.sync import SyncCommandBus

with SyncCommandBus("memory://") as bus, Session(create_engine("sqlite://")) as session:
    session.execute(text("select 1"))
    send_after_commit(session, bus, "orders", "ship")
    session.commit()
    print(bus.stats("orders").depth)
"""


def test_plain_sessions_need_no_greenlet() -> None:
    pytest.importorskip("sqlalchemy", reason="SQLAlchemy is not installed")
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT_GREENLET], capture_output=True, text=True, check=False
    )
    assert (ran.stdout, ran.stderr) == ("1\n", "")


def test_a_connection_of_django(tmp_path: Path) -> None:
    set_up_django()
    from django.db import connection, transaction

    url = f"sqlite:///{connection.settings_dict['NAME']}"
    with SyncCommandBus(url) as bus:
        before = depth(bus)
        with pytest.raises(InvalidOperationError, match=r"transaction\.atomic"):
            bus.within(connection)
        with transaction.atomic():
            bus.within(connection).send("orders", "ship")
            transaction.set_rollback(True)
        assert depth(bus) == before
        with transaction.atomic():
            bus.within(connection).send("orders", "ship")
        assert depth(bus) == before + 1
        bus.purge("orders")
    connection.close()


def test_a_connection_of_django_to_another_file_is_refused(
    sync_sqlite_command_bus: SyncCommandBus,
) -> None:
    set_up_django()
    from django.db import connection, transaction

    with transaction.atomic(), pytest.raises(ConfigurationError, match="needs the same file"):
        sync_sqlite_command_bus.within(connection)
    connection.close()


def test_a_send_follows_the_commit_of_a_session_elsewhere(sync_command_bus: SyncCommandBus) -> None:
    engine = pytest.importorskip("sqlalchemy").create_engine("sqlite://")
    from sqlalchemy.orm import Session

    from commandbus.integrations.sqlalchemy import send_after_commit

    bus = sync_command_bus
    with Session(engine) as session:
        send_after_commit(session, bus, "orders", "ship", 1)
        session.rollback()
        first = send_after_commit(session, bus, "orders", "ship", 2, priority="high")
        assert sent_commands(bus) == []
        session.commit()
        assert [one.command_id for one in assert_sent(bus, "orders", data=2)] == [first.command_id]
        session.commit()
        send_after_commit(session, bus, "orders", "ship", "left behind")
        session.close()
        send_after_commit(session, bus, "orders", "ship", 3)
        session.commit()
    assert [one.data for one in sent_commands(bus)] == [2, 3]
    engine.dispose()


def test_a_typed_command_follows_the_commit(sync_command_bus: SyncCommandBus) -> None:
    engine = pytest.importorskip("sqlalchemy").create_engine("sqlite://")
    from sqlalchemy.orm import Session

    from commandbus.integrations.sqlalchemy import send_after_commit

    orders = HandlerRegistry("orders")

    @orders.command
    def ship(order: int) -> int:
        return order * 2

    with Session(engine) as session:
        sent = send_after_commit(session, sync_command_bus, ship(order=7), priority="high")
        session.commit()
    drain(sync_command_bus, orders)
    record = sync_command_bus.get_command(sent)
    assert record is not None
    assert (record.priority, record.result) == (0, 14)
    engine.dispose()


def test_a_savepoint_that_is_undone_sends_nothing(sync_command_bus: SyncCommandBus) -> None:
    engine = pytest.importorskip("sqlalchemy").create_engine("sqlite://")
    from sqlalchemy.orm import Session

    from commandbus.integrations.sqlalchemy import send_after_commit

    bus = sync_command_bus
    with Session(engine) as session:
        send_after_commit(session, bus, "orders", "ship", "outside")
        with session.begin_nested():
            send_after_commit(session, bus, "orders", "ship", "kept")
        undone = session.begin_nested()
        with session.begin_nested():
            send_after_commit(session, bus, "orders", "ship", "inside what is undone")
        undone.rollback()
        assert sent_commands(bus) == []
        session.commit()
    assert [one.data for one in sent_commands(bus)] == ["outside", "kept"]
    engine.dispose()


def test_what_cannot_be_sent_is_refused_before_the_commit(sync_command_bus: SyncCommandBus) -> None:
    engine = pytest.importorskip("sqlalchemy").create_engine("sqlite://")
    from sqlalchemy.orm import Session

    from commandbus.integrations.sqlalchemy import send_after_commit

    with Session(engine) as session:
        with pytest.raises(PayloadError):
            send_after_commit(session, sync_command_bus, "orders", "ship", object())
        with pytest.raises(ConfigurationError, match="does not fit"):
            send_after_commit(session, CommandBus("memory://"), "orders", "ship")
        session.commit()
    assert sent_commands(sync_command_bus) == []
    engine.dispose()
