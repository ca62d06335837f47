"""Transactional handlers: effects, follow-ups, reply and outcome commit together, once."""

from __future__ import annotations

import threading
import time
from typing import Any

import psycopg
import pytest

from commandbus import (
    BusinessRuleException,
    CommandStatus,
    HandlerRegistry,
    InvalidOperationError,
    RetryPolicy,
)
from commandbus.domain.outcome import Succeeded
from commandbus.store.records import ClaimRequest, Settlement
from commandbus.store.session import Demand
from commandbus.sync import SyncCommandBus
from commandbus.testing import Configuration, Harness
from commandbus.testing.waiting import eventually
from commandbus.worker.recordings import read_recording
from tests.postgres.database import postgres_configuration

pytestmark = pytest.mark.postgres

AT_ONCE = RetryPolicy(max_attempts=5, backoff_schedule=[0])


@pytest.fixture(params=["asyncio", "threads"])
def runtime(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def configuration() -> Configuration:
    return postgres_configuration()


@pytest.fixture(params=["def", "async def"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def bus(configuration: Configuration, runtime: str) -> Any:
    with psycopg.connect(configuration.url, autocommit=True) as connection:
        connection.execute("create table if not exists effect (n int, fence bigint)")
        connection.execute("truncate effect")
    harness = configuration.open(runtime)
    yield harness
    harness.close()


def open_transactions(bus: Harness) -> int:
    query = (
        "select count(*) from pg_stat_activity where datname = current_database() and"
        " xact_start is not null and pid <> pg_backend_pid() and backend_type = 'client backend'"
    )
    with psycopg.connect(bus.configuration.url, autocommit=True) as connection:
        row = connection.execute(query).fetchone()
    assert row is not None
    return int(row[0])


def effects(bus: Harness) -> list[int]:
    with psycopg.connect(bus.configuration.url, autocommit=True) as connection:
        return [row[0] for row in connection.execute("select n from effect order by n")]


def registry_of(kind: str, then: Any = None, **options: Any) -> HandlerRegistry:
    """A handler that writes its payload into the table, sends a follow-up, and then does `then`."""
    registry = HandlerRegistry()
    insert = "insert into effect (n, fence) values (%s, %s)"

    def work(command: Any, context: Any) -> Any:
        context.connection.execute(insert, (command.data, context.fence))
        context.send("audit", "note", command.data)
        return then(command, context) if then else command.data

    async def work_async(command: Any, context: Any) -> Any:
        await context.connection.execute(insert, (command.data, context.fence))
        await context.send("audit", "note", command.data)
        return then(command, context) if then else command.data

    function = work if kind == "def" else work_async
    registry.register("orders", "ship", function, transactional=True, **options)
    return registry


def test_effects_outcome_and_follow_ups_commit_together(bus: Harness, kind: str) -> None:
    with bus.run_worker(registry_of(kind), concurrency=4) as running:
        ids = [bus.send(data=n, reply_to="replies") for n in range(20)]
        for command_id in ids:
            assert bus.wait(command_id).status is CommandStatus.COMPLETED
        eventually(lambda: running.worker._core.idle)
        assert running.metrics.commands_settled == 20
        assert running.metrics.leases_lost == 0
    assert effects(bus) == list(range(20))
    assert bus.stats("audit").ready == 20
    assert bus.stats("replies").ready == 20
    assert bus.kinds(ids[0]) == ["SENT", "RECEIVED", "COMPLETED"]


def test_while_the_store_begins_or_ends_the_transaction_the_handler_does_not_run(
    bus: Harness, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is killed meanwhile was not killed by it."""
    seen: dict[str, tuple[int, int]] = {}
    workers: list[Any] = []

    def look(moment: str) -> None:
        recording = read_recording(workers[0]._execution.recorder.content())
        seen[moment] = len(recording.running), len(recording.finished)

    def looking(target: Any, name: str) -> None:
        original = getattr(target, name)

        def call(*arguments: Any) -> Any:
            look(name)
            return original(*arguments)

        monkeypatch.setattr(target, name, call)

    begin = "begin" if kind == "def" else "begin_async"
    looking(bus.engine, begin)
    looking(bus.store, "settle")
    registry = registry_of(kind, lambda command, context: look("handler"))
    with bus.run_worker(registry) as running:
        workers.append(running.worker)
        assert bus.wait(bus.send(data=1)).status is CommandStatus.COMPLETED
    assert seen == {begin: (0, 1), "handler": (1, 0), "settle": (0, 1)}


def test_each_command_has_a_lease_of_its_own(bus: Harness, kind: str) -> None:
    ids = [bus.send(data=n) for n in range(20)]
    with bus.run_worker(registry_of(kind), concurrency=4):
        for command_id in ids:
            bus.wait(command_id)
    with psycopg.connect(bus.configuration.url, autocommit=True) as connection:
        row = connection.execute("select count(distinct fence) from effect").fetchone()
    assert row == (20,)


def test_transactions_of_one_claim_do_not_wait_for_each_other(configuration: Configuration) -> None:
    with SyncCommandBus(configuration.url) as bus:
        store, demand = bus.engine.store, Demand(concurrency=2, statement_timeout=10.0)
        sent = [bus.send("orders", "ship").command_id for _ in range(2)]
        request = ClaimRequest(("orders",), 2, "worker", 60.0, lease_per_command=True)
        claimed = bus.session.run(store.claim(request)).claimed
        open_ones = [bus.engine.begin(demand) for _ in claimed]
        for transaction, one in zip(open_ones, claimed, strict=True):
            settlement = Settlement(one.seq, one.lease_id, one.attempt, Succeeded("null"), 0)
            assert not transaction.session.run(store.settle([settlement])).lost
        for transaction in reversed(open_ones):
            transaction.commit()
        for command_id in sent:
            record = bus.get_command(command_id)
            assert record is not None
            assert record.status is CommandStatus.COMPLETED


@pytest.mark.alternating
@pytest.mark.parametrize("error", [ValueError("no"), BusinessRuleException("NO")])
def test_a_failure_undoes_the_effects(bus: Harness, kind: str, error: Exception) -> None:
    def fail(command: Any, context: Any) -> None:
        raise error

    with bus.run_worker(registry_of(kind, fail), retry_policy=RetryPolicy(max_attempts=1)):
        status = bus.wait(bus.send(data=1)).status
    parked = CommandStatus.IN_TROUBLESHOOTING_QUEUE
    assert status is (parked if isinstance(error, ValueError) else CommandStatus.FAILED)
    assert effects(bus) == []
    assert bus.stats("audit").depth == 0


def test_a_result_that_cannot_be_kept_undoes_the_effects(bus: Harness, kind: str) -> None:
    with bus.run_worker(registry_of(kind, lambda command, context: object())):
        record = bus.wait(bus.send(data=1))
    assert record.error_code == "RESULT_NOT_JSON"
    assert effects(bus) == []


def test_a_handler_that_lost_its_lease_changes_nothing(bus: Harness, kind: str) -> None:
    """The second delivery's effects stand, the first one's do not."""
    runs: list[int] = []
    lock = threading.Lock()

    def lose_the_first_time(command: Any, context: Any) -> int:
        with lock:
            runs.append(context.fence)
            first = len(runs) == 1
        if first:
            with psycopg.connect(bus.configuration.url, autocommit=True) as connection:
                connection.execute("update commandbus.lease set until = 0")
        return context.fence

    with bus.run_worker(registry_of(kind, lose_the_first_time), retry_policy=AT_ONCE, concurrency=1):
        record = bus.wait(bus.send(data=1))
    assert record.status is CommandStatus.COMPLETED
    assert len(runs) == 2
    assert record.result == runs[1]
    assert effects(bus) == [1]
    assert bus.stats("audit").ready == 1


def test_a_handler_that_was_given_up_changes_nothing(bus: Harness) -> None:
    """Its command is parked under the lease that the handler still works with."""
    registry, go_on, began = HandlerRegistry(), threading.Event(), threading.Event()

    @registry.handler("orders", "ship", transactional=True, timeout=0.3)
    def ship(command: Any, context: Any) -> None:
        context.connection.execute("insert into effect values (1, 1)")
        if not began.is_set():
            began.set()
            go_on.wait(20)

    command_id = bus.send(max_attempts=1)
    with bus.run_worker(registry):
        eventually(lambda: bus.get(command_id).error_code == "HANDLER_TIMEOUT")
        go_on.set()
        eventually(lambda: open_transactions(bus) == 0)
        assert effects(bus) == []
        bus.operator_retry(command_id)
        eventually(lambda: bus.get(command_id).status is CommandStatus.COMPLETED)
    assert effects(bus) == [1]


def test_a_commit_that_fails_is_tried_again(bus: Harness, kind: str) -> None:
    runs: list[int] = []

    def break_the_first_time(command: Any, context: Any) -> None:
        runs.append(1)
        if len(runs) == 1:
            pid = context.connection.info.backend_pid
            with psycopg.connect(bus.configuration.url, autocommit=True) as connection:
                connection.execute("select pg_terminate_backend(%s, 5000)", (pid,))

    with bus.run_worker(registry_of(kind, break_the_first_time), retry_policy=AT_ONCE):
        assert bus.wait(bus.send(data=1)).status is CommandStatus.COMPLETED
    assert effects(bus) == [1]


def test_nothing_of_a_transaction_leaks_into_the_pool(bus: Harness, kind: str) -> None:
    with bus.run_worker(registry_of(kind), concurrency=1):
        bus.wait(bus.send(data=1))
        for _ in range(10):
            bus.send("audit", "note")
    with psycopg.connect(bus.configuration.url, autocommit=True) as connection:
        held = connection.execute(
            "select count(*) from pg_stat_activity where state like 'idle in%' and datname ="
            " current_database()"
        ).fetchone()
    assert held == (0,)


def test_the_user_has_a_connection_as_psycopg_makes_them(bus: Harness) -> None:
    registry, seen = HandlerRegistry(), []

    @registry.handler("orders", "ship", transactional=True)
    def ship(command: Any, context: Any) -> None:
        cursor = context.connection.execute("select %s", [7])
        seen.append(cursor.fetchone())
        seen.append(context.connection.execute("select pg_typeof(%s)::text", [7]).fetchone())
        seen.append(context.connection.execute("show enable_seqscan").fetchone())
        with context.connection.transaction():
            context.connection.execute("insert into effect (n) values (1)")

    with bus.run_worker(registry):
        assert bus.wait(bus.send()).status is CommandStatus.COMPLETED
    assert seen == [(7,), ("smallint",), ("on",)]
    assert effects(bus) == [1]


def test_a_plain_handler_has_no_transaction(bus: Harness) -> None:
    registry, told = HandlerRegistry(), []

    @registry.handler("orders", "ship")
    def ship(command: Any, context: Any) -> None:
        with pytest.raises(InvalidOperationError, match="transactional=True"):
            _ = context.connection
        told.append(1)

    with bus.run_worker(registry):
        assert bus.wait(bus.send()).status is CommandStatus.COMPLETED
    assert told == [1]


def test_a_handler_that_blocks_its_loop_has_one_effect_and_is_named(
    configuration: Configuration,
) -> None:
    """For twice its lease: the lease is kept from another thread, and the guilty line is told."""
    with psycopg.connect(configuration.url, autocommit=True) as connection:
        connection.execute("create table if not exists effect (n int, fence bigint)")
        connection.execute("truncate effect")
    registry, runs = HandlerRegistry(), []

    @registry.handler("orders", "ship", transactional=True)
    async def block(command: Any, context: Any) -> None:
        runs.append(context.fence)
        await context.connection.execute("insert into effect (n) values (1)")
        time.sleep(3)

    bus = configuration.open("asyncio")
    try:
        with bus.run_worker(registry, visibility_timeout=1.5) as running:
            record = bus.wait(bus.send(), 30)
            report = running.worker.health_status.report()
        assert (record.status, record.attempts, len(runs)) == (CommandStatus.COMPLETED, 1, 1)
        assert effects(bus) == [1]
        assert report.loop_stalls >= 1
        assert "test_transactional.py" in str(report.last_stall)
        assert str(report.last_stall).endswith("in block")
    finally:
        bus.close()
