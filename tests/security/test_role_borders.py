"""Every role tries what only another one may: a login without grants, and the four roles of the bus.
The rights of each are compared with a list, so that those on a new table or function must be listed."""

from __future__ import annotations

import os
from typing import Any

import psycopg
import pytest

from commandbus.engines.postgres.roles import ROLES, role_named, roles_sql
from commandbus.engines.postgres.schema import upgrade
from commandbus.errors import ConfigurationError
from commandbus.sync import SyncCommandBus
from commandbus.testing.postgres import create_database
from tests.postgres.database import server

pytestmark = pytest.mark.postgres

NAMES = {role: f"border_{role}" for role in (*ROLES, "stranger")}
ACTIONS = ("select", "insert", "update", "delete", "truncate", "references", "trigger")
CHANGED_BY_WORKERS = {
    "queue", "scheduled", "lease", "unique_key", "progress", "sleeper", "session", "tally", "document",
    "batch_count", "process", "process_step", "recorded_step", "held", "permit", "touch", "bucket",
}  # fmt: skip
ADDED_BY_WORKERS = {"command", "outcome", "receipt", "audit", "domain", "partition"}
READ_BY_WORKERS = {"limit_rule", "migration"}
KEPT_FROM_ADMINS = {"migration", "ledger_mark"}
VIEWERS_FUNCTIONS = {
    "now_us", "partition_of", "as_jsonb", "group_parked", "ended_sessions", "receipt_of", "outcome_of",
    "unfolded", "ended_between", "ended_floor",
}  # fmt: skip


@pytest.fixture(scope="module")
def owner() -> str:
    url = create_database(server(os.getpid()))
    upgrade(url)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(roles_sql("commandbus").encode())
        for role, name in NAMES.items():
            connection.execute(f"drop role if exists {name}".encode())
            within = f" in role {role_named(role, 'commandbus')}" if role in ROLES else ""
            connection.execute(f"create role {name} login{within}".encode())
        for role in ("sender", "worker", "admin"):
            connection.execute(f"create schema evil_{role} authorization {NAMES[role]}".encode())
    with SyncCommandBus(url) as bus:
        bus.acting("ann").pause("bank", "closed")
        bus.send("bank", "pay", {"card": "4111"})
    return url


def acting_as(owner: str, role: str) -> str:
    return owner.replace("postgres@", f"{NAMES[role]}@", 1)


def rows(url: str, query: str) -> list[Any]:
    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(query.encode()).fetchall()


def tables(owner: str) -> list[str]:
    query = "select relname from pg_class where relnamespace = 'commandbus'::regnamespace"
    return [row[0] for row in rows(owner, f"{query} and relkind = 'r'")]


def expected(role: str, table: str) -> set[str]:
    """What a role may do with a table."""
    if role == "sender":
        return {"select"} if table == "migration" else set()
    if role == "viewer":
        return {"select"}
    if role == "admin":
        return {"select"} if table in KEPT_FROM_ADMINS else set(ACTIONS[:5])
    if table in CHANGED_BY_WORKERS:
        return set(ACTIONS[:4])
    if table in ADDED_BY_WORKERS:
        return {"select", "insert"}
    return {"select"} if table in READ_BY_WORKERS else set()


@pytest.mark.parametrize("role", ROLES)
def test_a_role_has_the_rights_of_the_list_and_no_other(owner: str, role: str) -> None:
    for table in tables(owner):
        found = {
            action
            for action in ACTIONS
            if rows(acting_as(owner, role), f"select has_table_privilege('commandbus.{table}',"
                                            f" '{action}')") == [(True,)]
        }  # fmt: skip
        assert found == expected(role, table), table
    columns = rows(
        acting_as(owner, role),
        "select c.relname, a.attname from pg_class c join pg_attribute a on a.attrelid = c.oid"
        " where c.relnamespace = 'commandbus'::regnamespace and c.relkind = 'r' and a.attnum > 0"
        " and has_column_privilege(c.oid, a.attnum, 'update')"
        " and not has_table_privilege(c.oid, 'update')",
    )
    assert columns == ([("domain", "gated")] if role == "worker" else [])


def test_functions_are_for_workers_and_admins_but_for_a_few(owner: str) -> None:
    query = (
        "select proname from pg_proc where pronamespace = 'commandbus'::regnamespace"
        " and has_function_privilege(oid, 'execute')"
    )
    everything = {row[0] for row in rows(owner, query)}
    for role in ("worker", "admin"):
        found = {row[0] for row in rows(acting_as(owner, role), query)}
        assert everything - found == {"mark_ledger"}, role
    assert {row[0] for row in rows(acting_as(owner, "viewer"), query)} == VIEWERS_FUNCTIONS
    assert rows(acting_as(owner, "stranger"), query) == []


@pytest.mark.parametrize("action", ["select * from", "delete from", "truncate", "lock table"])
def test_a_login_without_grants_reaches_no_table(owner: str, action: str) -> None:
    with psycopg.connect(acting_as(owner, "stranger"), autocommit=True) as connection:
        for table in tables(owner):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(f"begin; {action} commandbus.{table}".encode())
            connection.execute("rollback")


ESCALATIONS = {
    "become the owner": "set role postgres",
    "become the owner of the session": "set session authorization postgres",
    "become an admin": "set role commandbus_admin",
    "grant itself a role": "grant commandbus_admin to current_user",
    "make a role": "create role border_mine",
    "create in the schema": "create table commandbus.mine (x int)",
    "create where the bus looks for names": "create function public.octet_length(json) returns int"
    " language sql as 'select 0'",
    "create a schema": "create schema border_mine",
    "replace a function": "create or replace function commandbus.now_us() returns bigint language sql"
    " as 'select 0::bigint'",
    "switch triggers off": "set session_replication_role = replica",
    "switch the policies off": "alter table commandbus.document disable row level security",
    "add a policy": "create policy mine on commandbus.audit using (true)",
    "drop the trigger of the mark": "drop trigger mark_ledger on commandbus.document",
    "move the mark": "update commandbus.ledger_mark set number = 0",
    "run a program": "copy (select 1) to program 'true'",
    "read a file": "select pg_read_file('postgresql.conf')",
    "change settings of the server": "alter system set fsync = off",
    "change settings of the owner": "alter role postgres set search_path = evil",
    "end a backend of the bus": "select pg_terminate_backend(pid) from pg_stat_activity"
    " where usename = 'postgres' and pid <> pg_backend_pid() limit 1",
}


@pytest.mark.parametrize("role", NAMES)
@pytest.mark.parametrize("statement", ESCALATIONS.values(), ids=ESCALATIONS)
def test_no_role_gets_more_rights(owner: str, role: str, statement: str) -> None:
    if statement == ESCALATIONS["become an admin"] and role == "admin":
        pytest.skip("it is one")
    with (
        psycopg.connect(owner, application_name="commandbus"),
        psycopg.connect(acting_as(owner, role), autocommit=True) as connection,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        connection.execute(statement.encode())


def test_a_login_without_grants_sees_no_statement_of_the_bus(owner: str) -> None:
    with SyncCommandBus(owner) as bus:
        bus.send("bank", "pay", {"card": "5500"})
        seen = rows(
            acting_as(owner, "stranger"),
            "select distinct query from pg_stat_activity where usename = 'postgres'"
            " and datname = current_database()",
        )
    assert seen == [("<insufficient privilege>",)]


def test_a_worker_does_not_read_past_the_policies_with_row_security_off(owner: str) -> None:
    """Off means: fail where a policy would leave rows out. So changes fail, too, instead of passing."""
    with psycopg.connect(acting_as(owner, "worker"), autocommit=True) as connection:
        connection.execute("set row_security = off")
        for statement in (
            "delete from commandbus.document where kind = 'ledger'",
            "update commandbus.document set body = '{}' where kind = 'action'",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege, match="row-level security"):
                connection.execute(statement.encode())


CALLS = {
    "sender": [
        "send('bank', 'pay', '[12345678901234567890, 1e5]', unique_key => 'k', tags => '{a}')",
        "holders_of('{bank}', '{k}')",
        "known_among('{00000000-0000-7000-8000-000000000000}', '{bank}')",
        "pending_in('bank', 10)",
        "bucket_of('bank', 'ann')",
        "drain_bucket('bank', 'ann', 1)",
        "lock_capacity('bank')",
    ],
    "worker": ["lock_mutex('admit bank', true)", "lock_outcome(1)", "revoke_parked(1, 'x')"],
}
CALLS["admin"] = CALLS["worker"]


@pytest.mark.parametrize("role", CALLS)
def test_no_object_of_a_caller_takes_part_in_a_function_with_the_owners_rights(
    owner: str, role: str
) -> None:
    """Functions and operators for the very types of the arguments, and tables with the names of the
    bus's own, in a schema and among temporary objects that come first in the search path."""
    evil = f"evil_{role}"
    catch = f"$$ begin insert into {evil}.caught values (current_user); return null; end $$"
    with psycopg.connect(acting_as(owner, role), autocommit=True) as connection:
        connection.execute(f"create table {evil}.caught (who text)".encode())
        connection.execute(f"grant usage on schema {evil} to public".encode())
        connection.execute(f"grant insert on {evil}.caught to public".encode())
        for name, kinds, answer in (
            ("octet_length", "text", "integer"), ("length", "text", "integer"),
            ("starts_with", "text, text", "boolean"), ("abs", "numeric", "numeric"),
            ("concat_ws", "text, text, text, bigint", "text"), ("now_us", "", "bigint"),
            ("equal", "text, text", "boolean"), ("equal", "bigint, bigint", "boolean"),
            ("pg_notify", "text, text", "integer"), ("clock_timestamp", "", "timestamptz"),
        ):  # fmt: skip
            connection.execute(
                f"create function {evil}.{name}({kinds}) returns {answer} language plpgsql as"
                f" {catch}".encode()
            )
        for kind in ("text", "bigint"):
            connection.execute(
                f"create operator {evil}.= (leftarg = {kind}, rightarg = {kind},"
                f" function = {evil}.equal)".encode()
            )
        for table in (
            "queue",
            "command",
            "mutex",
            "domain",
            "unique_key",
            "outcome",
            "sleeper",
            "session",
        ):
            connection.execute(f"create temporary table {table} (domain text, seq bigint)".encode())
        connection.execute(f"set search_path = pg_temp, {evil}, pg_catalog, commandbus".encode())
        for call in CALLS[role]:
            connection.execute(f"select * from commandbus.{call}".encode())
        assert connection.execute(f"select * from {evil}.caught".encode()).fetchall() == []
        for table in ("queue", "command", "mutex"):
            found = connection.execute(f"select * from pg_temp.{table}".encode()).fetchall()
            assert found == []


SETTINGS = [
    "standard_conforming_strings = off", "array_nulls = off", "transform_null_equals = on",
    "timezone = 'Antarctica/Troll'", "datestyle = 'SQL, DMY'", "intervalstyle = 'sql_standard'",
    "extra_float_digits = -15",
    "plpgsql.variable_conflict = use_variable", "default_transaction_isolation = 'repeatable read'",
]  # fmt: skip
BAD = [
    "'two words', 'x'", "'bank', 'commandbus.reply'", "'bank', 'x', '1e999'", "'bank', 'x', '[1e400]'",
    f"'bank', 'x', '{2**70}'", "'bank', 'x', '\"\\\\\" 1'", "'bank', 'x', priority => 40000",
    "'bank', 'x', due_at => 'infinity'", "'bank', 'x', delay => '100000 years'",
    "'bank', 'x', headers => '[1]'", "'bank', 'x', tags => array['']", "null, 'x'",
]  # fmt: skip


@pytest.mark.parametrize("setting", SETTINGS)
def test_no_setting_of_a_senders_session_lets_a_bad_command_in(owner: str, setting: str) -> None:
    with psycopg.connect(acting_as(owner, "sender"), autocommit=True) as connection:
        connection.execute(f"set {setting}".encode())
        for arguments in BAD:
            with pytest.raises(psycopg.DataError):
                connection.execute(f"select commandbus.send({arguments})".encode())
        connection.execute("select commandbus.send('bank', 'fine')")


@pytest.mark.parametrize("role", ["viewer", "stranger"])
def test_a_bus_of_a_role_that_may_not_send_says_so(owner: str, role: str) -> None:
    with pytest.raises(ConfigurationError), SyncCommandBus(acting_as(owner, role)) as bus:
        bus.send("bank", "pay")
