"""What goes wrong with real servers, and what the bus makes of it."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from contextlib import closing
from typing import Any

import psycopg
import pytest

from commandbus import CommandBus, CommandStatus, HandlerRegistry, SendRequest
from commandbus.domain.lifecycle import PARKED
from commandbus.engines.postgres import schema
from commandbus.engines.postgres.schema import MIGRATIONS, migration_sql, upgrade, verify
from commandbus.errors import (
    ConfigurationError,
    DuplicateCommandError,
    InvalidOperationError,
    SchemaOutdated,
    StoreUnavailable,
)
from commandbus.store.records import ClaimRequest
from commandbus.store.waiting import finish
from commandbus.sync import SyncCommandBus, SyncWorker
from commandbus.testing.postgres import PostgresServer, create_database
from commandbus.testing.waiting import eventually
from tests.postgres.database import empty_url, server

pytestmark = pytest.mark.postgres


@pytest.fixture
def url() -> str:
    return empty_url()


def end_backends(url: str, name: str = "commandbus%") -> int:
    """Terminate connections of buses to this database, and wait; returns how many."""
    with psycopg.connect(url, autocommit=True) as connection:
        return len(
            connection.execute(
                "select pg_terminate_backend(pid, 5000) from pg_stat_activity where datname ="
                " current_database() and pid <> pg_backend_pid() and application_name like %s",
                (name,),
            ).fetchall()
        )


def test_a_missing_schema_names_the_cure() -> None:
    url = create_database(server(os.getpid()))
    with pytest.raises(SchemaOutdated, match="commandbus db upgrade"), SyncCommandBus(url):
        pass
    with SyncCommandBus(url, migrate=True) as bus:
        bus.send("orders", "ship")
    assert [applied.version for applied in verify(url)] == list(range(1, len(MIGRATIONS) + 1))
    assert upgrade(url) == []


def test_two_buses_live_in_two_schemas_of_one_database(url: str) -> None:
    second = f"{url}&schema=second_bus"
    upgrade(second)
    with SyncCommandBus(url) as one, SyncCommandBus(second) as other:
        one.send("orders", "ship")
        assert (one.stats("orders").depth, other.stats("orders").depth) == (1, 0)


@pytest.mark.parametrize("name", ["a-b", "Upper", 'x"; drop', "x" * 41, ""])
def test_a_strange_schema_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="schema"):
        SyncCommandBus(f"postgresql://localhost/x?schema={name}")


def test_another_form_of_a_migration_is_noticed() -> None:
    url = create_database(server(os.getpid()))
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(migration_sql().encode())
        assert verify(url)
        connection.execute("update commandbus.migration set checksum = 'x'")
    with pytest.raises(SchemaOutdated, match="another form"):
        verify(url)


def test_a_newer_schema_that_declares_itself_compatible_is_worked_with() -> None:
    url = create_database(server(os.getpid()))
    upgrade(url)
    known = len(MIGRATIONS)
    add = "insert into commandbus.migration (version, name, checksum, compatible_from)"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"{add} values ({known + 1}, 'a.sql', 'x', {known})".encode())
        connection.execute("alter table commandbus.command add column mood text")
        assert len(verify(url)) == known + 1
        assert upgrade(url) == []
        with SyncCommandBus(url) as bus:
            sent = bus.send("shop", "buy")
            (taken,) = SyncWorker(bus, "shop").receive(1)
            assert taken.command.command_id == sent.command_id
        connection.execute(f"{add} values ({known + 2}, 'b.sql', 'x', {known + 1})".encode())
        for step in (verify, upgrade):
            with pytest.raises(SchemaOutdated, match="upgrade this installation"):
                step(url)


def test_an_upgrade_applies_only_the_migrations_that_are_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url = create_database(server(os.getpid()))
    upgrade(url)
    with SyncCommandBus(url) as bus:
        bus.send("shop", "buy")
    newer = add_migration(monkeypatch, "alter table commandbus.command add column mood text;")
    with pytest.raises(SchemaOutdated, match=f"lacks migration {newer}"):
        verify(url)
    assert upgrade(url) == [newer]
    assert [applied.name for applied in verify(url)] == [*MIGRATIONS, newer]
    with psycopg.connect(url) as connection:
        rows = connection.execute("select mood from commandbus.command").fetchall()
    assert rows == [(None,)], "what was sent before is still there"
    assert upgrade(url) == []


def test_a_migration_that_fails_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    url = create_database(server(os.getpid()))
    upgrade(url)
    before = verify(url)
    with monkeypatch.context() as patch:
        add_migration(patch, "create table commandbus.mood (n int); select 1 / 0;")
        with pytest.raises(psycopg.errors.DivisionByZero):
            upgrade(url)
    assert verify(url) == before
    with psycopg.connect(url) as connection:
        assert connection.execute("select to_regclass('commandbus.mood')").fetchone() == (None,)


def add_migration(patch: pytest.MonkeyPatch, script: str) -> str:
    """A program that knows one migration more; returns the name of the migration."""
    name = f"{len(MIGRATIONS) + 1:04}_newer.sql"
    read = schema.read_text
    patch.setattr(schema, "MIGRATIONS", (*MIGRATIONS, name))
    patch.setattr(schema, "read_text", lambda at, of: script if of == name else read(at, of))
    return name


def test_many_upgrades_at_once_apply_each_migration_once() -> None:
    url = create_database(server(os.getpid()))
    applied: list[list[str]] = []
    threads = [
        threading.Thread(target=lambda: applied.append(upgrade(url)), daemon=True) for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(map(len, applied)) == [0, 0, 0, 0, 0, len(MIGRATIONS)]


def test_terminated_connections_are_replaced_unseen(url: str) -> None:
    with SyncCommandBus(url) as bus:
        for _ in range(5):
            bus.send("orders", "ship")
            assert end_backends(url) >= 1
        assert bus.stats("orders").ready == 5


async def test_terminated_connections_are_replaced_unseen_by_asyncio(url: str) -> None:
    async with CommandBus(url) as bus:
        for _ in range(5):
            await bus.send("orders", "ship")
            assert await asyncio.to_thread(end_backends, url) >= 1
        assert (await bus.stats("orders")).ready == 5


def test_a_read_only_server_is_unavailable_and_forgotten(url: str) -> None:
    with SyncCommandBus(url) as bus, psycopg.connect(url, autocommit=True) as connection:
        bus.send("orders", "ship")
        name = connection.info.dbname
        connection.execute("set default_transaction_read_only = off")
        connection.execute(f"alter database {name} set default_transaction_read_only = on")
        try:
            end_backends(url)
            plain = url + "&target_session_attrs=any"
            with SyncCommandBus(plain) as other, pytest.raises(StoreUnavailable, match="read-only"):
                other.send("orders", "ship")
        finally:
            connection.execute(f"alter database {name} reset default_transaction_read_only")
        bus.send("orders", "ship")
        assert bus.stats("orders").ready == 2


def test_a_fork_is_noticed(url: str) -> None:
    with SyncCommandBus(url) as bus:
        bus.send("orders", "ship")
        child = os.fork()
        if child == 0:
            try:
                bus.send("orders", "ship")
            except InvalidOperationError as error:
                os._exit(0 if "fork" in str(error) else 2)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        bus.send("orders", "ship")


def test_nothing_leaks_into_pooled_connections(url: str) -> None:
    with SyncCommandBus(url + "&pool_size=4") as bus:
        bus.send("orders", "ship")
        SyncWorker(bus, "orders").receive(1)
        pool = bus.engine.sources_of_threads().pool
        with closing(finish(pool.getconn())) as connection:
            shown = [
                connection.execute(f"show {name}").fetchone()[0]
                for name in ("synchronous_commit", "statement_timeout")
            ]
            assert shown == ["on", "25s"]
            idle = connection.execute(
                "select count(*) from pg_stat_activity where state like 'idle in%'"
            ).fetchone()
            assert idle == (0,)


def test_a_failing_send_of_a_group_fails_no_other(url: str) -> None:
    with SyncCommandBus(url) as bus:
        known = bus.send("orders", "ship").command_id
        together = threading.Barrier(16)
        failures: list[Exception] = []

        def work(number: int) -> None:
            together.wait(30)
            for _ in range(20):
                try:
                    bus.send("orders", "ship", command_id=known if number == 0 else None)
                except DuplicateCommandError as error:
                    failures.append(error)

        threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert len(failures) == 20
        assert bus.stats("orders").ready == 1 + 15 * 20


async def test_concurrent_sends_share_commits(url: str) -> None:
    async with CommandBus(url) as bus:
        await bus.send("orders", "ship")
        before = _commits(url)
        await asyncio.gather(*(bus.send("orders", "ship", {"n": n}) for n in range(200)))
        assert (await bus.stats("orders")).ready == 201
        assert _commits(url) - before < 50


def _commits(url: str) -> int:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("select pg_stat_force_next_flush()")
        found = connection.execute(
            "select count(distinct xmin::text) from commandbus.command"
        ).fetchone()
        assert found is not None
        return int(found[0])


async def test_a_canceled_send_leaves_its_connection_clean(url: str) -> None:
    async with CommandBus(url + "&pool_size=2") as bus:
        for _ in range(20):
            task = asyncio.create_task(bus.stats("orders"))
            await asyncio.sleep(0.001)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        async with asyncio.timeout(30):
            stats = await asyncio.gather(*(bus.stats("orders") for _ in range(10)))
        assert [found.depth for found in stats] == [0] * 10


def test_bulk_sends_are_all_or_nothing(url: str) -> None:
    with SyncCommandBus(url) as bus:
        known = bus.send("orders", "ship").command_id
        for size in (3, 500):
            requests: list[Any] = [SendRequest("orders", "ship", {"n": n}) for n in range(size)]
            requests.append(SendRequest("orders", "ship", command_id=known))
            with pytest.raises(DuplicateCommandError) as refused:
                bus.send_many(requests)
            assert refused.value.command_id == known
        assert bus.stats("orders").depth == 1


def test_bulk_data_comes_back_as_it_was(url: str) -> None:
    hostile = [
        "\\",
        "\t",
        "\n",
        "\r\n",
        "\\N",
        "\\.",
        '"',
        "{}",
        ",",
        "'",
        "é",
        "𝄞",
        "\x7f",
        "NULL",
        "",
    ]
    with SyncCommandBus(url) as bus:
        for repeat in (1, 10):
            texts = hostile * repeat
            requests = [
                SendRequest(
                    "orders",
                    "ship",
                    {text: text},
                    unique_key=f"{repeat} {n} {text}",
                    tags=[text or "x"],
                )
                for n, text in enumerate(texts)
            ]
            for text, result in zip(texts, bus.send_many(requests), strict=True):
                record = bus.get_command(result.command_id)
                assert record is not None
                assert record.data == {text: text}
                assert record.tags == (text or "x",)


@pytest.mark.slow
def test_a_worker_survives_an_immediate_restart_of_the_server() -> None:
    with PostgresServer.start() as own:
        url = create_database(own)
        upgrade(url)
        done: list[Any] = []
        registry = HandlerRegistry()

        @registry.handler("orders", "ship")
        def ship(command: Any, context: Any) -> None:
            done.append(command.data)

        with SyncCommandBus(url) as bus:
            worker = SyncWorker(bus, "orders", registry)
            running = threading.Thread(target=worker.run, daemon=True)
            running.start()
            bus.send("orders", "ship", 1)
            eventually(lambda: done == [1])
            own.restart("immediate")
            began = time.monotonic()
            bus.send("orders", "ship", 2)
            eventually(lambda: 2 in done)
            assert time.monotonic() - began < 10
            worker.stop()
            running.join(30)


def test_a_queue_row_without_its_command_is_noted_and_passed_over(url: str) -> None:
    with SyncCommandBus(url) as bus, psycopg.connect(url, autocommit=True) as connection:
        gone, kept = bus.send("work", "note"), bus.send("work", "note")
        connection.execute("delete from commandbus.command where command_id = %s", (gone.command_id,))
        (received,) = SyncWorker(bus, "work").receive(10)
        assert received.command.command_id == kept.command_id
        assert bus.stats("work").ready == 0
        (details,) = connection.execute("select details from commandbus.audit").fetchall()
        assert "ORPHAN" in details[0]


@pytest.mark.parametrize("lease_per_command", [False, True])
def test_a_row_that_no_claim_can_take_is_parked_and_keeps_nothing_else_waiting(
    url: str, lease_per_command: bool
) -> None:
    with SyncCommandBus(url) as bus, psycopg.connect(url, autocommit=True) as connection:
        before, bad, after = (bus.send("bad", "note") for _ in range(3))
        good = bus.send("good", "note")
        connection.execute(
            "update commandbus.command set due_at = -9223372036854775808 where command_id = %s",
            (bad.command_id,),
        )
        claim = ClaimRequest(("bad", "good"), 10, "w", 30.0, lease_per_command=lease_per_command)
        reply = bus.session.run(bus.engine.store.claim(claim))
        expected = {one.command_id for one in (before, after, good)}
        assert {one.command_id for one in reply.claimed} == expected
        assert bus.session.run(bus.engine.store.claim(claim)).claimed == []
        record = bus.get_command(bad)
        assert record is not None
        assert (record.status, record.error_code) == (PARKED, "UNREADABLE")
        assert record.error_message is not None
        assert "out of range" in record.error_message


@pytest.mark.parametrize("value", [-(2**63), 2**63 - 1], ids=["least", "greatest"])
@pytest.mark.parametrize("column", ["due_at", "created_at", "expires_at"])
def test_times_beyond_all_calendars_keep_no_other_command_waiting(
    url: str, column: str, value: int
) -> None:
    with SyncCommandBus(url) as bus, psycopg.connect(url, autocommit=True) as connection:
        bad, good = bus.send("work", "note"), bus.send("work", "note")
        connection.execute(
            f"update commandbus.command set {column} = %s where command_id = %s",
            (value, bad.command_id),
        )
        registry = HandlerRegistry()
        registry.handler("work", "note")(lambda command, context: None)
        with SyncWorker(bus, "work", registry):
            assert bus.wait(good, timeout=20).status is CommandStatus.COMPLETED
            eventually(lambda: bus.stats("work").ready == 0)
        assert len(bus.query_commands(domain="work").items) == 2
