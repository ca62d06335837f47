"""A process manager takes the state of its declaration: checked by the type checkers and at run time.

mypy reports a `type: ignore` that is not needed, so the lines below prove that it finds the mistakes.
"""

from __future__ import annotations

import pytest

from commandbus import CommandBus, ProcessManager
from commandbus.errors import InvalidArgumentError
from commandbus.sync import SyncCommandBus, SyncProcessManager
from commandbus.testing.sagas import BookTrip, Trip


async def test_a_state_of_another_type_is_refused() -> None:
    async with CommandBus("memory://") as bus:
        manager = ProcessManager(bus, BookTrip)
        await manager.start(Trip(to="Oslo"))
        with pytest.raises(InvalidArgumentError, match="does not fit"):
            await manager.start("nonsense")  # type: ignore[arg-type]
        with pytest.raises(InvalidArgumentError, match="does not fit"):
            await manager.start_many(["nonsense"])  # type: ignore[list-item]


def test_threads_refuse_it_as_well() -> None:
    with SyncCommandBus("memory://") as bus:
        manager = SyncProcessManager(bus, BookTrip)
        manager.start(Trip(to="Oslo"))
        with pytest.raises(InvalidArgumentError, match="does not fit"):
            manager.start("nonsense")  # type: ignore[arg-type]


def test_a_bus_of_the_other_runtime_is_an_error_of_the_type_checker() -> None:
    with SyncCommandBus("memory://") as bus:
        manager = ProcessManager(bus, BookTrip)  # type: ignore[arg-type]
        assert manager.process is BookTrip
