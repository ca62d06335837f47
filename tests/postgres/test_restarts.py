"""A restart of one worker leaves the other calls and the other workers of its bus alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from commandbus import CommandStatus, HandlerRegistry
from commandbus.store.op import Autocommit, Op
from commandbus.testing import Harness
from commandbus.testing.harness import RunningWorker
from commandbus.testing.waiting import eventually
from tests.postgres.database import postgres_configuration

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(120)]

PATIENCE = 0.2


@pytest.fixture(params=["asyncio", "threads"])
def bus(request: pytest.FixtureRequest) -> Iterator[Harness]:
    harness = postgres_configuration().open(request.param)
    yield harness
    harness.close()


class Holding:
    """A transactional handler that waits before it uses its connection."""

    def __init__(self, domain: str) -> None:
        self.entered, self.let_go = threading.Event(), threading.Event()
        self.failure: BaseException | None = None
        self.ended = threading.Event()
        self.registry = HandlerRegistry()
        self.registry.register(domain, "ship", self, transactional=True)

    def __call__(self, command: Any, context: Any) -> int:
        self.entered.set()
        self.let_go.wait(30)
        try:
            return int(context.connection.execute("select 7").fetchone()[0])
        except BaseException as error:
            self.failure = error
            raise
        finally:
            self.ended.set()


def slow(seconds: float) -> Op[int]:
    """A call that is on its way for a while."""
    rows = yield Autocommit(f"select 7 from pg_sleep({seconds})")
    return int(rows[0][0])


def restart(running: RunningWorker) -> None:
    running.worker.request_restart("a test", PATIENCE)
    eventually(lambda: running.worker._restart_reason is None, 20)
    eventually(lambda: running.worker._core.metrics.claim_failures == 0)


def test_calls_that_are_on_their_way_survive_the_restart_of_a_worker(bus: Harness) -> None:
    registry = HandlerRegistry()
    registry.register("orders", "ship", lambda command, context: None)
    with bus.run_worker(registry) as running:
        bus.wait(bus.send())
        session = bus.bus.session
        calls = [bus.spawn(lambda: session.run(slow(4.0))) for _ in range(3)]
        later = bus.send(delay=3600)
        waiting = bus.spawn(lambda: bus.bus.wait(later, 3))
        eventually(lambda: bus.engine.connections.busy >= 3)
        restart(running)
        assert not any(call.done() for call in calls), "they were on their way"
        assert [call.result(30) for call in calls] == [7, 7, 7]
        assert isinstance(waiting.exception(30), TimeoutError), "it waited in vain for its command"


def test_handlers_of_another_worker_keep_their_transactions(bus: Harness) -> None:
    registry, other = HandlerRegistry(), Holding("others")
    registry.register("orders", "ship", lambda command, context: None)
    with bus.run_worker(registry) as running, bus.run_worker(other.registry, "others"):
        try:
            command_id = bus.send("others")
            assert other.entered.wait(30)
            restart(running)
        finally:
            other.let_go.set()
        record = bus.wait(command_id)
        assert (record.status, record.attempts, record.result) == (CommandStatus.COMPLETED, 1, 7)


def test_a_transaction_that_is_left_behind_is_broken(bus: Harness) -> None:
    stuck = Holding("orders")
    with bus.run_worker(stuck.registry, visibility_timeout=20.0) as running:
        try:
            bus.send()
            assert stuck.entered.wait(30)
            restart(running)
        finally:
            stuck.let_go.set()
        assert stuck.ended.wait(30)
        assert isinstance(stuck.failure, psycopg.OperationalError)
