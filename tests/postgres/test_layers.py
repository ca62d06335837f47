"""The hierarchy of timeouts, layer by layer, and the connections that a worker holds."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import psycopg
import pytest

from commandbus import (
    CommandStatus,
    HandlerRegistry,
    HealthState,
    RetryPolicy,
    SendRequest,
    StoreUnavailable,
    WorkerWatchdog,
)
from commandbus.connect import create_pool, plan_connections
from commandbus.engines.postgres import pools
from commandbus.errors import ConfigurationError, PoolExhausted, StatementTimeout
from commandbus.store.records import ClaimRequest
from commandbus.store.session import Demand
from commandbus.sync import SyncCommandBus, SyncWorker
from commandbus.testing import Configuration, Harness
from commandbus.testing.waiting import eventually
from tests.postgres.database import empty_url, postgres_configuration, server, shared_url
from tests.support.proxy import Proxy

pytestmark = pytest.mark.postgres

AT_ONCE = RetryPolicy(max_attempts=5, backoff_schedule=[0])


@pytest.fixture
def url() -> str:
    return empty_url()


@pytest.fixture(params=["asyncio", "threads"])
def runtime(request: pytest.FixtureRequest) -> str:
    return request.param


def open_bus(runtime: str, options: str = "") -> Harness:
    configuration = postgres_configuration()
    return Configuration("postgres", configuration.url + options).open(runtime)


@pytest.fixture
def bus(runtime: str) -> Iterator[Harness]:
    harness = open_bus(runtime)
    yield harness
    harness.close()


def transactional(function: Any, **options: Any) -> HandlerRegistry:
    registry = HandlerRegistry()
    registry.register("orders", "ship", function, transactional=True, **options)
    return registry


# Statements.


def test_a_statement_must_end_before_its_lease(url: str) -> None:
    with SyncCommandBus(url) as bus:
        with pytest.raises(ConfigurationError, match=r"statement_timeout \(30 s\).*\(20 s\)"):
            SyncWorker(bus, "orders", visibility_timeout=20, statement_timeout=30)
        with pytest.raises(ConfigurationError, match=r"statement_timeout \(25 s\).*\(10 s\)"):
            SyncWorker(bus, "orders", silence_timeout=10, statement_timeout=25)
        assert SyncWorker(bus, "orders").settings.statement_seconds == 25
        assert SyncWorker(bus, "orders", visibility_timeout=6).settings.statement_seconds == 5


def test_a_slow_statement_of_a_handler_is_canceled_and_transient(bus: Harness) -> None:
    runs: list[int] = []

    def ship(command: Any, context: Any) -> str:
        runs.append(context.attempt)
        if len(runs) == 1:
            context.connection.execute("select pg_sleep(60)")
        return context.connection.execute("show statement_timeout").fetchone()[0]

    with bus.run_worker(transactional(ship), statement_timeout=0.5, retry_policy=AT_ONCE):
        command_id = bus.send()
        record = bus.wait(command_id)
    assert (record.status, record.attempts, record.result) == (CommandStatus.COMPLETED, 2, "500ms")
    failed = next(event for event in bus.trail(command_id) if event.event_type == "FAILED")
    assert failed.details["error"]["code"] == "STATEMENT_TIMEOUT"
    assert failed.details["error"]["kind"] == "TRANSIENT"


def test_the_worker_s_own_statements_have_its_timeout(bus: Harness) -> None:
    registry = HandlerRegistry()
    registry.register("orders", "ship", lambda command, context: None)
    with bus.run_worker(registry, statement_timeout=0.5):
        bus.wait(bus.send())
        with psycopg.connect(bus.configuration.url) as blocker:
            blocker.execute("lock table commandbus.queue in access exclusive mode")
            worker = bus.engine.store
            op = worker.claim(_request())
            session = bus.engine.reserved_session
            with pytest.raises(StatementTimeout, match="statement_timeout"):
                session.run(op)


def _request() -> ClaimRequest:
    return ClaimRequest(("orders",), 1, "test", 30.0, sweep=False)


# The pool.


def test_a_pool_smaller_than_the_concurrency_is_refused(url: str) -> None:
    with SyncCommandBus(url + "&pool_size=4") as bus:
        worker = SyncWorker(bus, "orders", concurrency=4)
        with pytest.raises(ConfigurationError, match=r"pool_size=4.*concurrency=5"):
            SyncWorker(bus, "orders", concurrency=5)
        with pytest.raises(ConfigurationError, match=r"pool_size=4.*concurrency=16"):
            worker.set_concurrency(16)
        assert SyncWorker(bus, "orders", concurrency=9, min_concurrency=1, max_concurrency=4)
        with pytest.raises(ConfigurationError, match=r"pool_size=4.*concurrency=8.*max_concurrency"):
            SyncWorker(bus, "orders", concurrency=2, min_concurrency=1, max_concurrency=8)


def test_a_listener_behind_a_pooler_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"pooler=on.*notify=on"):
        SyncCommandBus("postgresql://localhost/x?pooler=on&notify=on")


@pytest.mark.parametrize("value", ["0", "x", "-1", "1e9"])
def test_a_strange_pool_timeout_is_refused(value: str) -> None:
    with pytest.raises(ConfigurationError, match="pool_timeout"):
        SyncCommandBus(f"postgresql://localhost/x?pool_timeout={value}")


def test_a_used_up_pool_is_distinguished_from_a_server_that_is_away(url: str) -> None:
    with SyncCommandBus(url + "&pool_size=1&pool_timeout=0.2") as bus:
        pool = bus.engine.sources_of_threads().pool
        transaction = bus.engine.begin(SyncWorker(bus, "orders", concurrency=1)._demand)
        with pytest.raises(PoolExhausted, match=r"All 1 connections.*0\.2 s"):
            bus.stats("orders")
        transaction.rollback()
        assert bus.stats("orders").depth == 0
        assert pool is bus.engine.sources_of_threads().pool
    with pytest.raises(StoreUnavailable) as away, SyncCommandBus("postgresql://127.0.0.1:1/x"):
        pass
    assert not isinstance(away.value, PoolExhausted)


class SignalReceivedError(Exception):
    """Raised by the handler of a signal, as KeyboardInterrupt is."""


def test_a_signal_that_ends_a_wait_for_a_connection_frees_none(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise SignalReceivedError

    main = threading.get_ident()
    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with SyncCommandBus(url + "&pool_size=1&pool_timeout=30") as bus:
            pool = bus.engine.sources_of_threads().pool
            transaction = bus.engine.begin(Demand(1, 5.0))

            def send() -> None:
                eventually(lambda: pool._queue)
                signal.pthread_kill(main, signal.SIGUSR1)

            sender = threading.Thread(target=send, daemon=True)
            sender.start()
            with pytest.raises(SignalReceivedError):
                bus.stats("orders")
            sender.join()
            monkeypatch.setattr(pool, "patience", 0.1)
            with pytest.raises(PoolExhausted):
                bus.stats("orders")
            transaction.rollback()
            assert bus.stats("orders").depth == 0
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_idle_connections_do_not_keep_a_program_running(url: str) -> None:
    before = set(threading.enumerate())
    with SyncCommandBus(url) as bus:
        bus.stats("orders")
        started = set(threading.enumerate()) - before
        assert any(isinstance(one, threading.Timer) for one in started)
        assert [one for one in started if not one.daemon] == []


def test_a_handler_without_a_connection_waits_1_2_4_seconds(runtime: str) -> None:
    bus = open_bus(runtime, "&pool_size=1&pool_timeout=0.1")
    registry = HandlerRegistry()
    registry.register("orders", "ship", lambda command, context: None, transactional=True)
    policy = RetryPolicy(9, [500])
    try:
        with (
            SyncCommandBus(shared_url()) as other,
            bus.run_worker(registry, concurrency=1, retry_policy=policy) as running,
        ):
            held = bus.engine.begin(running.worker._demand)
            command_id = other.send("orders", "ship").command_id

            def failures() -> list[Any]:
                trail = other.get_audit_trail(command_id)
                return [event.details for event in trail if event.event_type == "FAILED"]

            eventually(lambda: len(failures()) == 3, timeout=30)
            assert {details["error"]["code"] for details in failures()} == {"POOL_TIMEOUT"}
            assert [details["retry_in"] for details in failures()] == [1.0, 2.0, 4.0]
            assert running.worker.health_status.report().pool_exhaustions == 3
            held.rollback()
            # The next one gets its connection; the first waits its four seconds.
            following = other.send("orders", "ship").command_id
            assert other.wait(following, 30).status is CommandStatus.COMPLETED
            assert running.worker.health_status.report().pool_exhaustions == 0
    finally:
        bus.close()


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["plain", "transactional", "sending"])
def test_sixteen_slots_hold_no_more_than_their_connections(runtime: str, kind: str) -> None:
    """Ten thousand commands (or hundreds, where each needs a connection), a pool of 16: no wait in
    vain, and the server counts the connections."""
    bus = open_bus(runtime, "&pool_size=16")
    count = 10_000 if kind == "plain" else 200
    registry, most, over = HandlerRegistry(), [0], threading.Event()
    begun: list[Any] = []

    @registry.handler("orders", "ship", transactional=kind == "transactional")
    def ship(command: Any, context: Any) -> None:
        begun.append(command)
        if kind == "sending":
            context.progress(50)

    def watch() -> None:
        with psycopg.connect(shared_url(), autocommit=True) as connection:
            while not over.is_set():
                found = connection.execute(
                    "select count(*) from pg_stat_activity where datname = current_database()"
                    " and application_name like 'commandbus%'"
                ).fetchone()
                assert found is not None
                most[0] = max(most[0], found[0])
                time.sleep(0.02)  # what was opened stays open for minutes

    watching = threading.Thread(target=watch, daemon=True)
    try:
        bus.send_many([SendRequest("orders", "ship", n) for n in range(count)])
        watching.start()
        with bus.run_worker(registry, concurrency=16) as running:
            # Counting thousands of rows every few milliseconds would keep the server busy.
            eventually(lambda: len(begun) == count, timeout=120)
            eventually(lambda: bus.stats().completed == count)
            assert running.worker.health_status.report().pool_exhaustions == 0
            assert running.metrics.claim_failures + running.metrics.settle_failures == 0
            held = running.worker.connections
            assert held.busy <= 16
            assert held.reserved <= 4
    finally:
        over.set()
        watching.join(30)
        bus.close()
    limit = 16 + 4 + 1
    # Under asyncio the sender of this test has a connection on the loop, beside the handlers' threads.
    assert 2 <= most[0] <= limit + (1 if runtime == "asyncio" else 0)


# Leases, threads, the watchdog.


def test_a_late_outcome_is_refused_after_redelivery(bus: Harness) -> None:
    """The lease ends while the handler runs: another delivery, and one outcome."""
    registry, runs, late = HandlerRegistry(), [], threading.Event()

    @registry.handler("orders", "ship")
    def ship(command: Any, context: Any) -> int:
        runs.append(context.fence)
        if len(runs) == 1:
            with psycopg.connect(bus.configuration.url, autocommit=True) as connection:
                connection.execute("update commandbus.lease set until = 0")
            late.wait(30)
        return context.fence

    with bus.run_worker(registry, concurrency=2, visibility_timeout=1) as running:
        command_id = bus.send()
        record = bus.wait(command_id, 30)
        late.set()
        assert (record.result, record.crashes) == (runs[1], 1)
        eventually(lambda: running.metrics.leases_lost == 1)
    assert bus.get(command_id).result == runs[1]


def test_connections_without_an_answer_are_critical_and_replaced(runtime: str) -> None:
    """Every connection of the pool leads to nowhere; new ones would do."""
    healing = poisoned(runtime, statement_timeout=0.5, silence_timeout=1.5, poll_interval=0.2)
    assert healing.critical_after is not None
    assert healing.restarts == 1


class Healing(NamedTuple):
    critical_after: float | None
    """Seconds from the moment that nobody answers any more; None when it was well again before."""
    healed_after: float
    restarts: int


def poisoned(runtime: str, **settings: float) -> Healing:
    """A worker with a watchdog, whose connections all lead to nowhere from some moment on."""
    configuration = postgres_configuration()
    name = configuration.url.partition("?")[0].rpartition("/")[2]
    with Proxy(server(os.getpid()).dsn(name, tcp=True)) as proxy:
        bus = Configuration("postgres", proxy.url + "&notify=off").open(runtime)
        registry, done = HandlerRegistry(), []
        registry.register("orders", "ship", lambda command, context: done.append(command.data))
        try:
            with (
                bus.run_worker(registry, **settings) as running,
                WorkerWatchdog(running.worker, check_interval=0.05) as watchdog,
                SyncCommandBus(configuration.url) as sender,
            ):
                health = running.worker.health_status
                bus.send(data=1)
                eventually(lambda: done == [1])
                running.wait_until_idle()  # a claim beside a settle would open a connection that works
                proxy.half_open()
                began, critical_after = time.monotonic(), None
                sender.send("orders", "ship", 2)
                while 2 not in done:
                    # Between two looks it may be critical and restarted, which only that leads to.
                    critical = health.state is HealthState.CRITICAL or watchdog.restarts > 0
                    if critical_after is None and critical:
                        critical_after = time.monotonic() - began
                    assert time.monotonic() - began < 100, "not healed"
                    time.sleep(0.01)
                healed_after = time.monotonic() - began
                eventually(lambda: health.state is HealthState.HEALTHY)
                eventually(lambda: len(sender.list_restarts()) == watchdog.restarts)
                for restart in sender.list_restarts():
                    assert restart.worker == running.worker.name
                    assert "no answer" in restart.reason
                return Healing(critical_after, healed_after, watchdog.restarts)
        finally:
            bus.close()


# Pools for handlers, and a plan that fits the server.


def test_the_pool_for_handlers_has_sound_sizes(url: str) -> None:
    pool = create_pool(url, 4)
    assert pool.closed, "the program opens it, when and where it wants"
    assert (pool.min_size, pool.max_size, pool.timeout) == (4, 8, 30)
    assert (pool.max_lifetime, pool.max_idle, pool.reconnect_timeout) == (3600, 600, 300)
    with pool, pool.connection() as connection:
        assert connection.execute("show statement_timeout").fetchone() == ("25s",)
        assert connection.execute("show enable_seqscan").fetchone() == ("on",)
    with pytest.raises(ConfigurationError, match=r"min_size=2.*concurrency=4"):
        create_pool(url, 4, min_size=2)
    with pytest.raises(ConfigurationError, match="concurrency"):
        create_pool(url, 0)


def test_the_pool_for_handlers_gives_out_no_dead_connection(url: str) -> None:
    with create_pool(url, 3) as pool:
        pool.wait(30)
        with psycopg.connect(url, autocommit=True) as connection:
            ended = connection.execute(
                "select pg_terminate_backend(pid, 5000) from pg_stat_activity"
                " where datname = current_database() and pid <> pg_backend_pid()"
            ).fetchall()
        assert len(ended) >= 3
        for _ in range(3):
            with pool.connection() as handed_out:
                assert handed_out.execute("select 1").fetchone() == (1,)


def test_a_plan_fits_what_the_server_has_left(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute("select current_setting('max_connections')::int").fetchone()
        assert row is not None
        allowed = row[0]
        plan = plan_connections(url, 4)
        assert (plan.concurrency, plan.per_process) == (4, 10)
        assert 0 < plan.available < allowed
        assert f"max_connections {allowed}" in str(plan)
        capped = plan_connections(url, 10_000, processes=2)
        assert 1 <= capped.concurrency < allowed // 2
        assert capped.processes * capped.per_process <= capped.available
        with pytest.raises(ConfigurationError, match=rf"20012.*{allowed} - "):
            plan_connections(url, 10_000, processes=2, strict=True)
        with pytest.raises(ConfigurationError, match="too few connections"):
            plan_connections(url, 1, processes=allowed)
        with pytest.raises(ConfigurationError, match="processes"):
            plan_connections(url, 1, processes=0)


def test_a_limit_of_the_database_counts(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        name = connection.info.dbname
        connection.execute(f"alter database {name} connection limit 12")
        try:
            plan = plan_connections(url, 100)
            assert plan.available <= 12
            assert plan.concurrency <= 6
            assert "this role and database may have" in plan.text
        finally:
            connection.execute(f"alter database {name} connection limit -1")


def test_connections_are_replaced_under_senders(bus: Harness) -> None:
    """A call that waits in a pool that is replaced goes on in the new one."""
    begin = bus.engine.begin_async if bus.runtime == "asyncio" else bus.engine.begin
    size = bus.engine.connections.busy_max // (2 if bus.runtime == "asyncio" else 1)
    held = [bus.call(begin, Demand(size, 5.0)) for _ in range(size)]
    try:
        waiting = bus.spawn(partial(bus.bus.send_many, [SendRequest("orders", "ship")] * 200))
        pool = held[0]._checkout.source
        eventually(lambda: len(pool._queue) == 1)
        bus.engine.replace()
        assert len(waiting.result(30)) == 200
        assert bus.stats().ready == 200
    finally:
        for transaction in held:
            bus.call(transaction.rollback)
    assert bus.engine.connections.busy == 0


def test_connections_of_a_pool_that_are_not_used_are_closed(
    bus: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "IDLE_SECONDS", 0.5)
    begin = bus.engine.begin_async if bus.runtime == "asyncio" else bus.engine.begin
    held = [bus.call(begin, Demand(3, 5.0)) for _ in range(3)]
    pool = held[0]._checkout.source
    for transaction in held:
        bus.call(transaction.rollback)
    assert pool.size == 3
    eventually(lambda: pool.size == 0)
    assert bus.stats().depth == 0
