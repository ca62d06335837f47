"""What each database role can do over PGMQ, and what it is denied; and programs without any rights on
the bus, whose queues it has adopted."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from commandbus import CommandStatus, HandlerRegistry, PermanentCommandError, SendRequest
from commandbus.engines.postgres.pgmq.installation import install
from commandbus.engines.postgres.roles import ROLES, role_named, roles_sql
from commandbus.errors import ConfigurationError
from commandbus.pgmq import QueueMapping
from commandbus.sync import SyncCommandBus, SyncTroubleshootingQueue, SyncWorker
from commandbus.testing.postgres import create_database
from commandbus.testing.waiting import eventually
from tests.postgres.database import server

pytestmark = [pytest.mark.postgres, pytest.mark.pgmq]

QUEUE = "orders__commands"
READ_MESSAGES = f"select message from pgmq.q_{QUEUE}"
READ_ARCHIVE = f"select message from pgmq.a_{QUEUE}"
DELETE_MESSAGES = f"delete from pgmq.q_{QUEUE}"
DELETE_ARCHIVE = f"delete from pgmq.a_{QUEUE}"
HIDE_MESSAGES = f"update pgmq.q_{QUEUE} set vt = 'infinity'"
SEND_MESSAGE = f"insert into pgmq.q_{QUEUE} (vt, message) values (now(), '{{}}')"
MOVE_COMMANDS = "update commandbus.pgmq_message set msg_id = 0"
BIND = "select commandbus.pgmq_bind('other', 5, false)"
ADOPT = "select commandbus.pgmq_adopt('foreign', 'orders', 5, '{}')"
REBIND = "update commandbus.pgmq_queue set domain = 'other'"
CREATE_QUEUE = "select pgmq.create('mine')"
DROP_QUEUE = f"drop table pgmq.q_{QUEUE}"
ADD_TRIGGER = f"alter table pgmq.q_{QUEUE} disable trigger all"

TABLES = [CREATE_QUEUE, DROP_QUEUE, ADD_TRIGGER]
DENIED = {
    "sender": [
        SEND_MESSAGE,
        BIND,
        READ_MESSAGES,
        READ_ARCHIVE,
        DELETE_MESSAGES,
        DELETE_ARCHIVE,
        HIDE_MESSAGES,
        MOVE_COMMANDS,
        ADOPT,
        REBIND,
        *TABLES,
    ],
    "worker": [READ_ARCHIVE, DELETE_ARCHIVE, ADOPT, REBIND, *TABLES],
    "viewer": [
        SEND_MESSAGE,
        DELETE_MESSAGES,
        DELETE_ARCHIVE,
        HIDE_MESSAGES,
        MOVE_COMMANDS,
        BIND,
        ADOPT,
        REBIND,
        *TABLES,
    ],
    "admin": TABLES,
}


@pytest.fixture(scope="module")
def owner() -> str:
    url = create_database(server(os.getpid()))
    install(url)
    with SyncCommandBus(url, transport="pgmq") as bus:
        bus.send("early", "ship")  # its queue is there before the roles are
    with psycopg.connect(url, autocommit=True) as connection:
        for _ in range(2):  # repeating is harmless
            connection.execute(roles_sql("commandbus").encode())
        for role in (*ROLES, "producer"):
            connection.execute(f"drop role if exists pgmq_{role}".encode())
            inside = f"in role {role_named(role, 'commandbus')}" if role in ROLES else ""
            connection.execute(f"create role pgmq_{role} login {inside}".encode())
    with SyncCommandBus(url, transport="pgmq") as bus:
        bus.send("orders", "ship")  # and this one is made later
    return url


@pytest.fixture
def as_role(owner: str) -> dict[str, str]:
    with psycopg.connect(owner, autocommit=True) as connection:
        connection.execute(
            "truncate commandbus.command, commandbus.queue, commandbus.scheduled, commandbus.lease,"
            " commandbus.outcome, commandbus.audit, commandbus.pgmq_message, commandbus.tally,"
            f" pgmq.q_{QUEUE}, pgmq.a_{QUEUE}, pgmq.q_early__commands"
        )
    roles = (*ROLES, "producer")
    return {role: owner.replace("postgres@", f"pgmq_{role}@", 1) for role in roles}


def opened(url: str) -> SyncCommandBus:
    return SyncCommandBus(url, transport="pgmq")


@pytest.mark.parametrize(
    ("role", "statement"),
    [(role, statement) for role, denied in DENIED.items() for statement in denied],
)
def test_a_role_is_denied_what_it_does_not_need(
    as_role: dict[str, str], role: str, statement: str
) -> None:
    with (
        psycopg.connect(as_role[role], autocommit=True) as connection,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        connection.execute(statement.encode())


@pytest.mark.parametrize("domain", ["orders", "early", "fresh_sender"])
def test_a_sender_sends_and_a_worker_works(as_role: dict[str, str], domain: str) -> None:
    done: list[Any] = []
    registry = HandlerRegistry()
    registry.register(domain, "ship", lambda command, context: done.append(command.data))
    with opened(as_role["sender"]) as sender, opened(as_role["worker"]) as bus:
        sender.send(domain, "ship", "one")
        sender.send(domain, "ship", "urgent", priority="high")
        sender.send_many([SendRequest(domain, "ship", n) for n in range(300)])
        with pytest.raises(ConfigurationError, match="may not"):
            SyncWorker(sender, domain).receive(1)
        worker = SyncWorker(bus, domain, registry)
        thread = threading.Thread(target=worker.run, daemon=True)
        thread.start()
        try:
            eventually(lambda: len(done) == 302)
        finally:
            worker.stop()
            thread.join(30)


def test_a_worker_fails_retries_and_takes_back(as_role: dict[str, str]) -> None:
    with opened(as_role["worker"]) as bus:
        sent = bus.send("orders", "ship").command_id
        lost = SyncWorker(bus, "orders", visibility_timeout=0.2)
        assert len(lost.receive(1)) == 1
        taken: list[Any] = []
        worker = SyncWorker(bus, "orders")
        eventually(lambda: taken.extend(worker.receive(1)) or taken)
        worker.fail(taken[0], PermanentCommandError("NO"))
        record = bus.get_command(sent)
        assert record is not None
        assert record.status is CommandStatus.IN_TROUBLESHOOTING_QUEUE


def test_a_worker_creates_the_queue_of_a_domain(as_role: dict[str, str]) -> None:
    with opened(as_role["worker"]) as bus:
        assert SyncWorker(bus, "fresh_worker").receive(1) == []
        bus.send("fresh_worker", "ship")
        assert len(SyncWorker(bus, "fresh_worker").receive(1)) == 1


def test_a_viewer_looks(as_role: dict[str, str], owner: str) -> None:
    with opened(owner) as bus:
        sent = bus.send("orders", "ship").command_id
    with opened(as_role["viewer"]) as bus:
        assert bus.stats("orders").ready == 1
        assert [record.command_id for record in bus.query_commands(domain="orders")] == [sent]
        assert bus.get_audit_trail(sent, domain="orders")
        with pytest.raises(ConfigurationError, match="may not"):
            bus.send("orders", "ship")


def test_an_admin_operates(as_role: dict[str, str]) -> None:
    with opened(as_role["admin"]) as bus:
        parked = bus.send("orders", "ship").command_id
        worker = SyncWorker(bus, "orders")
        (received,) = worker.receive(1)
        worker.fail(received, PermanentCommandError("NO"))
        SyncTroubleshootingQueue(bus).operator_retry(parked)
        bus.cancel(parked)
        record = bus.get_command(parked)
        assert record is not None
        assert record.status is CommandStatus.CANCELED
        bus.pause("orders")
        bus.resume("orders")
        assert bus.purge("orders").gone == 1


@pytest.fixture
def adopted(owner: str) -> Iterator[str]:
    """A queue that a program without rights on the bus sends to, and that the bus has adopted."""
    queue = f"legacy_{uuid4().hex[:8]}"
    with psycopg.connect(owner, autocommit=True) as connection:
        connection.execute("select pgmq.create(%s)", [queue])
        connection.execute("grant usage on schema pgmq to pgmq_producer")
        connection.execute(f"grant insert, select on pgmq.q_{queue} to pgmq_producer".encode())
        with opened(owner) as bus:
            bus.adopt_queue("events", queue, QueueMapping(command_type="seen"))
        yield queue
        connection.execute("delete from commandbus.pgmq_queue where queue = %s", [queue])
        connection.execute("select pgmq.drop_queue(%s)", [queue])


def send_as_producer(url: str, queue: str) -> None:
    with psycopg.connect(url, options="-c lock_timeout=2000 -c statement_timeout=5000") as connection:
        connection.execute("select pgmq.send(%s, '{}'::jsonb)", [queue])


def test_a_producer_without_rights_on_the_bus_sends_to_an_adopted_queue(
    as_role: dict[str, str], adopted: str
) -> None:
    registry = HandlerRegistry()
    registry.register("events", "seen", lambda command, context: None)
    with opened(as_role["worker"]) as bus:
        worker = SyncWorker(bus, "events", registry, poll_interval=60)
        thread = threading.Thread(target=worker.run, daemon=True)
        thread.start()
        try:
            eventually(lambda: bus.engine.store.sleepers.is_asleep("events"))  # type: ignore[attr-defined]
            send_as_producer(as_role["producer"], adopted)
            eventually(lambda: bus.stats("events").completed == 1)
            assert worker.metrics.wakeups["notify"] >= 1
        finally:
            worker.stop()
            thread.join(30)


def broken(connection: psycopg.Connection[Any]) -> None:
    connection.execute("alter function commandbus.wake(text, bigint, text) rename to wake_no_more")


def locked(connection: psycopg.Connection[Any]) -> None:
    connection.execute("select pg_advisory_lock(commandbus.wake_key('events'))")


@pytest.mark.parametrize("harm", [broken, locked])
def test_trouble_of_the_bus_does_not_reach_a_producer(
    as_role: dict[str, str], owner: str, adopted: str, harm: Callable[[Any], None]
) -> None:
    with psycopg.connect(owner, autocommit=True) as connection:
        harm(connection)
        try:
            send_as_producer(as_role["producer"], adopted)
        finally:
            if harm is broken:
                connection.execute(
                    "alter function commandbus.wake_no_more(text, bigint, text) rename to wake"
                )
        assert connection.execute(f"select count(*) from pgmq.q_{adopted}".encode()).fetchone() == (1,)


def test_functions_with_their_owners_rights_look_names_up_in_a_fixed_path(owner: str) -> None:
    with psycopg.connect(owner) as connection:
        rows = connection.execute(
            "select proname, proconfig from pg_proc where prosecdef and proname like 'pgmq%'"
            " and pronamespace = 'commandbus'::regnamespace order by 1"
        ).fetchall()
    path = ["search_path=pg_catalog, pg_temp"]
    assert rows == [("pgmq_bind", path), ("pgmq_tell", path)]


def test_a_role_cannot_bind_a_queue_of_others(as_role: dict[str, str]) -> None:
    """The name of the queue is made from the domain, and a bad domain is refused."""
    with psycopg.connect(as_role["worker"], autocommit=True) as connection:
        for domain in ("x'; drop table commandbus.queue; --", "", "a b", "d" * 64):
            with pytest.raises(psycopg.errors.InvalidParameterValue):
                connection.execute("select commandbus.pgmq_bind(%s, 5, false)", [domain])
