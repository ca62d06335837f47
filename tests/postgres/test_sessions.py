"""A transactional handler leaves nothing behind in its session, whatever it did there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from psycopg.adapt import PyFormat
from psycopg.pq import Format
from psycopg.rows import dict_row
from psycopg.types import TypeInfo
from psycopg.types.string import StrDumper, TextLoader

from commandbus import CommandStatus, HandlerRegistry, RetryPolicy, TransientCommandError
from commandbus.testing import Configuration, Harness
from tests.postgres.database import postgres_configuration, shared_url
from tests.support.pgbouncer import PROGRAM, pooler

pytestmark = pytest.mark.postgres

PARKED = CommandStatus.IN_TROUBLESHOOTING_QUEUE
AT_ONCE = RetryPolicy(max_attempts=3, backoff_schedule=[0])
ONCE = RetryPolicy(max_attempts=1)
TEXT_OID = psycopg.adapters.types["text"].oid
TENANT = "session_tenant"

LEAVES = {
    "search_path": "set search_path = elsewhere",
    "role": f"set role {TENANT}",
    "timezone": "set timezone = 'Asia/Tokyo'",
    "custom setting": "set app.tenant = 'one'",
    "advisory lock": "select pg_advisory_lock(424242)",
    "temp table": "create temp table scratch (n int)",
    "listen": "listen gossip",
    "prepared statement": "prepare kept as select 1",
    "read only": "set default_transaction_read_only = on",
    "isolation": "set default_transaction_isolation = 'repeatable read'",
    "lock timeout": "set lock_timeout = '7s'",
    "held cursor": "declare held cursor with hold for select 1",
    "sequence": "select nextval('session_numbers')",
}
LOOKS = {
    "search_path": "show search_path",
    "role": "select current_user || ' ' || session_user",
    "timezone": "show timezone",
    "custom setting": "select coalesce(current_setting('app.tenant', true), '')",
    "advisory lock": "select count(*)::text from pg_locks where objid = 424242",
    "temp table": "select coalesce(to_regclass('pg_temp.scratch')::text, '')",
    "listen": "select count(*)::text from pg_listening_channels()",
    "prepared statement": "select count(*)::text from pg_prepared_statements where from_sql",
    "read only": "show default_transaction_read_only",
    "isolation": "show default_transaction_isolation",
    "lock timeout": "show lock_timeout",
    "held cursor": "select count(*)::text from pg_cursors where is_holdable",
}
LAST_VALUE = "select currval('session_numbers')"


@pytest.fixture(params=["asyncio", "threads"])
def runtime(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=["def", "async def"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def configuration() -> Configuration:
    found = postgres_configuration()
    with psycopg.connect(found.url, autocommit=True) as connection:
        connection.execute("create table if not exists effect (n int, fence bigint)")
        connection.execute("truncate effect")
        connection.execute("create sequence if not exists session_numbers")
        if not connection.execute("select 1 from pg_roles where rolname = %s", [TENANT]).fetchone():
            connection.execute(f"create role {TENANT} superuser")
    return replace(found, url=found.url + "&pool_size=1")


@pytest.fixture
def bus(configuration: Configuration, runtime: str) -> Iterator[Harness]:
    harness = configuration.open(runtime)
    try:
        yield harness
    finally:
        harness.close()


class Talk:
    """A handler that executes the statements of its payload, and returns what each answers."""

    def __init__(self, kind: str, then: Any = None) -> None:
        self.registry, self.runs, self._then = HandlerRegistry(), 0, then
        function = self.talk if kind == "def" else self.talk_async
        self.registry.register("orders", "ship", function, transactional=True)

    def talk(self, command: Any, context: Any) -> list[Any]:
        self.runs += 1
        answers = []
        for sql in command.data["sql"]:
            prepare = False if ";" in sql else None
            answers.append(self._answer(context.connection.execute(sql, prepare=prepare)))
        return self._end(command, context, answers)

    async def talk_async(self, command: Any, context: Any) -> list[Any]:
        self.runs += 1
        answers = []
        for sql in command.data["sql"]:
            prepare = False if ";" in sql else None
            answers.append(self._answer(await context.connection.execute(sql, prepare=prepare)))
        return self._end(command, context, answers)

    def _answer(self, cursor: Any) -> str | None:
        found = cursor.pgresult.get_value(0, 0) if cursor.pgresult.nfields else None
        return found.decode() if found is not None else None

    def _end(self, command: Any, context: Any, answers: list[Any]) -> list[Any]:
        if self._then is not None:
            self._then(context.connection)
        if command.data.get("fails"):
            raise TransientCommandError("NOT_NOW", str(answers))
        return answers


def say(bus: Harness, *sql: str, fails: bool = False) -> Any:
    return bus.wait(bus.send(data={"sql": list(sql), "fails": fails}), 20)


@pytest.mark.alternating
@pytest.mark.parametrize("fails", [False, True], ids=["completed", "failed"])
def test_nothing_of_a_session_is_seen_by_later_commands(bus: Harness, kind: str, fails: bool) -> None:
    with bus.run_worker(Talk(kind).registry, concurrency=1, retry_policy=RetryPolicy(max_attempts=1)):
        before = say(bus, *LOOKS.values()).result
        for state, sql in LEAVES.items():
            left = say(bus, sql, fails=fails)
            assert left.status is (PARKED if fails else CommandStatus.COMPLETED), (state, left.error)
            after = say(bus, *LOOKS.values()).result
            assert dict(zip(LOOKS, after, strict=True)) == dict(zip(LOOKS, before, strict=True)), state
        assert say(bus, LAST_VALUE).error_code == "ObjectNotInPrerequisiteState"


def test_the_role_of_the_url_is_the_role_after_a_handler(
    configuration: Configuration, runtime: str, kind: str
) -> None:
    url = f"{configuration.url}&options=-c%20role%3D{TENANT}"
    bus = replace(configuration, url=url).open(runtime)
    try:
        with bus.run_worker(Talk(kind).registry, concurrency=1):
            assert say(bus, "reset session authorization", "set role none").error is None
            assert say(bus, "select current_user").result == [TENANT]
    finally:
        bus.close()


class Loud(TextLoader):
    def load(self, data: Any) -> str:
        return f"{super().load(data)}!"


class Words(StrDumper):
    """Of lists, which the bus sends as arrays."""


def client_state(connection: Any) -> dict[str, Any]:
    """What the driver keeps of a connection; the same before and after a handler."""
    adapters = connection.adapters
    return {
        "loaders": adapters.get_loader(TEXT_OID, Format.TEXT),
        "dumpers": adapters.get_dumper(list, PyFormat.AUTO),
        "types": adapters.types.get("session_mood"),
        "notice handlers": len(connection._notice_handlers),
        "notify handlers": len(connection._notify_handlers),
        "transactions": connection._num_transactions,
        "an attribute": getattr(connection, "tenant", None),
    } | {name: getattr(connection, name) for name in ATTRIBUTES}


ATTRIBUTES = (
    "row_factory", "cursor_factory", "server_cursor_factory", "prepare_threshold", "prepared_max",
    "autocommit", "isolation_level", "read_only", "deferrable",
)  # fmt: skip


def change_client_state(connection: Any) -> None:
    connection.adapters.register_loader(TEXT_OID, Loud)
    connection.adapters.register_dumper(list, Words)
    connection.adapters.types.add(TypeInfo("session_mood", 424242, 0))
    connection.add_notice_handler(print)
    connection.add_notify_handler(print)
    connection.row_factory, connection.prepare_threshold, connection.prepared_max = dict_row, None, 1
    connection.cursor_factory = connection.server_cursor_factory = refuse
    connection._num_transactions += 1  # a `with connection.transaction()` that is never left
    connection.tenant = "one"


def change_settings_of_transactions(connection: Any) -> None:
    """As the setters do, which the driver allows after the rollback and before the begin."""
    connection._autocommit, connection._read_only, connection._deferrable = False, True, True
    connection._isolation_level = psycopg.IsolationLevel.SERIALIZABLE


def refuse(*_: Any, **__: Any) -> Any:
    raise AssertionError("a cursor of a handler that ended")


@pytest.mark.parametrize("fails", [False, True], ids=["completed", "failed"])
def test_the_driver_is_as_it_was(bus: Harness, kind: str, fails: bool) -> None:
    seen: list[Any] = []
    pids: set[int] = set()

    def change(connection: Any) -> None:
        pids.add(connection.info.backend_pid)
        seen.append(client_state(connection))
        change_client_state(connection)

    with bus.run_worker(Talk(kind, change).registry, concurrency=1, retry_policy=ONCE):
        for _ in range(3):
            status = say(bus, "select 1", fails=fails).status
            assert status is (PARKED if fails else CommandStatus.COMPLETED)
    assert [seen[0]] * 3 == seen
    assert len(pids) == 1, "a connection that can be put back is kept"


def test_settings_of_transactions_are_as_they_were(bus: Harness, kind: str) -> None:
    """Of a handler that ends its transaction, begins another one and fails, which is not noticed."""
    seen: list[Any] = []

    def change(connection: Any) -> None:
        seen.append(client_state(connection))
        change_settings_of_transactions(connection)

    with bus.run_worker(Talk(kind, change).registry, concurrency=1, retry_policy=ONCE):
        for _ in range(2):
            say(bus, "rollback", "begin", fails=True)
        assert say(bus, "select 1").status is CommandStatus.COMPLETED
    assert [seen[0]] * 3 == seen


def test_the_bus_does_not_use_the_adapters_of_a_handler(bus: Harness) -> None:
    registry = HandlerRegistry()

    @registry.handler("orders", "ship", transactional=True)
    def ship(command: Any, context: Any) -> str:
        for oid in range(16, 4000):
            context.connection.adapters.register_loader(oid, Loud)
        for kind in (list, int, str, dict):
            context.connection.adapters.register_dumper(kind, Words)
        return str(context.send("audit", "note", {"n": 1}, idempotency_key="once").duplicate)

    with bus.run_worker(registry, concurrency=1, retry_policy=ONCE):
        record = bus.wait(bus.send(), 20)
    assert (record.error, record.result) == (None, "False")


def test_handlers_share_a_connection_that_they_leave_clean(bus: Harness, kind: str) -> None:
    """A reset and not a new connection, unless it is the only cure."""
    with bus.run_worker(Talk(kind).registry, concurrency=1):
        pids = {say(bus, LEAVES[state], "select pg_backend_pid()").result[1] for state in (
            "search_path", "custom setting", "temp table", "advisory lock", "timezone")}  # fmt: skip
    assert len(pids) == 1


def test_a_command_survives_that_a_handler_removes_all_prepared_statements(
    bus: Harness, kind: str
) -> None:
    """Also where the driver does not see it."""
    hidden = "do $$ begin execute 'deallocate all'; end $$"
    with bus.run_worker(Talk(kind).registry, concurrency=1, retry_policy=AT_ONCE):
        for sql in ("deallocate all", hidden, hidden):
            say(bus, sql)
            assert say(bus, "select 1").status is CommandStatus.COMPLETED
            bus.send("audit", "note")


ENDINGS = {
    "commit": ["commit"],
    "commit and chain": ["commit and chain"],
    "commit, begin": ["commit", "begin"],
    "commit and begin in one message": ["commit; begin"],
    "rollback": ["rollback"],
}


@pytest.mark.alternating
@pytest.mark.parametrize("fails", [False, True], ids=["returns", "raises"])
@pytest.mark.parametrize("ending", ENDINGS)
def test_a_handler_that_ends_its_transaction_is_parked_at_once(
    bus: Harness, kind: str, ending: str, fails: bool
) -> None:
    talk = Talk(kind)
    with bus.run_worker(talk.registry, concurrency=1, retry_policy=AT_ONCE):
        before = say(bus, *LOOKS.values()).result
        left = "insert into effect (n) values (1)", LEAVES["search_path"], *ENDINGS[ending]
        record = say(bus, *left, LEAVES["timezone"], fails=fails)
        assert (record.status, record.error_code) == (PARKED, "TRANSACTION_ENDED")
        assert "context.connection" in record.error.message
        assert talk.runs == 2
        assert say(bus, *LOOKS.values()).result == before
    with psycopg.connect(shared_url(), autocommit=True) as connection:
        (stands,) = connection.execute("select count(*) from effect").fetchone() or (None,)
    assert stands == (0 if ending == "rollback" else 1)


def test_an_error_after_a_handlers_own_commit_is_parked_at_once(bus: Harness, kind: str) -> None:
    """The transaction that is open then is aborted and answers nothing but its end."""
    talk = Talk(kind)
    with bus.run_worker(talk.registry, concurrency=1, retry_policy=AT_ONCE):
        record = say(bus, "insert into effect (n) values (1)", "commit and chain", "select 1/0")
    assert (record.status, record.error_code) == (PARKED, "TRANSACTION_ENDED")
    assert talk.runs == 1


def test_no_rule_for_errors_runs_such_a_handler_again(bus: Harness, kind: str) -> None:
    talk = Talk(kind)
    talk.registry.map_exception(Exception, TransientCommandError)
    with bus.run_worker(talk.registry, concurrency=1, retry_policy=AT_ONCE):
        assert say(bus, "commit").error_code == "TRANSACTION_ENDED"
    assert talk.runs == 1


def test_an_ordinary_failure_is_still_tried_again(bus: Harness, kind: str) -> None:
    talk = Talk(kind)
    with bus.run_worker(talk.registry, concurrency=1, retry_policy=AT_ONCE):
        for sql in ("select 1", "select 1/0"):
            talk.runs = 0
            assert say(bus, sql, fails=True).error_code in ("NOT_NOW", "DivisionByZero")
            assert talk.runs == AT_ONCE.max_attempts


def test_a_commit_that_the_server_refuses_is_tried_again(bus: Harness, kind: str) -> None:
    """A deferred constraint: the transaction is over then, and not by the handler."""
    with psycopg.connect(shared_url(), autocommit=True) as connection:
        connection.execute("drop table if exists single")
        connection.execute("create table single (n int unique deferrable initially deferred)")
    talk = Talk(kind)
    with bus.run_worker(talk.registry, concurrency=1, retry_policy=AT_ONCE):
        record = say(bus, "insert into single values (1), (1)", LEAVES["timezone"])
        assert record.error_code != "TRANSACTION_ENDED"
        assert talk.runs == AT_ONCE.max_attempts
        assert say(bus, "show timezone").result != ["Asia/Tokyo"]


def test_the_workers_settings_end_with_the_transaction(bus: Harness, runtime: str, kind: str) -> None:
    """They are local to it: behind a pooler, another client gets the connection after a commit."""
    seen: list[str] = []
    names = ("statement_timeout", "enable_seqscan", "plan_cache_mode")

    def look(connection: Any) -> None:
        """Through the driver of both runtimes, without waiting."""
        for sql in ("commit", *(f"show {name}" for name in names)):
            result = connection.pgconn.exec_(sql.encode())
            seen.append((result.get_value(0, 0) or b"").decode())

    with bus.run_worker(Talk(kind, look).registry, concurrency=1, statement_timeout=3):
        assert say(bus, "show statement_timeout").error_code == "TRANSACTION_ENDED"
    assert seen[1:] == ["25s", "off", "force_generic_plan"]


@pytest.mark.skipif(PROGRAM is None, reason="!!! SKIPPED: pgbouncer is not installed")
@pytest.mark.alternating
@pytest.mark.parametrize("fails", [False, True], ids=["completed", "failed"])
def test_other_clients_of_a_pooler_see_nothing_of_a_handlers_session(
    configuration: Configuration, runtime: str, kind: str, fails: bool
) -> None:
    """The reset travels with the end of the transaction, so it reaches the same server connection."""
    with pooler(shared_url()) as url:
        bus = replace(configuration, url=f"{url}&pooler=on&pool_size=1").open(runtime)
        try:
            once = RetryPolicy(max_attempts=1)
            with bus.run_worker(Talk(kind).registry, concurrency=1, retry_policy=once):
                for state in ("custom setting", "advisory lock", "temp table", "lock timeout"):
                    say(bus, LEAVES[state], fails=fails)
        finally:
            bus.close()
        before = ["", "0", "", "0"]
        others = [psycopg.connect(url, autocommit=True, prepare_threshold=None) for _ in range(5)]
        try:
            for other in others:
                other.execute("begin")  # so that each has a server connection of its own
            for other in others:
                states = ("custom setting", "advisory lock", "temp table", "lock timeout")
                found = [other.execute(LOOKS[state]).fetchone() for state in states]
                assert [row and row[0] for row in found] == before
        finally:
            for other in others:
                other.close()


def test_a_connection_that_a_handler_left_is_not_used_again(bus: Harness, kind: str) -> None:
    """Nor is what it set on the driver, which allows it only outside of transactions."""
    pids: list[int] = []

    def leave(connection: Any) -> None:
        pids.append(connection.info.backend_pid)
        if len(pids) == 1:
            connection.pgconn.exec_(b"rollback")
            connection._autocommit = False

    with bus.run_worker(Talk(kind, leave).registry, concurrency=1):
        assert say(bus, "select 1").error_code == "TRANSACTION_ENDED"
        assert say(bus, "select 1").status is CommandStatus.COMPLETED
    assert pids[0] != pids[1]
