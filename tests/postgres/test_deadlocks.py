"""A deadlock undoes one of two transactions: an operation that was the one is run again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from commandbus import SendRequest
from commandbus.errors import StoreUnavailable
from commandbus.processes import END, Process, step
from commandbus.testing import Harness
from commandbus.testing.waiting import eventually
from tests.postgres.database import postgres_configuration

pytestmark = pytest.mark.postgres

PATIENCE_SECONDS = 20
BLOCKED = (
    "select count(*) from pg_stat_activity where datname = current_database()"
    " and wait_event_type = 'Lock' and application_name like 'commandbus%%'"
)


@pytest.fixture(params=["asyncio", "threads"])
def bus(request: pytest.FixtureRequest) -> Iterator[Harness]:
    harness = postgres_configuration().open(request.param)
    yield harness
    harness.close()


def deadlocked(bus: Harness, table: str, operation: Callable[[], Any]) -> Any:
    """Run an operation that writes to a table and then commands, while a transaction has the commands
    and waits for that table. The operation waits first, so it is the one that
    the server undoes."""
    url = bus.configuration.url
    with psycopg.connect(url) as other, psycopg.connect(url, autocommit=True) as looker:
        other.execute("lock table commandbus.command in share mode")
        running = bus.spawn(operation)
        eventually(lambda: looker.execute(BLOCKED).fetchone() == (1,))
        other.execute(f"lock table commandbus.{table} in exclusive mode".encode())
        other.rollback()
        return running.result(PATIENCE_SECONDS)


class Once(Process[dict[str, Any]]):
    @step(then=END)
    def only(self, state: dict[str, Any]) -> SendRequest:
        return SendRequest("orders", "ship")


def test_a_batch_is_created_once_after_a_deadlock(bus: Harness) -> None:
    commands = [SendRequest("orders", "ship"), SendRequest("orders", "ship")]
    created = deadlocked(bus, "document", lambda: bus.bus.create_batch(commands))
    assert created.total == 2
    assert bus.stats().depth == 2


def test_a_process_starts_once_after_a_deadlock(bus: Harness) -> None:
    manager = bus.manager_class(bus.bus, Once)
    process_id = deadlocked(bus, "process", lambda: manager.start({})).process_id
    assert bus.call(manager.get_process, process_id) is not None
    assert bus.stats().depth == 1


def test_an_operation_whose_arguments_are_used_up_is_not_run_again(bus: Harness) -> None:
    commands = iter([SendRequest("orders", "ship")])
    with pytest.raises(StoreUnavailable, match="resolved a deadlock; nothing was changed"):
        deadlocked(bus, "document", lambda: bus.bus.create_batch(commands))
    assert bus.stats().depth == 0
