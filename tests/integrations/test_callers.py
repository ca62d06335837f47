"""Sends inside transactions of SQLAlchemy and Django on a SQLite file; PostgreSQL has its own tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from commandbus import CommandBus
from commandbus.errors import ConfigurationError, InvalidOperationError
from commandbus.sync import SyncCommandBus
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
    pytest.importorskip("sqlalchemy", reason="SQLAlchemy is not installed")
    from sqlalchemy.ext.asyncio import AsyncSession

    async with AsyncSession() as session:
        with pytest.raises(ConfigurationError, match="no asyncio connections to SQLite"):
            sqlite_command_bus.within(session)


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
