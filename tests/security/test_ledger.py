"""The record of what operators did: no worker writes it, and tampering is found."""

from __future__ import annotations

import os
import threading
from typing import Any

import psycopg
import pytest

from commandbus import CommandStatus, HandlerRegistry
from commandbus.domain.lifecycle import Cancellation
from commandbus.engines.postgres.roles import ROLES, role_named, roles_sql
from commandbus.engines.postgres.schema import upgrade
from commandbus.errors import ConfigurationError
from commandbus.operations import ledger
from commandbus.services.linker import SWEEP, Linker
from commandbus.sync import SyncCommandBus, SyncTroubleshootingQueue, SyncWorker
from commandbus.testing.postgres import create_database
from commandbus.testing.waiting import eventually
from tests.postgres.database import server

pytestmark = pytest.mark.postgres

KEY = "a key of thirty-two characters, or more"


@pytest.fixture
def owner() -> str:
    url = create_database(server(os.getpid()))
    upgrade(url)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(roles_sql("commandbus").encode())
        for role in ROLES:
            connection.execute(f"drop role if exists test_{role}".encode())
            connection.execute(
                f"create role test_{role} login in role {role_named(role, 'commandbus')}".encode()
            )
    return url


def acting_as(owner: str, role: str) -> str:
    return owner.replace("postgres@", f"test_{role}@", 1)


def some_actions(url: str, **settings: Any) -> None:
    with SyncCommandBus(url, **settings) as bus:
        bus.acting("ann").pause("bank", "closed")
        bus.acting("ben").resume("bank")
        sent = bus.send("bank", "pay").command_id
        bus.acting("cid").cancel(sent, reason="not any more")


ADD_DOCUMENT = "insert into commandbus.document (kind, key, version, status, body) values "
ADD_ENTRY = "insert into commandbus.audit (seq, kind, at, details) values "
FORGERIES = [
    ADD_DOCUMENT + "('action', 'x', 1, 'pause', '{}')",
    ADD_DOCUMENT + "('ledger', '0000000000000099', 1, '', '{}')",
    ADD_DOCUMENT + "('ledger.open', 'x', 1, '', '{}')",
    ADD_DOCUMENT + """('cancellation', 'bank x', 1, 'asked', '{"request":{"actor":"ann"}}')""",
    ADD_ENTRY + """(1, 'OPERATOR_COMPLETE', 1, '{"actor":"ann"}')""",
    ADD_ENTRY + """(1, 'CANCELED', 1, '{"reason":"x","actor":"ann"}')""",
    ADD_ENTRY + """(1, 'CANCELED', 1, '{"reason":"x", "\\u0061ctor":"ann"}')""",
    ADD_DOCUMENT + """('worker.request', 'w-1', 1, 'STOPPING', '{"stop":{"actor":"ann"}}')""",
    "update commandbus.ledger_mark set number = 0",
]
SILENT = [
    "update commandbus.document set body = '{}' where kind in ('action', 'ledger', 'ledger.head')",
    "delete from commandbus.document where kind in ('action', 'ledger', 'ledger.head')",
]


@pytest.mark.parametrize("statement", FORGERIES)
def test_a_worker_cannot_write_in_the_name_of_an_operator(owner: str, statement: str) -> None:
    some_actions(owner)
    with (
        psycopg.connect(acting_as(owner, "worker"), autocommit=True) as connection,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        connection.execute(statement.encode())


@pytest.mark.parametrize("statement", SILENT)
def test_a_worker_changes_and_removes_no_link(owner: str, statement: str) -> None:
    some_actions(owner)
    with psycopg.connect(acting_as(owner, "worker"), autocommit=True) as connection:
        assert connection.execute(statement.encode()).rowcount == 0
    with SyncCommandBus(owner) as bus:
        assert (bus.verify_audit().links, bus.verify_audit().sound) == (3, True)


@pytest.mark.parametrize("role", ["worker", "admin"])
def test_a_table_of_another_role_does_not_move_the_mark(owner: str, role: str) -> None:
    some_actions(owner)
    with psycopg.connect(acting_as(owner, role), autocommit=True) as connection:
        connection.execute("create temporary table links (kind text, key text)")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute(
                "create trigger forged after insert on links"
                " for each row execute function commandbus.mark_ledger()"
            )
    with SyncCommandBus(owner) as bus:
        assert bus.verify_audit().sound


def test_a_worker_carries_out_the_cancellation_that_an_operator_asked_for(owner: str) -> None:
    begun, registry = threading.Event(), HandlerRegistry()

    @registry.handler("bank", "pay")
    def pay(command: Any, context: Any) -> None:
        begun.set()
        assert eventually(lambda: context.canceled)
        context.raise_if_canceled()

    with SyncCommandBus(acting_as(owner, "admin")) as desk:
        sent = desk.send("bank", "pay").command_id
        with SyncCommandBus(acting_as(owner, "worker")) as bus:
            worker = SyncWorker(bus, "bank", registry)
            running = threading.Thread(target=worker.run, daemon=True)
            running.start()
            try:
                assert begun.wait(20)
                did = desk.acting("ann").cancel(sent, reason="fraud")
                assert did is Cancellation.STOP_REQUESTED
                assert desk.wait(sent, 20).status is CommandStatus.CANCELED
            finally:
                worker.stop(1)
                running.join(10)
        report = desk.verify_audit()
        assert report.problems == []
        assert report.links == 1


def test_a_worker_leaves_open_links_to_programs_that_may_link(owner: str) -> None:
    """It looks for them again after a while, and not at once for ever."""
    with SyncCommandBus(acting_as(owner, "admin")) as desk:
        sent = desk.send("bank", "pay").command_id
        with psycopg.connect(acting_as(owner, "admin")) as connection:
            desk.within(connection).acting("ann").cancel(sent, reason="in my transaction")
        assert desk.verify_audit().open == 1
        with SyncCommandBus(acting_as(owner, "worker")) as bus:
            assert bus.session.run(Linker().work(bus.scope)) == SWEEP
        assert desk.verify_audit().open == 1
        assert desk.session.run(Linker().work(desk.scope)) == 0.0
        report = desk.verify_audit()
        assert (report.open, report.links, report.problems) == (0, 1, [])


def test_a_cancellation_that_names_an_actor_needs_a_request(owner: str) -> None:
    with SyncCommandBus(owner) as bus:
        bus.send("bank", "pay")
        with psycopg.connect(owner, autocommit=True) as connection:
            connection.execute(FORGERIES[5].encode())
        (problem,) = bus.verify_audit().problems
        assert (problem.what, problem.entry.split()[0]) == ("inserted", "CANCELED")


@pytest.mark.parametrize("kind", ["ESCALATED", "FAILED", "CANCELED"])
def test_an_entry_of_any_kind_in_the_name_of_an_operator_needs_a_link(owner: str, kind: str) -> None:
    some_actions(owner)
    with psycopg.connect(owner, autocommit=True) as connection:
        connection.execute(f"{ADD_ENTRY} (1, '{kind}', 1, '{{\"actor\":\"ann\"}}')".encode())
    with SyncCommandBus(owner) as bus:
        (problem,) = bus.verify_audit().problems
    assert problem.what == "inserted"
    assert problem.entry.startswith(kind)


def test_an_entry_from_before_the_first_link_needs_one_too(owner: str) -> None:
    some_actions(owner)
    with psycopg.connect(acting_as(owner, "admin"), autocommit=True) as connection:
        connection.execute(FORGERIES[4].encode())
    with SyncCommandBus(owner) as bus:
        assert [problem.what for problem in bus.verify_audit().problems] == ["inserted"]


def cut_the_tail(url: str, count: int) -> None:
    """Remove the newest links with their actions, and move the head back to the last one left."""
    with psycopg.connect(url, autocommit=True) as connection:
        for _ in range(count):
            row = connection.execute(
                "delete from commandbus.document where kind = 'ledger' and key ="
                " (select max(key) from commandbus.document where kind = 'ledger') returning body"
            ).fetchone()
            assert row is not None
            connection.execute(
                "delete from commandbus.document where kind = 'action'"
                " and key = %s::json ->> 'subject'",
                row,
            )
        connection.execute(
            "update commandbus.document set body = ("
            "select jsonb_set(body::jsonb, '{salt}', '\"\"')::text from commandbus.document"
            " where kind = 'ledger' order by key desc limit 1)"
            " where kind = 'ledger.head'"
        )


def test_a_chain_whose_tail_an_admin_cut_off_is_found_short(owner: str) -> None:
    with SyncCommandBus(owner) as bus:
        for reason in ("one", "two", "three"):
            bus.acting("ann").pause("bank", reason)
        cut_the_tail(acting_as(owner, "admin"), 2)
        problems = [(one.what, one.number) for one in bus.verify_audit().problems]
        assert problems == [("removed", 2), ("removed", 3)]


def test_a_command_that_was_deleted_without_a_record_is_found_missing(owner: str) -> None:
    some_actions(owner)
    with psycopg.connect(acting_as(owner, "admin"), autocommit=True) as connection:
        connection.execute("delete from commandbus.audit")
        connection.execute("delete from commandbus.command")
    with SyncCommandBus(owner) as bus:
        (problem,) = bus.verify_audit().problems
        assert (problem.what, problem.entry.split()[0]) == ("removed", "CANCELED")


def test_retention_is_on_record_and_what_it_forgot_is_expected(owner: str) -> None:
    some_actions(owner)
    with psycopg.connect(owner, autocommit=True) as connection:
        connection.execute("update commandbus.outcome set finished_at = 1")
    with SyncCommandBus(owner) as bus:
        assert bus.prune({"CANCELED": 60}).gone == 1
        report = bus.verify_audit()
        assert (report.problems, report.forgotten) == ([], 1)
        newest = bus.list_actions(action="prune")[0]
        assert (newest.actor, newest.subject) == ("program", "1 of CANCELED older than 60 s")


@pytest.mark.parametrize(
    "statements",
    [
        [
            "delete from commandbus.audit",
            "delete from commandbus.command",
            "delete from commandbus.outcome",
        ],
        ["delete from commandbus.audit"],
    ],
    ids=["the command", "its trail only"],
)
def test_a_prune_after_a_deletion_does_not_hide_it(owner: str, statements: list[str]) -> None:
    some_actions(owner)
    with psycopg.connect(acting_as(owner, "admin"), autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())
        connection.execute("update commandbus.outcome set finished_at = 1")
    with SyncCommandBus(acting_as(owner, "admin")) as bus:
        bus.prune({"CANCELED": 60, "COMPLETED": 60, "FAILED": 60})
        (problem,) = bus.verify_audit().problems
        assert (problem.what, problem.entry.split()[0]) == ("removed", "CANCELED")


def test_actions_after_a_cut_do_not_take_the_numbers_of_the_links_that_are_gone(owner: str) -> None:
    with SyncCommandBus(owner) as bus:
        for reason in ("one", "two", "three"):
            bus.acting("ann").pause("bank", reason)
        cut_the_tail(acting_as(owner, "admin"), 2)
        for reason in ("four", "five", "six"):
            bus.acting("ann").pause("bank", reason)
        problems = [(one.what, one.number) for one in bus.verify_audit().problems]
        assert problems == [("removed", 2), ("removed", 3)]


def make_the_chain_again(url: str, actor: str) -> None:
    """As a writer of the tables without the key would: another actor, and every hash computed again."""
    with SyncCommandBus(url) as bus, psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "update commandbus.document set body = replace(body, '\"ann\"', %s) where kind = 'action'",
            (f'"{actor}"',),
        )
        last: ledger.Link | None = None
        for document in list(bus.session.run(bus.scope.store.list_documents(ledger.KIND, limit=100))):
            link = ledger.decoded(document)
            assert link is not None
            action = bus.session.run(bus.scope.store.get_document(ledger.ACTION, link.subject))
            assert action is not None
            fresh = ledger._after(last, ledger.of_action(bus.scope, link.at, action), None, link.number)
            last = fresh
            for kind, key in ((ledger.KIND, document.key), (ledger.HEAD, "head")):
                connection.execute(
                    "update commandbus.document set body = %s where kind = %s and key = %s",
                    (ledger.msgspec.json.encode(fresh).decode(), kind, key),
                )


@pytest.mark.parametrize("key", [None, KEY])
def test_a_chain_that_was_made_again_is_found_by_its_key(owner: str, key: str | None) -> None:
    with SyncCommandBus(owner, ledger_key=key) as bus:
        bus.acting("ann").pause("bank", "one")
        bus.acting("ann").resume("bank")
        make_the_chain_again(owner, "ben")
        assert bus.verify_audit().sound is (key is None), "without a key nobody can tell"


def test_a_program_without_the_key_neither_acts_nor_verifies(owner: str) -> None:
    with SyncCommandBus(owner, ledger_key=KEY) as bus:
        bus.acting("ann").pause("bank", "one")
        assert bus.verify_audit().sound
    with SyncCommandBus(owner) as bus:
        with pytest.raises(ConfigurationError, match="COMMANDBUS_LEDGER_KEY"):
            bus.acting("ann").resume("bank")
        assert bus.stats("bank").paused, "nothing was done"
        with pytest.raises(ConfigurationError, match="COMMANDBUS_LEDGER_KEY"):
            bus.verify_audit()


def put_a_false_seal(url: str, *, with_a_link: bool) -> None:
    """A head, and perhaps a link, that says it was sealed with a key which no program has."""
    with psycopg.connect(url, autocommit=True) as connection:
        false = "jsonb_set(jsonb_set(body::jsonb, '{seal}', '\"00000000deadbeef\"'), '{number}', '2')"
        if with_a_link:
            connection.execute(
                "insert into commandbus.document (kind, key, version, status, body) select kind,"
                f" '0000000000000002', 1, status, {false} from commandbus.document"
                " where kind = 'ledger'".encode()
            )
        connection.execute(
            f"update commandbus.document set body = {false}, version = version + 1"
            " where kind = 'ledger.head'".encode()
        )


@pytest.mark.parametrize("with_a_link", [False, True], ids=["the head", "a link"])
def test_a_false_seal_of_an_admin_stops_no_program_that_has_the_key(
    owner: str, with_a_link: bool
) -> None:
    with SyncCommandBus(owner, ledger_key=KEY) as bus:
        bus.acting("ann").pause("bank", "one")
        put_a_false_seal(acting_as(owner, "admin"), with_a_link=with_a_link)
        assert not bus.verify_audit().sound
        bus.acting("ann").resume("bank")
        assert not bus.stats("bank").paused
        assert bus.list_actions()[0].action == "resume"
        problems = [(one.what, one.number) for one in bus.verify_audit().problems]
        assert (("changed", 2) in problems) is with_a_link


def test_a_false_seal_without_any_key_stops_actions_until_the_owner_removes_it(owner: str) -> None:
    """Programs without a key cannot tell it from the first link of one that has a key."""
    with SyncCommandBus(owner) as bus:
        bus.acting("ann").pause("bank", "one")
        put_a_false_seal(acting_as(owner, "admin"), with_a_link=False)
        with pytest.raises(ConfigurationError, match="COMMANDBUS_LEDGER_KEY"):
            bus.acting("ann").resume("bank")
        bus.send("bank", "pay")
        worker = SyncWorker(bus, "bank")
        assert bus.stats("bank").paused, "only actions of operators are refused"
        assert worker.receive() == []
        with psycopg.connect(owner, autocommit=True) as connection:
            connection.execute("delete from commandbus.document where kind = 'ledger.head'")
        bus.acting("ann").resume("bank")
        assert bus.verify_audit().sound


@pytest.mark.parametrize("digits", [16, 17, 18, 19])
def test_an_enormous_number_of_an_admin_stops_no_action(owner: str, digits: int) -> None:
    with SyncCommandBus(owner) as bus:
        bus.acting("ann").pause("bank", "one")
        with psycopg.connect(acting_as(owner, "admin"), autocommit=True) as connection:
            number = "9" * digits if digits < 19 else str(2**63 - 1)
            connection.execute(
                f"{ADD_DOCUMENT} ('ledger', '{number}', 1, '', '{{}}')".encode(),
            )
            connection.execute(
                "update commandbus.document set body = jsonb_set(body::jsonb, '{number}', %s)"
                " where kind = 'ledger.head'",
                [number],
            )
        for _ in range(2):
            bus.acting("ann").resume("bank")
            bus.acting("ann").pause("bank", "two")
        assert not bus.verify_audit().sound
        assert [link.number for link in links(bus)] == [1, 2, 3, 4, 5]


def links(bus: SyncCommandBus) -> list[ledger.Link]:
    page = bus.session.run(bus.scope.store.list_documents(ledger.KIND, limit=100))
    return [link for link in map(ledger.decoded, page) if link is not None]


def test_a_key_comes_from_the_environment_and_is_not_shown(
    owner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMMANDBUS_LEDGER_KEY", KEY)
    with SyncCommandBus(owner) as bus:
        bus.acting("ann").pause("bank", "one")
        assert bus.settings.ledger_key == KEY
        assert KEY not in repr(bus.settings)
    with psycopg.connect(owner) as connection:
        bodies = connection.execute("select string_agg(body, ' ') from commandbus.document").fetchone()
    assert KEY not in str(bodies)


def test_a_short_key_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="ledger_key"):
        SyncCommandBus("memory://", ledger_key="short")


def test_every_link_is_logged_as_an_anchor(owner: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "commandbus.ledger")
    with SyncCommandBus(owner) as bus:
        for reason in ("one", "two", "three"):
            bus.acting("ann").pause("bank", reason)
        anchor = caplog.messages[-1].rpartition(" ")[2]
        assert anchor == bus.verify_audit().hash
        with psycopg.connect(owner, autocommit=True) as connection:
            connection.execute("update commandbus.ledger_mark set number = 1")
        cut_the_tail(owner, 2)
        assert bus.verify_audit().sound, "an owner of the tables can cut without a trace in the store"
        assert not bus.verify_audit(expect=anchor).sound


def test_operators_of_the_troubleshooting_queue_need_no_more_than_admin(owner: str) -> None:
    with SyncCommandBus(acting_as(owner, "admin")) as bus:
        sent = bus.send("bank", "pay").command_id
        worker = SyncWorker(bus, "bank")
        worker.fail(worker.receive()[0], "no funds", is_transient=False)
        queue = SyncTroubleshootingQueue(bus)
        queue.acting("ann").operator_cancel(sent, reason="gone")
        assert bus.verify_audit().sound
