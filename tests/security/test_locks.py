"""A role without rights holds advisory locks; the bus goes on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from commandbus import CommandStatus, HandlerRegistry, SendRequest
from commandbus.engines.postgres.roles import role_named, roles_sql
from commandbus.engines.postgres.schema import upgrade
from commandbus.engines.postgres.statements import PACKAGE
from commandbus.store.sql_files import read_text
from commandbus.sync import SyncCommandBus, SyncWorker
from tests.postgres.database import empty_url
from tests.security.stranger import stranger

pytestmark = pytest.mark.postgres

NAMES = (
    '"commandbus".wake orders',
    '"commandbus".capacity orders',
    '"commandbus".admit orders',
    '"commandbus".pgmq orders',
    "commandbus commandbus",
)
"""Of every advisory lock that the bus has ever waited for or tried."""
SOON = 3.0
"""A statement that waits for a lock is canceled after 25 s."""


@pytest.fixture
def url() -> str:
    return empty_url()


@pytest.fixture(params=["pg_advisory_lock", "pg_advisory_lock_shared"])
def held(request: pytest.FixtureRequest, url: str) -> Iterator[psycopg.Connection[Any]]:
    """All of them are held by a stranger, in an idle session."""
    with stranger(url) as connection:
        for name in NAMES:
            connection.execute(f"select {request.param}(hashtextextended(%s, 0))", [name])
        yield connection


def seconds(action: Callable[[], Any]) -> float:
    began = time.monotonic()
    action()
    return time.monotonic() - began


@contextmanager
def worker(bus: SyncCommandBus) -> Iterator[SyncWorker]:
    registry = HandlerRegistry()
    registry.register("orders", "ship", lambda command, context: None)
    found = SyncWorker(bus, "orders", registry, concurrency=2)
    running = threading.Thread(target=found.run, daemon=True)
    running.start()
    try:
        yield found
    finally:
        found.stop(5)
        running.join(10)


def end_of(bus: SyncCommandBus, command_id: Any) -> CommandStatus:
    return bus.wait(command_id, SOON).status


def test_sends_do_not_wait_for_a_strangers_lock(held: Any, url: str) -> None:
    with SyncCommandBus(url) as bus:
        assert seconds(lambda: bus.send("orders", "ship")) < SOON
        assert seconds(lambda: bus.send("orders", "ship", delay=60)) < SOON
        many = [SendRequest("orders", "ship", n) for n in range(300)]
        assert seconds(lambda: bus.send_many(many)) < SOON
        with psycopg.connect(url) as connection:
            assert (
                seconds(lambda: connection.execute("select commandbus.send('orders', 'ship')")) < SOON
            )
        assert bus.stats("orders").depth == 303


def test_sends_to_a_domain_with_a_capacity_do_not_wait(held: Any, url: str) -> None:
    with SyncCommandBus(url, max_pending=10) as bus:
        assert seconds(lambda: bus.send("orders", "ship")) < SOON


def test_workers_run_commands_beside_a_strangers_lock(held: Any, url: str) -> None:
    with SyncCommandBus(url) as bus, worker(bus), SyncCommandBus(url) as elsewhere:
        for _ in range(3):
            sent = elsewhere.send("orders", "ship").command_id
            assert end_of(bus, sent) is CommandStatus.COMPLETED


def test_groups_and_limits_go_on_beside_a_strangers_lock(held: Any, url: str) -> None:
    with SyncCommandBus(url) as bus, worker(bus):
        bus.set_limit("orders", concurrency=1)
        for sent in [bus.send("orders", "ship", group_key="one") for _ in range(3)]:
            assert end_of(bus, sent.command_id) is CommandStatus.COMPLETED


def test_an_upgrade_does_not_wait_for_a_strangers_lock(held: Any, url: str) -> None:
    assert seconds(lambda: upgrade(url)) < SOON
    assert upgrade(url) == []


def test_a_sleeper_is_woken_though_the_lock_of_its_domain_is_held(url: str) -> None:
    """Senders that do not get the lock notify, whatever they see."""
    with SyncCommandBus(url) as bus, worker(bus), SyncCommandBus(url) as elsewhere:
        eventually_asleep(url)
        with stranger(url) as other:
            other.execute("select pg_advisory_lock(hashtextextended(%s, 0))", [NAMES[0]])
            began = time.monotonic()
            sent = elsewhere.send("orders", "ship").command_id
            assert end_of(bus, sent) is CommandStatus.COMPLETED
            assert time.monotonic() - began < 1.0


def eventually_asleep(url: str) -> None:
    deadline = time.monotonic() + 10
    with psycopg.connect(url, autocommit=True) as connection:
        while connection.execute("select 1 from commandbus.sleeper").fetchone() is None:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_no_statement_of_the_bus_waits_for_an_advisory_lock(url: str) -> None:
    waiting = "pg_advisory_(xact_)?lock(_shared)?\\s*\\("
    with psycopg.connect(url) as connection:
        found = connection.execute(
            "select p.proname from pg_proc p join pg_namespace n on n.oid = p.pronamespace"
            " where n.nspname = 'commandbus' and p.prosrc ~ %s",
            [waiting],
        ).fetchall()
    assert found == []
    for file in (
        "commands.sql",
        "claim.sql",
        "insert.sql",
        "gates.sql",
        "settle.sql",
        "reads.sql",
        "documents.sql",
    ):
        assert "pg_advisory_xact_lock(" not in read_text(PACKAGE, file)


def test_only_senders_and_workers_can_hold_a_mutex(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(roles_sql("commandbus").encode())
        for role, may in (("sender", True), ("worker", True), ("viewer", False)):
            connection.execute(f"set role {role_named(role, 'commandbus')}".encode())
            try:
                connection.execute("select commandbus.lock_capacity('orders')")
            except psycopg.errors.InsufficientPrivilege:
                assert not may, role
            else:
                assert may, role
            connection.execute("reset role")
    with stranger(url) as other, pytest.raises(psycopg.errors.InsufficientPrivilege):
        other.execute("select commandbus.lock_capacity('orders')")


def test_a_sender_makes_no_lock_for_what_is_no_domain(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(roles_sql("commandbus").encode())
        connection.execute(f"set role {role_named('sender', 'commandbus')}".encode())
        for name in ("two words", "x" * 64, "x" * 1_000_000, "", "1"):
            taken = connection.execute("select commandbus.lock_capacity(%s)", [name]).fetchone()
            assert taken == (False,)
        assert connection.execute("select commandbus.lock_capacity('orders')").fetchone() == (True,)
        connection.execute("reset role")
        assert connection.execute("select name from commandbus.mutex").fetchall() == [
            ("capacity orders",)
        ]


def test_a_mutex_is_held_by_one_at_a_time(url: str) -> None:
    name = "capacity race"
    inside, worst = [0], [0]

    def enter(_: int) -> None:
        with psycopg.connect(url) as connection:
            connection.execute("select commandbus.lock_mutex(%s, true)", [name])
            inside[0] += 1
            worst[0] = max(worst[0], inside[0])
            time.sleep(0.005)
            inside[0] -= 1

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(enter, range(16)))
    assert worst == [1]
    with psycopg.connect(url) as one, psycopg.connect(url) as other:
        one.execute("select commandbus.lock_mutex(%s, true)", [name])
        assert other.execute("select commandbus.lock_mutex(%s, false)", [name]).fetchone() == (False,)
        one.rollback()
        assert other.execute("select commandbus.lock_mutex(%s, false)", [name]).fetchone() == (True,)
