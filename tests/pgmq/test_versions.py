"""Both versions of PGMQ, both ways of installing it, and what is said where it is missing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import psycopg
import pytest

from commandbus import (
    CommandStatus,
    HandlerRegistry,
    PermanentCommandError,
    RetryPolicy,
    SendRequest,
    TransientCommandError,
)
from commandbus.connect import create_administration
from commandbus.engines.postgres.pgmq import installation
from commandbus.errors import ConfigurationError, SchemaOutdated
from commandbus.sync import SyncCommandBus, SyncTroubleshootingQueue, SyncWorker
from commandbus.testing import SyncHarness
from commandbus.testing.harness import Configuration
from commandbus.testing.postgres import create_database
from tests.pgmq.extension import VERSION, database_with_offer
from tests.postgres.database import server

pytestmark = [pytest.mark.postgres, pytest.mark.pgmq]


def execute(url: str, query: Any, *params: Any) -> list[Any]:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(query, params)
        return cursor.fetchall() if cursor.description else []


def pgmq_finding(url: str) -> Any:
    return next(f for f in create_administration(url).doctor() if f.subject == "pgmq")


def test_a_command_goes_its_way(versioned_url: str) -> None:
    """Sent one by one and in bulk, retried, parked, tried again, replied to, and gone in the end."""
    runs: list[Any] = []

    def ship(command: Any, context: Any) -> Any:
        runs.append((command.data, context.attempt))
        if command.data == "never" and len([run for run in runs if run[0] == "never"]) < 3:
            raise TransientCommandError("BUSY", "not yet")
        return command.data

    registry = HandlerRegistry()
    registry.register("orders", "ship", ship)
    harness = SyncHarness(Configuration("pgmq", versioned_url), {"transport": "pgmq"})
    policy = RetryPolicy(max_attempts=2, backoff_schedule=[0.01])
    try:
        with harness.run_worker(registry, "orders", retry_policy=policy):
            parked = harness.send("orders", "ship", "never")
            assert harness.wait(parked).status is CommandStatus.IN_TROUBLESHOOTING_QUEUE
            many = [SendRequest("orders", "ship", n, reply_to="answers") for n in range(300)]
            harness.send_many(many)
            harness.operator_retry(parked)
            assert harness.wait(parked).status is CommandStatus.COMPLETED
            sent = harness.query(domain="orders", limit=1)[0]
            harness.wait(sent.command_id)
    finally:
        harness.close()
    left = execute(versioned_url, "select queue_name, queue_length from pgmq.metrics_all() order by 1")
    assert left == [("answers__commands", 0), ("answers__replies", 300), ("orders__commands", 0)]
    assert len(execute(versioned_url, "select 1 from pgmq.a_orders__commands")) == 1


def test_the_doctor_says_which_it_is(versioned_url: str) -> None:
    found = pgmq_finding(versioned_url)
    kind, version = found.value.split(";")[0].split(", version ")
    assert found.level == "ok"
    assert (kind, version) in {("extension", VERSION), ("SQL only", "1.13.0")}


def test_installing_twice_changes_nothing(versioned_url: str) -> None:
    assert installation.install(versioned_url) == installation.install(versioned_url)


def test_the_columns_of_the_version_are_kept(versioned_url: str) -> None:
    """Archived messages have every column that PGMQ itself would archive."""
    with SyncCommandBus(versioned_url, transport="pgmq") as bus:
        bus.send("columns", "ship")
        worker = SyncWorker(bus, "columns", HandlerRegistry())
        (received,) = worker.receive()
        worker.fail(received, PermanentCommandError("BROKEN", "no use"))
    ((archived,),) = execute(versioned_url, "select to_json(a) from pgmq.a_columns__commands a")
    assert archived["read_ct"] == 1
    assert archived["message"]["command_type"] == "ship"
    assert archived["last_read_at"] is not None


def test_without_pgmq_the_error_says_how_to_get_it() -> None:
    url = create_database(server(os.getpid()))
    with pytest.raises(ConfigurationError, match="commandbus db install-pgmq"):
        SyncCommandBus(url, transport="pgmq", migrate=True).open()
    assert pgmq_finding(url).value.startswith("not installed")


def test_with_pgmq_alone_the_tables_of_the_bus_are_asked_for() -> None:
    url = create_database(server(os.getpid()))
    installation.install(url)
    execute(url, "drop table commandbus.pgmq_queue")
    with pytest.raises(SchemaOutdated, match="install-pgmq"):
        SyncCommandBus(url, transport="pgmq").open()
    with SyncCommandBus(url, transport="pgmq", migrate=True) as bus:
        bus.send("orders", "ship")


def test_an_old_pgmq_is_refused() -> None:
    url = create_database(server(os.getpid()))
    execute(url, "create schema pgmq")
    execute(url, "create table pgmq.meta (queue_name text)")
    execute(url, "create type pgmq.message_record as (msg_id bigint, message jsonb)")
    with pytest.raises(ConfigurationError, match="no headers"):
        SyncCommandBus(url, transport="pgmq", migrate=True).open()


def test_a_given_file_is_preferred_to_the_extension(tmp_path: Path) -> None:
    url = database_with_offer()
    file = tmp_path / "pgmq--9.9.9.sql"
    file.write_text(installation._script(None)[0], encoding="utf-8")
    assert str(installation.install(url, str(file))) == "SQL only, version 9.9.9"


def test_messages_that_were_refused_are_the_doctors_concern() -> None:
    url = create_database(server(os.getpid()))
    installation.install(url)
    with SyncCommandBus(url, transport="pgmq") as bus:
        worker = SyncWorker(bus, "orders", HandlerRegistry())
        worker.receive()
        execute(url, "select pgmq.send('orders__commands', '5')")
        assert worker.receive() == []
        assert SyncTroubleshootingQueue(bus).count() == 0
    found = pgmq_finding(url)
    assert (found.level, "1 messages" in found.value) == ("warning", True)
