"""`db install-pgmq`, and the command line on a bus over PGMQ."""

import os
from pathlib import Path

import psycopg
import pytest

from commandbus.testing.postgres import create_database
from tests.cli.helpers import Cli
from tests.postgres.database import server

pytestmark = [pytest.mark.postgres, pytest.mark.pgmq]


@pytest.fixture
def url() -> str:
    return create_database(server(os.getpid()))


def test_pgmq_is_installed_and_then_used(cli: Cli, url: str, tmp_path: Path) -> None:
    missing = cli("db", "install-pgmq", "--sql", str(tmp_path / "none.sql"), code=4)
    assert "cannot be read" in missing.err
    assert "SQL only, version 1.13.0" in cli("db", "install-pgmq").err
    on_pgmq = f"{url}{'&' if '?' in url else '?'}transport=pgmq"
    sent = cli("send", "shop", "Buy", "1", "--url", on_pgmq).out.strip()
    with psycopg.connect(url) as connection:
        rows = connection.execute("select message ->> 'command_id' from pgmq.q_shop__commands")
        assert rows.fetchall() == [(sent,)]
    assert [row[0] for row in cli("list", "--url", on_pgmq).rows] == [sent]
    findings = {row[0]: row[2] for row in cli("db", "doctor").rows}
    assert findings["pgmq"] == "SQL only, version 1.13.0; 1 of 1 queues are bound to domains"


def test_without_pgmq_a_bus_over_it_says_what_to_do(cli: Cli, url: str) -> None:
    cli("db", "upgrade")
    on_pgmq = f"{url}{'&' if '?' in url else '?'}transport=pgmq"
    assert "commandbus db install-pgmq" in cli("list", "--url", on_pgmq, code=4).err


def test_other_stores_have_no_pgmq(cli: Cli) -> None:
    assert "PostgreSQL" in cli("db", "install-pgmq", "--url", "sqlite:///x.db", code=4).err
