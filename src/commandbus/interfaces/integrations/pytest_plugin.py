"""Fixtures for the tests of an application, found by pytest when the package is installed.

Each bus has the fixture `command_clock`, which stands still until the test moves it, and a store of its
own, empty at first. The fixtures are plain, so they fit every plugin for asyncio. Nothing of the bus is
imported before a test asks for one.
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


def _file_in(folder: Path) -> str:
    return f"sqlite:///{folder / 'commandbus.db'}"


def _opened(bus: Bus) -> Iterator[Bus]:
    bus.engine.open()
    yield bus
    bus.engine.close()
