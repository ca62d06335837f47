"""`db` on PostgreSQL, where the schema is not made by opening."""

import os

import psycopg
import pytest

from commandbus.testing.postgres import PostgresUnavailable, create_database
from tests.cli.helpers import Cli
from tests.postgres.database import server

pytestmark = pytest.mark.postgres


@pytest.fixture
def url() -> str:
    try:
        return create_database(server(os.getpid()))
    except PostgresUnavailable as missing:
        pytest.skip(str(missing))


def test_an_empty_database_is_upgraded_verified_and_examined(cli: Cli) -> None:
    assert "db upgrade" in cli("db", "verify", code=5).err
    assert "db upgrade" in cli("list", code=5).err
    cli("db", "upgrade")
    cli("db", "upgrade")
    version = cli("db", "verify", "--json").document["schema"]
    assert version.startswith("version")
    findings = cli("db", "doctor", "--json").document["findings"]
    levels = {finding["subject"]: finding["level"] for finding in findings}
    assert levels["server"] == levels["schema"] == levels["autovacuum"] == "ok"
    assert "healthy" in cli("health").err


def test_sent_commands_are_listed(cli: Cli) -> None:
    cli("db", "upgrade")
    sent = cli("send", "shop", "Buy", '{"amount": 1}').out.strip()
    assert [row[0] for row in cli("list").rows] == [sent]
    assert cli("show", sent, "--json").document["data"] == {"amount": 1}


def test_sql_needs_no_connection(cli: Cli) -> None:
    out = cli("db", "sql", "--url", "postgresql://nobody@nowhere.invalid/none").out
    assert "create table" in out.lower()


@pytest.mark.parametrize("command", [["list"], ["health"], ["db", "verify"], ["db", "upgrade"]])
def test_an_unreachable_server_is_reported_in_one_line(cli: Cli, command: list[str]) -> None:
    ran = cli(*command, "--url", "postgresql://ada:secret@127.0.0.1:1/none", code=4)
    assert len(ran.err.splitlines()) == 1
    assert "cannot be reached" in ran.err
    assert "Check the URL" in ran.err
    assert "secret" not in ran.err


def test_roles_are_printed_without_a_connection(cli: Cli) -> None:
    out = cli("db", "roles", "--url", "postgresql://nobody@nowhere.invalid/none?schema=second").out
    assert 'grant usage on schema "second" to second_sender' in out


def test_roles_of_a_file_are_refused_in_words(cli: Cli) -> None:
    assert "no roles" in cli("db", "roles", "--url", "sqlite:///x.db", code=4).err


def test_doctor_names_a_lease_that_was_not_taken_back(cli: Cli, url: str) -> None:
    cli("db", "upgrade")
    lease = "(lease_id, domain, worker, claimed_at, until, seqs) values (7, 'shop', 'w', 0, 1, '{1}')"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"insert into commandbus.lease {lease}".encode())
    findings = cli("db", "doctor", "--json").document["findings"]
    (found,) = [finding for finding in findings if finding["subject"] == "leases"]
    assert found["level"] == "warning"
    assert "the first: 7" in found["value"]
