"""The role `sender` adds commands by checked functions, and can do nothing else."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from commandbus import CommandBus, DuplicateCommandError, QueueFull, SendRequest
from commandbus.engines.postgres.insert_query import COMMANDS
from commandbus.engines.postgres.roles import ROLES, role_named, roles_sql
from commandbus.engines.postgres.schema import upgrade
from commandbus.errors import CommandBusError, ConfigurationError, RateLimited
from commandbus.sync import SyncCommandBus, SyncProcessManager, SyncWorker
from commandbus.testing.postgres import create_database
from commandbus.testing.sagas import BookTrip, Trip
from tests.postgres.database import server
from tests.support.statements import made

pytestmark = pytest.mark.postgres

DOMAIN = "orders"
NAMES = {role: f"security_{role}" for role in ROLES}

DENIED = {
    "replay an ended command": "insert into commandbus.queue (domain, priority, seq, available_at)"
    " select 'orders', 5, 1, 0",
    "schedule an ended command": "insert into commandbus.scheduled (domain, due_at, seq, priority)"
    " values ('orders', 0, 1, 5)",
    "write a row past the checks": "insert into commandbus.command (command_id, domain, command_type,"
    " data, correlation_id, priority, created_at, due_at)"
    " values (gen_random_uuid(), 'orders', 'x', 'no json', gen_random_uuid(), 5, 0, 0)",
    "free another's unique key": "delete from commandbus.unique_key",
    "take a unique key": "insert into commandbus.unique_key values ('orders', 'k', 1)",
    "read unique keys": "select * from commandbus.unique_key",
    "read ids": "select command_id from commandbus.command",
    "read what waits": "select * from commandbus.queue",
    "make a paused domain": "insert into commandbus.domain (domain, paused_at) values ('x', 1)",
    "read domains": "select * from commandbus.domain",
    "take a domain's gates away": "update commandbus.domain set gated = false",
    "fill a bucket": "update commandbus.bucket set full_at = 0",
    "hold a command back": "insert into commandbus.held (domain, gate, priority, seq, available_at)"
    " values ('orders', 'd', 5, 1, 0)",
    "draw sequences": "select nextval('commandbus.command_seq_seq')",
    "add without checks": "select commandbus.add_plain(gen_random_uuid(), 'orders', 'x', '', 5, '',"
    " true)",
    "let commands pass": "select commandbus.admit('orders', true, 1, '', true, null)",
    "wake workers": "select commandbus.wake('orders', 0, '')",
    "mark a domain": "select commandbus.mark_gated('orders', null)",
    "read documents": "select * from commandbus.document",
    "read processes": "select * from commandbus.process",
    "hold a lock of workers": "select commandbus.lock_mutex('admit orders', true)",
}


@pytest.fixture(scope="module")
def owner() -> str:
    url = create_database(server(os.getpid()))
    upgrade(url)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(roles_sql("commandbus").encode())
        for role, name in [*NAMES.items(), (None, "security_stranger")]:
            connection.execute(f"drop role if exists {name}".encode())
            within = f" in role {role_named(role, 'commandbus')}" if role else ""
            connection.execute(f"create role {name} login{within}".encode())
        connection.execute("grant usage on schema commandbus to security_stranger")
        connection.execute("create schema evil authorization security_sender")
    return url


@pytest.fixture
def sender(owner: str) -> Iterator[str]:
    yield owner.replace("postgres@", f"{NAMES['sender']}@", 1)
    with SyncCommandBus(owner) as bus:
        bus.purge(None)


@pytest.mark.parametrize("statement", DENIED.values(), ids=DENIED.keys())
def test_a_sender_is_denied_everything_else(sender: str, statement: str) -> None:
    with (
        psycopg.connect(sender, autocommit=True) as connection,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        connection.execute(statement.encode())


def test_a_sender_can_execute_no_function_but_those_that_send(sender: str) -> None:
    allowed = "select proname from pg_proc where pronamespace = 'commandbus'::regnamespace"
    with psycopg.connect(sender) as connection:
        rows = connection.execute(f"{allowed} and has_function_privilege(oid, 'execute')").fetchall()
    assert {row[0] for row in rows} == {
        "send", "send_commands", "send_plain", "holders_of", "known_among", "pending_in", "bucket_of",
        "drain_bucket", "lock_capacity",
    }  # fmt: skip


@pytest.mark.parametrize("who", ["security_stranger", NAMES["viewer"]])
def test_no_other_role_can_send(owner: str, sender: str, who: str) -> None:
    url = owner.replace("postgres@", f"{who}@", 1)
    for function in ("send('orders', 'x')", "pending_in('orders', 1)", "holders_of('{}', '{}')"):
        with (
            psycopg.connect(url) as connection,
            pytest.raises(psycopg.errors.InsufficientPrivilege, match="permission denied for function"),
        ):
            connection.execute(f"select commandbus.{function}".encode())


@pytest.mark.parametrize("options", [{}, {"reply_to": "replies"}, {"unique_key": "k"}])
def test_a_row_that_is_put_back_for_an_ended_command_runs_nothing(
    owner: str, sender: str, options: dict[str, Any]
) -> None:
    with SyncCommandBus(owner) as bus:
        worker = SyncWorker(bus, DOMAIN)
        sent = bus.send(DOMAIN, "ship", **options).command_id
        worker.complete(worker.receive()[0], "once")
        with psycopg.connect(owner) as connection:
            connection.execute(
                "insert into commandbus.queue (domain, priority, seq, available_at)"
                " select 'orders', 5, max(seq), 0 from commandbus.outcome"
            )
        other = bus.send(DOMAIN, "ship").command_id
        trail = bus.get_audit_trail(sent)
        assert [received.command.command_id for received in worker.receive(10)] == [other]
        assert worker.receive(10) == []
        assert bus.get_audit_trail(sent) == trail
        assert bus.stats("replies").depth == ("reply_to" in options)
        record = bus.get_command(sent, domain=DOMAIN)
        assert record is not None
        assert (record.status, record.result, record.attempts) == ("COMPLETED", "once", 1)


def test_a_worker_cannot_cancel_a_process_as_operators_do(owner: str, sender: str) -> None:
    url = owner.replace("postgres@", f"{NAMES['worker']}@", 1)
    with SyncCommandBus(owner) as bus, SyncCommandBus(url) as worker:
        process_id = SyncProcessManager(bus, BookTrip).start(Trip())
        for forger in (worker, worker.acting("ann")):
            with pytest.raises(ConfigurationError, match="may not"):
                forger.cancel_process(process_id, "forged")
            with pytest.raises(ConfigurationError, match="may not"):
                forger.end_process(process_id, "forged")
        assert bus.stats("book_trip.replies").depth == 0


def test_every_function_with_the_owners_rights_has_a_fixed_search_path(owner: str) -> None:
    with psycopg.connect(owner) as connection:
        rows = connection.execute(
            "select proname, proconfig from pg_proc"
            " where pronamespace = 'commandbus'::regnamespace and prosecdef"
        ).fetchall()
    assert len(rows) >= 7
    assert {tuple(config or ()) for _, config in rows} == {("search_path=pg_catalog, pg_temp",)}


def test_objects_of_a_sender_take_no_part_in_its_sends(sender: str, owner: str) -> None:
    with psycopg.connect(sender, autocommit=True) as connection:
        connection.execute("create table if not exists evil.caught (who text)")
        for name, kind in (("octet_length", "text"), ("length", "text"), ("abs", "numeric")):
            connection.execute(
                f"create or replace function evil.{name}({kind}) returns integer language plpgsql as"
                " $$ begin insert into evil.caught values (current_user); return 0; end $$".encode()
            )
        connection.execute("create temp table queue (domain text)")
        connection.execute("set search_path = pg_temp, evil, pg_catalog")
        connection.execute("select commandbus.send('orders', 'x', '1e5', unique_key => 'k')")
        assert connection.execute("select * from evil.caught").fetchall() == []
        assert connection.execute("select * from pg_temp.queue").fetchall() == []
    with SyncCommandBus(owner) as bus:
        assert bus.stats(DOMAIN).ready == 1


BAD = {
    "a name": {"domain": "{two words}"},
    "a reserved type": {"command_type": "{commandbus.reply}"},
    "data that is no JSON": {"data": "{no json}"},
    "a number that no double holds": {"data": "{1e999}"},
    "data that is too deep": {"data": "{" + "[" * 65 + "]" * 65 + "}"},
    "no data": {"data": "{}"},
    "a priority": {"priority": "{40000}"},
    "a delay": {"delay": "{9000000000000000000}"},
    "a due time": {"due_at": "{9000000000000000000}"},
    "tags": {"tags": "{7}"},
    "headers": {"headers": "{7}"},
    "a batch": {"batch_id": "{00000000-0000-7000-8000-000000000000}"},
    "required tags": {"requires": '{"a,,b"}'},
    "an origin": {"origin": "orders x 999"},
}


@pytest.mark.parametrize("changed", BAD.values(), ids=BAD.keys())
def test_the_function_behind_the_client_checks_what_the_client_checks(
    sender: str, owner: str, changed: dict[str, str]
) -> None:
    values: dict[str, Any] = dict.fromkeys(COMMANDS.names, "{}")
    values |= {"command_id": f"{{{uuid4()}}}", "domain": "{orders}", "command_type": "{x}"}
    values |= {"data": "{1}", "priority": "{5}", "origin": "abc", "notify": True}
    sql = made()["limited insert_commands"]
    with psycopg.connect(sender, autocommit=True, cursor_factory=psycopg.RawCursor) as connection:
        connection.execute(sql.encode(), list(values.values()))
        values |= changed | {"command_id": f"{{{uuid4()}}}"}
        with pytest.raises(psycopg.errors.InvalidParameterValue):
            connection.execute(sql.encode(), list(values.values()))
    with SyncCommandBus(owner) as bus:
        assert len(bus.query_commands()) == 1


def test_a_sender_sends_single_commands_with_every_option(sender: str, owner: str) -> None:
    with SyncCommandBus(sender) as bus:
        first = bus.send(
            DOMAIN, "ship", {"n": 1}, unique_key="a", group_key="g", tags=["x"], headers={"h": 1},
            reply_to="replies", priority="high", max_attempts=7, correlation_id=uuid4(),
        )  # fmt: skip
        assert not first.duplicate
        again = bus.send(DOMAIN, "ship", unique_key="a")
        assert (again.duplicate, again.command_id) == (True, first.command_id)
        with pytest.raises(DuplicateCommandError):
            bus.send(DOMAIN, "ship", command_id=first.command_id)
        bus.send(DOMAIN, "ship", delay=60)
        bus.send(DOMAIN, "ship", requires=["gpu"])
    with SyncCommandBus(owner) as bus:
        record = bus.get_command(first.command_id, domain=DOMAIN)
        assert record is not None
        assert (record.data, record.group_key, record.tags) == ({"n": 1}, "g", ("x",))
        assert (record.headers, record.priority, record.max_attempts) == ({"h": 1}, 0, 7)
        assert bus.stats(DOMAIN).depth == 3


def test_a_sender_sends_ten_thousand_at_once_with_keys_and_without(sender: str, owner: str) -> None:
    with SyncCommandBus(sender) as bus:
        results = bus.send_many([SendRequest(DOMAIN, "ship", {"n": n}) for n in range(10_000)])
        assert len({result.command_id for result in results}) == 10_000
        keyed = [SendRequest(DOMAIN, "ship", n, unique_key=str(n % 500)) for n in range(1_000)]
        assert sum(result.duplicate for result in bus.send_many(keyed)) == 500
    with SyncCommandBus(owner) as bus:
        assert bus.stats(DOMAIN).ready == 10_500
        taken = SyncWorker(bus, DOMAIN).receive(3)
        assert [received.command.data for received in taken] == [{"n": 0}, {"n": 1}, {"n": 2}]


def test_a_bulk_of_a_sender_is_all_or_nothing(sender: str, owner: str) -> None:
    with SyncCommandBus(sender) as bus:
        known = bus.send(DOMAIN, "ship").command_id
        requests = [SendRequest(DOMAIN, "ship", command_id=i) for i in (uuid4(), known)]
        with pytest.raises(DuplicateCommandError, match=str(known)):
            bus.send_many(requests)
    with SyncCommandBus(owner) as bus:
        assert len(bus.query_commands()) == 1


def test_a_capacity_holds_for_a_sender(sender: str) -> None:
    with SyncCommandBus(sender, max_pending=2) as bus:
        bus.send_many([SendRequest(DOMAIN, "ship"), SendRequest(DOMAIN, "ship", unique_key="k")])
        with pytest.raises(QueueFull):
            bus.send(DOMAIN, "ship")
        assert bus.send(DOMAIN, "ship", unique_key="k").duplicate


def test_a_rate_per_sender_holds_for_a_sender(sender: str, owner: str) -> None:
    with SyncCommandBus(owner) as bus:
        bus.set_limit(DOMAIN, per_sender=True, rate=1, per=3600, burst=1)
    with SyncCommandBus(sender) as bus:
        bus.send(DOMAIN, "ship", sender="ann")
        with pytest.raises(RateLimited):
            bus.send(DOMAIN, "ship", sender="ann")
        bus.send(DOMAIN, "ship", sender="bob")
    with psycopg.connect(sender, autocommit=True) as connection:
        connection.execute("select commandbus.drain_bucket('orders', 'ann', 0)")
    with SyncCommandBus(sender) as bus, pytest.raises(RateLimited):
        bus.send(DOMAIN, "ship", sender="ann")


def test_a_sender_takes_no_more_than_a_whole_bucket_from_another(sender: str, owner: str) -> None:
    with SyncCommandBus(owner) as bus:
        bus.set_limit(DOMAIN, per_sender=True, rate=2, per=60, burst=4)
    with SyncCommandBus(sender) as bus:
        bus.send(DOMAIN, "ship", sender="bob")
        with psycopg.connect(sender, autocommit=True) as connection:
            connection.execute("select commandbus.drain_bucket('orders', 'bob', 9223372036854775807)")
        with pytest.raises(RateLimited) as refused:
            bus.send(DOMAIN, "ship", sender="bob")
    assert refused.value.retry_after <= 30


def test_a_sender_sends_within_its_own_transaction(sender: str, owner: str) -> None:
    with SyncCommandBus(sender) as bus:
        for end in ("rollback", "commit"):
            with psycopg.connect(sender) as connection:
                bus.within(connection).send(DOMAIN, "ship", unique_key="k")
                bus.within(connection).send_many([SendRequest(DOMAIN, "ship")] * 200)
                getattr(connection, end)()
    with SyncCommandBus(owner) as bus:
        assert bus.stats(DOMAIN).ready == 201


async def test_an_asyncio_sender_sends_and_wakes_a_worker(sender: str, owner: str) -> None:
    async with CommandBus(owner) as workers, CommandBus(sender) as bus:
        sent = await bus.send(DOMAIN, "ship")
        await bus.send_many([SendRequest(DOMAIN, "ship", n) for n in range(3)])
        record = await workers.get_command(sent.command_id, domain=DOMAIN)
        assert record is not None
        assert record.status == "PENDING"


def test_what_a_sender_may_not_is_refused_with_a_reason(sender: str) -> None:
    with SyncCommandBus(sender) as bus:
        sent = bus.send(DOMAIN, "ship").command_id
        refused: list[Any] = [
            lambda: bus.get_command(sent, domain=DOMAIN),
            lambda: bus.query_commands(),
            lambda: bus.cancel(sent),
            lambda: bus.pause(DOMAIN),
            lambda: SyncWorker(bus, DOMAIN).receive(1),
        ]
        for attempt in refused:
            with pytest.raises(ConfigurationError, match="may not"):
                attempt()
        with pytest.raises(CommandBusError, match="reserved"):
            bus.send(DOMAIN, "commandbus.control")
