"""What each database role can do, and what it is denied."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from commandbus import (
    CommandStatus,
    DuplicateCommandError,
    HandlerRegistry,
    PermanentCommandError,
    RetryPolicy,
    Schedule,
    SendRequest,
)
from commandbus.engines.postgres.insert_query import functions
from commandbus.engines.postgres.receipts import MEMBERS_MIN
from commandbus.engines.postgres.roles import ROLES, role_named, roles_sql
from commandbus.engines.postgres.schema import upgrade
from commandbus.errors import ConfigurationError
from commandbus.operations.declaring import DeclareReport
from commandbus.processes import Process, step
from commandbus.records import AuditEvent
from commandbus.services.declarer import AGAIN, REFUSED_AGAIN, Declarer
from commandbus.sync import (
    SyncCommandBus,
    SyncProcessManager,
    SyncProcessReplyRouter,
    SyncTroubleshootingQueue,
    SyncWorker,
)
from commandbus.testing.postgres import create_database
from commandbus.testing.waiting import eventually
from tests.postgres.database import aging, server
from tests.support.working import DOMAIN, working

pytestmark = pytest.mark.postgres

READ_PAYLOADS = "select data from commandbus.command"
SEND = "select commandbus.send('orders', 'ship', '{}')"
TAKE = "delete from commandbus.queue"
END = "insert into commandbus.outcome (seq) values (1)"
PAUSE = "update commandbus.domain set paused_at = 1"
REWRITE_AUDIT = "update commandbus.audit set at = 0"
FORGET_AUDIT = "delete from commandbus.audit"
FORGET_COMMANDS = "delete from commandbus.command"
CHANGE_PAYLOADS = "update commandbus.command set data = '{}'"
CHANGE_OUTCOMES = "update commandbus.outcome set status = 'COMPLETED'"
CHANGE_RECEIPTS = "update commandbus.receipt set members = 0"
FORGET_RECEIPTS = "delete from commandbus.receipt"
TAKE_RECEIPTS = "select * from commandbus.take_receipts(array[1]::bigint[])"
READ_RECEIPTS = "select ran from commandbus.receipt"
READ_ENDED = "select * from commandbus.ended"
CHANGE_TABLES = "alter table commandbus.queue add column x int"
DROP = "drop table commandbus.queue"
CREATE = "create table commandbus.mine (x int)"
FAKE_MIGRATION = "update commandbus.migration set checksum = ''"
READ_AUDIT = "select * from commandbus.audit"
READ_OUTCOMES = "select result from commandbus.outcome"
STAY_A_LEASE = "update commandbus.lease set until = 0"

TABLES = [CHANGE_TABLES, DROP, CREATE, FAKE_MIGRATION]
HISTORY = [
    REWRITE_AUDIT, FORGET_AUDIT, FORGET_COMMANDS, CHANGE_PAYLOADS, CHANGE_OUTCOMES, CHANGE_RECEIPTS,
    FORGET_RECEIPTS, TAKE_RECEIPTS,
]  # fmt: skip
DENIED = {
    "sender": [
        READ_PAYLOADS,
        READ_AUDIT,
        READ_OUTCOMES,
        READ_RECEIPTS,
        READ_ENDED,
        TAKE,
        END,
        PAUSE,
        STAY_A_LEASE,
        *HISTORY,
        *TABLES,
    ],
    "worker": [PAUSE, *HISTORY, *TABLES],
    "viewer": [SEND, TAKE, END, PAUSE, STAY_A_LEASE, *HISTORY, *TABLES],
    "admin": TABLES,
}


@pytest.fixture(scope="module")
def owner() -> str:
    url = create_database(server(os.getpid()))
    upgrade(url)
    with psycopg.connect(url, autocommit=True) as connection:
        for _ in range(2):  # repeating is harmless
            connection.execute(roles_sql("commandbus").encode())
        for role in ROLES:
            connection.execute(f"drop role if exists test_{role}".encode())
            connection.execute(
                f"create role test_{role} login in role {role_named(role, 'commandbus')}".encode()
            )
    return url


@pytest.fixture
def as_role(owner: str) -> Iterator[dict[str, str]]:
    yield {role: owner.replace("postgres@", f"test_{role}@", 1) for role in ROLES}
    with psycopg.connect(owner, autocommit=True) as connection:
        connection.execute(
            "truncate commandbus.command, commandbus.queue, commandbus.scheduled, commandbus.lease,"
            " commandbus.outcome, commandbus.receipt, commandbus.audit, commandbus.unique_key"
        )


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


def test_a_sender_sends_in_every_way(as_role: dict[str, str], owner: str) -> None:
    with SyncCommandBus(as_role["sender"]) as bus:
        sent = bus.send(DOMAIN, "ship", {"n": 1}, unique_key="a").command_id
        assert bus.send(DOMAIN, "ship", unique_key="a").command_id == sent
        with pytest.raises(DuplicateCommandError):
            bus.send(DOMAIN, "ship", command_id=sent)
        bus.send(DOMAIN, "ship", delay=5)
        for count in (3, 300):
            bus.send_many([SendRequest(DOMAIN, "ship") for _ in range(count)])
        with pytest.raises(ConfigurationError, match="may not"):
            bus.get_command(sent, domain=DOMAIN)
        with pytest.raises(ConfigurationError, match="may not"):
            SyncWorker(bus, DOMAIN).receive(1)
    with SyncCommandBus(owner) as bus:
        assert bus.stats(DOMAIN).depth == 305


def test_an_upgrade_leaves_one_form_of_the_function_that_sends_and_the_right_to_use_it(
    as_role: dict[str, str], owner: str
) -> None:
    """As after a version whose commands had one column less, before roles are granted again."""
    forms = "select oid::regprocedure::text from pg_proc where proname = 'send_commands'"
    with psycopg.connect(owner, autocommit=True) as connection:
        [(current,)] = connection.execute(forms).fetchall()
        older = current.replace("text,", "", 1)
        columns = (
            "returns table (added bigint, wait bigint) language sql as 'select 1::bigint, 2::bigint'"
        )
        connection.execute(f"create function {older} {columns}".encode())
        connection.execute(f"revoke all on function {older} from public".encode())
        sender = role_named("sender", "commandbus")
        connection.execute(f"grant execute on function {older} to {sender}".encode())
        connection.execute(f"drop function {current}".encode())
        for _ in range(2):  # repeating is harmless
            connection.execute(functions("commandbus").encode())
            assert connection.execute(forms).fetchall() == [(current,)]
        right = "select has_function_privilege(%s, %s, 'execute')"
        rights = [
            connection.execute(right, (who, current)).fetchone()
            for who in ("test_sender", "test_viewer")
        ]
        assert rights == [(True,), (False,)]
        with SyncCommandBus(as_role["sender"]) as bus:
            bus.send_many([SendRequest(DOMAIN, "ship") for _ in range(3)])
        connection.execute(roles_sql("commandbus").encode())


@pytest.mark.parametrize("runtime", ["asyncio", "threads"])
def test_a_worker_works_and_sends(as_role: dict[str, str], runtime: str) -> None:
    failed: set[object] = set()

    def fail_once(command: object, context: object) -> None:
        if command.command_id not in failed:  # type: ignore[attr-defined]
            failed.add(command.command_id)  # type: ignore[attr-defined]
            raise ValueError("once")

    with (
        SyncCommandBus(as_role["sender"]) as bus,
        working(
            as_role["worker"],
            runtime,
            fail_once,
            visibility_timeout=1.0,
            retry_policy=RetryPolicy(3, [0.2]),
        ) as done,
    ):
        ids = [bus.send(DOMAIN, "ship", unique_key=f"{n}").command_id for n in range(5)]
        assert eventually(lambda: done.has(ids), 20)
        with SyncCommandBus(as_role["viewer"]) as viewer:
            eventually(
                lambda: all(
                    viewer.get_command(i, domain=DOMAIN).status is CommandStatus.COMPLETED  # type: ignore[union-attr]
                    for i in ids
                )
            )


def test_receipts_are_written_by_a_worker_and_read_by_a_viewer(
    as_role: dict[str, str], owner: str
) -> None:
    done: list[object] = []
    registry = HandlerRegistry()
    registry.register(DOMAIN, "ship", lambda command, context: done.append(command.data))
    count = 4 * MEMBERS_MIN
    with SyncCommandBus(as_role["sender"]) as bus:
        sent = bus.send_many([SendRequest(DOMAIN, "ship", n, headers={"n": n}) for n in range(count)])
    with SyncCommandBus(as_role["worker"]) as bus:
        SyncWorker(bus, registry, concurrency=count).run(until_idle=True)
    assert sorted(done) == list(range(count))  # type: ignore[type-var]
    with psycopg.connect(as_role["viewer"]) as connection:
        members = connection.execute("select sum(members) from commandbus.receipt").fetchone()
        ended = connection.execute("select count(*) from commandbus.ended").fetchone()
    assert members is not None
    assert members[0] >= MEMBERS_MIN
    assert ended == (count,)
    with SyncCommandBus(as_role["viewer"]) as viewer:
        listed = viewer.query_commands(domain=DOMAIN, status="COMPLETED", limit=1_000)
        assert len(listed) == count
        assert viewer.wait(sent[7], 5).status is CommandStatus.COMPLETED
        assert [event.event_type for event in viewer.get_audit_trail(sent[7].command_id)] == [
            "SENT", "RECEIVED", "COMPLETED"
        ]  # fmt: skip
        with pytest.raises(ConfigurationError, match="may not"):
            viewer.prune({"COMPLETED": 1})
    with SyncCommandBus(as_role["worker"]) as bus, pytest.raises(ConfigurationError, match="may not"):
        bus.prune({"COMPLETED": 1})
    with SyncCommandBus(as_role["admin"]) as bus:
        assert bus.acting("ann").erase(headers={"n": "7"}, reason="asked").erased == 1
        aging(owner)(3_600)
        assert bus.prune({"COMPLETED": 60}).gone == count


def test_the_services_of_a_worker_have_the_rights_that_they_need(
    as_role: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """All but retention, which deletes what was sent."""
    caplog.set_level("WARNING", "commandbus.services")
    with SyncCommandBus(as_role["admin"]) as admin, working(as_role["worker"]) as done:
        admin.put_schedule(Schedule(name="often", domain=DOMAIN, command_type="ship", every=1))
        batch_id = admin.create_batch([SendRequest(DOMAIN, "ship")] * 3).batch_id
        eventually(lambda: len(done.runs) >= 5 and admin.list_workers(), 20)
        eventually(lambda: admin.get_batch(batch_id).completed_at, 20)  # type: ignore[union-attr]
        admin.delete_schedule("often")
    assert "failed, trying again" not in caplog.text


def test_operator_actions_are_for_admins_and_declarations_for_workers(as_role: dict[str, str]) -> None:
    registry = HandlerRegistry("declared")

    @registry.schedule(name="hourly", every=3600)
    @registry.command(concurrency=2)
    def ship() -> None: ...

    with SyncCommandBus(as_role["admin"]) as admin, SyncCommandBus(as_role["worker"]) as worker:
        with pytest.raises(ConfigurationError, match="limit_rule"):
            worker.declare(registry)
        assert len(admin.declare(registry).created) == 2
        assert worker.declare(registry) == DeclareReport()
        sent = worker.send(ship())
        with pytest.raises(ConfigurationError, match="role may not"):
            worker.cancel(sent)
        assert admin.cancel(sent) == "CANCELED"
        admin.delete_schedule("hourly")
        admin.clear_limit("declared", command_type="ship")


def test_a_declared_limit_that_a_worker_may_not_set_holds_nothing_else_back(
    as_role: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    registry = HandlerRegistry(DOMAIN)

    @registry.schedule(name="limited-often", every=1)
    @registry.command(concurrency=2, rate="90/m")
    def ship() -> None: ...

    @registry.schedule(name="limited-hourly", every=3600)
    @registry.command(concurrency=3)
    def pack() -> None: ...

    caplog.set_level("WARNING", "commandbus")
    with SyncCommandBus(as_role["admin"]) as admin, SyncCommandBus(as_role["worker"]) as bus:
        worker = SyncWorker(bus, DOMAIN, registry)
        thread = threading.Thread(target=worker.run, daemon=True)
        thread.start()
        try:
            eventually(lambda: admin.get_schedule("limited-hourly"), 20)
            eventually(lambda: len(admin.query_commands(domain=DOMAIN, status="COMPLETED")) >= 3, 20)
        finally:
            worker.stop(5)
            thread.join(30)
        assert list(admin.list_limits(DOMAIN)) == []
        ship_refused, pack_refused = caplog.messages
        for name, line in (("ship", ship_refused), ("pack", pack_refused)):
            assert line.startswith(f"limit/{DOMAIN}/t:{name} is declared and not in force: ")
            assert "(permission denied for table limit_rule)" in line
            assert "with a login of the role admin, by bus.declare(registry)" in line
        command = ship_refused.split("`")[-2]
        assert command.startswith(
            f"commandbus limit set {DOMAIN} --type ship --concurrency 2 --rate 1.5"
        )
        admin.delete_schedule("limited-often")
        admin.delete_schedule("limited-hourly")


def test_a_refused_declaration_is_tried_again_and_reported_once(
    as_role: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    registry = HandlerRegistry("again")
    registry.register("again", "ship", lambda command, context: None, concurrency=2)
    declarer = Declarer(registry)
    with SyncCommandBus(as_role["admin"]) as admin, SyncCommandBus(as_role["worker"]) as worker:

        def declare(bus: SyncCommandBus) -> float:
            while (seconds := bus.engine.reserved_session.run(declarer.work(bus.scope))) == 0:
                declarer.confirm()
            declarer.confirm()
            return seconds

        assert [declare(worker), declare(worker)] == [REFUSED_AGAIN] * 2
        assert len(caplog.messages) == 1
        assert declare(admin) == AGAIN
        assert [one.concurrency for one in admin.list_limits("again")] == [2]
        admin.clear_limit("again", command_type="ship")


class Late(Process[dict[str, Any]]):
    @step(timeout=0.1)
    def ship(self, state: dict[str, Any]) -> SendRequest:
        return SendRequest(DOMAIN, "ship")


def asked(trail: list[AuditEvent]) -> list[AuditEvent]:
    return [event for event in trail if event.event_type == "CANCEL_REQUESTED"]


@pytest.mark.parametrize("operator_asked", [False, True])
def test_a_router_with_the_role_worker_asks_a_late_step_to_stop(
    as_role: dict[str, str], operator_asked: bool
) -> None:
    with SyncCommandBus(as_role["worker"]) as bus:
        SyncProcessManager(bus, Late).start({})
        (received,) = SyncWorker(bus, DOMAIN).receive(1)
        command_id = received.command.command_id
        if operator_asked:
            with SyncCommandBus(as_role["admin"]) as admin:
                admin.acting("ann").cancel(command_id)
        with SyncProcessReplyRouter(bus, Late, timer_interval=0.1):
            eventually(lambda: len(asked(bus.get_audit_trail(command_id))) == 1 + operator_asked)
        trail = asked(bus.get_audit_trail(command_id))
    assert trail[-1].details["by"] == "its process"


def test_an_abandoned_lease_is_taken_back_by_a_worker_role(as_role: dict[str, str]) -> None:
    with SyncCommandBus(as_role["worker"]) as bus:
        bus.send(DOMAIN, "ship")
        lost = SyncWorker(bus, DOMAIN, visibility_timeout=0.2)
        assert len(lost.receive(1)) == 1
        eventually(lambda: lost.receive(1))


def test_a_viewer_looks(as_role: dict[str, str]) -> None:
    with SyncCommandBus(as_role["admin"]) as admin:
        sent = admin.send(DOMAIN, "ship").command_id
    with SyncCommandBus(as_role["viewer"]) as bus:
        assert bus.stats(DOMAIN).ready == 1
        assert [record.command_id for record in bus.query_commands(domain=DOMAIN)] == [sent]
        assert bus.get_audit_trail(sent, domain=DOMAIN)
        with pytest.raises(ConfigurationError, match="may not"):
            bus.send(DOMAIN, "ship")


def test_an_admin_operates(as_role: dict[str, str]) -> None:
    with SyncCommandBus(as_role["admin"]) as bus:
        parked = bus.send(DOMAIN, "ship").command_id
        worker = SyncWorker(bus, DOMAIN)
        (received,) = worker.receive(1)
        worker.fail(received, PermanentCommandError("NO"))
        SyncTroubleshootingQueue(bus).operator_retry(parked)
        record = bus.get_command(parked, domain=DOMAIN)
        assert record is not None
        assert record.status is CommandStatus.PENDING
        bus.pause(DOMAIN)
        bus.resume(DOMAIN)
