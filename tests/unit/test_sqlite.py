"""What is special about SQLite: its file, its one writer, its lanes, its locks."""

from __future__ import annotations

import multiprocessing
import os
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from commandbus.domain.command import SendRequest
from commandbus.engines.sqlite import SqliteEngine, doctor, schema
from commandbus.engines.sqlite.doctor import SqliteAdministration
from commandbus.engines.sqlite.lane import WriteLane
from commandbus.engines.sqlite.lock import WriteLock
from commandbus.engines.sqlite.schema import MIGRATIONS
from commandbus.errors import (
    ConfigurationError,
    DuplicateCommandError,
    InvalidOperationError,
    SchemaOutdated,
    StoreUnavailable,
)
from commandbus.store.op import Op, Statement, Wake
from commandbus.store.records import ClaimRequest
from commandbus.store.versions import compatible_from
from commandbus.sync import SyncCommandBus, SyncWorker


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[SyncCommandBus]:
    with SyncCommandBus(f"sqlite:///{tmp_path}/test.db?synchronous=off") as opened:
        yield opened


# What is in the file.


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "test.db").write_bytes(b"this is no database" * 100)
    with pytest.raises(ConfigurationError, match="not a healthy SQLite database"):
        SqliteEngine(f"sqlite:///{tmp_path}/test.db").open()


def edit(tmp_path: Path, sql: str) -> None:
    connection = sqlite3.connect(tmp_path / "test.db")
    with connection:
        connection.execute(sql)
    connection.close()


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        (
            "insert into commandbus_schema values (999, 'future.sql', 'x', 0, 999)",
            "newer durable-commandbus; upgrade",
        ),
        (
            "update commandbus_schema set checksum = 'other' where version = 1",
            "applied to this file in another form",
        ),
    ],
    ids=["newer", "another build"],
)
def test_a_file_of_another_version_is_refused_and_left_alone(
    tmp_path: Path, sql: str, said: str
) -> None:
    url = f"sqlite:///{tmp_path}/test.db"
    with SyncCommandBus(url) as bus:
        bus.send("shop", "Order")
    edit(tmp_path, sql)
    with pytest.raises(SchemaOutdated, match=said):
        SyncCommandBus(url).open()
    rows = sqlite3.connect(tmp_path / "test.db")
    assert rows.execute("select count(*) from commandbus_command").fetchone() == (1,)
    rows.close()


def test_a_newer_file_that_declares_itself_compatible_is_worked_with(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/test.db"
    SyncCommandBus(url).open().close()
    known = len(MIGRATIONS)
    edit(tmp_path, f"insert into commandbus_schema values ({known + 1}, 'a.sql', 'x', 0, {known})")
    edit(tmp_path, "alter table commandbus_command add column mood text")
    assert SqliteAdministration(url).verify().startswith(f"version {known + 1}")
    with SyncCommandBus(url) as bus:
        sent = bus.send("shop", "Order")
        (taken,) = SyncWorker(bus, "shop").receive(1)
        assert taken.command.command_id == sent.command_id
    edit(tmp_path, f"insert into commandbus_schema values ({known + 2}, 'b.sql', 'x', 0, {known + 1})")
    for step in (SyncCommandBus(url).open, SqliteAdministration(url).verify):
        with pytest.raises(SchemaOutdated, match="upgrade this installation"):
            step()


def test_an_upgrade_applies_only_the_migrations_that_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path}/test.db"
    with SyncCommandBus(url) as bus:
        bus.send("shop", "Order")
    newer = f"{len(MIGRATIONS) + 1:04}_newer.sql"
    script = "-- Adds a column.\nalter table commandbus_command add column mood text;\n"
    read = schema.read_text
    monkeypatch.setattr(schema, "MIGRATIONS", (*MIGRATIONS, newer))
    monkeypatch.setattr(schema, "read_text", lambda at, of: script if of == newer else read(at, of))
    with pytest.raises(SchemaOutdated, match="run `commandbus db upgrade`"):
        SqliteAdministration(url).verify()
    with SyncCommandBus(url) as bus:
        assert bus.stats("shop").ready == 1, "what was sent before is still there"
    assert SqliteAdministration(url).verify() == f"version {len(MIGRATIONS) + 1} (0002_newer)"
    edit(tmp_path, "update commandbus_command set mood = 'good'")


@pytest.mark.parametrize(
    ("script", "lowest"),
    [
        ("-- Adds a table.\n-- compatible from: 3\ncreate table t (n integer)", 3),
        ("-- Adds a table.\ncreate table t (n integer)", 5),
        ("-- compatible from: 9\n", 5),
    ],
)
def test_a_migration_declares_which_programs_it_is_for(script: str, lowest: int) -> None:
    assert compatible_from(script, 5) == lowest


def test_a_table_that_vanished_is_named(tmp_path: Path, bus: SyncCommandBus) -> None:
    edit(tmp_path, "drop table commandbus_command")
    with pytest.raises(SchemaOutdated, match="commandbus_command"):
        bus.send("shop", "Order")


def test_what_was_sent_is_there_after_reopening(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/test.db"
    with SyncCommandBus(url) as bus:
        command_id = bus.send("shop", "Order", {"n": 1}).command_id
    bus.open()
    bus.open()
    found = bus.get_command(command_id)
    bus.close()
    bus.close()
    assert found is not None
    assert found.data == {"n": 1}


# One writer.


def test_another_connections_write_transaction_is_waited_for(
    tmp_path: Path, bus: SyncCommandBus
) -> None:
    other = sqlite3.connect(tmp_path / "test.db", isolation_level=None, check_same_thread=False)
    other.execute("begin immediate")
    sent: list[Any] = []
    sending = threading.Thread(target=lambda: sent.append(bus.send("shop", "Order")), daemon=True)
    sending.start()
    sending.join(0.2)
    assert sent == []
    other.execute("commit")
    sending.join(30)
    other.close()
    assert len(sent) == 1


def test_a_lock_held_for_too_long_is_an_error_of_the_bus(tmp_path: Path, bus: SyncCommandBus) -> None:
    writer = bus.engine._writer  # type: ignore[attr-defined]
    writer.connection.execute("pragma busy_timeout = 1")
    other = sqlite3.connect(tmp_path / "test.db", isolation_level=None)
    other.execute("begin immediate")
    with pytest.raises(StoreUnavailable, match="holds the SQLite file's write lock") as caught:
        bus.send("shop", "Order")
    other.execute("rollback")
    other.close()
    assert "database is locked" not in str(caught.value)
    assert bus.send("shop", "Order").command_id


def whereabouts() -> Op[int]:
    yield Statement("select 1")
    return threading.get_ident()


def test_a_thread_that_finds_a_lane_free_runs_its_op_itself(bus: SyncCommandBus) -> None:
    with ThreadPoolExecutor(1) as other:
        for read in (False, True):
            ran = other.submit(bus.session.run, whereabouts(), read=read).result()
            assert ran == other.submit(threading.get_ident).result()


def test_the_main_thread_leaves_transactions_to_the_lane(bus: SyncCommandBus) -> None:
    """A signal's exception is raised in the main thread, wherever it is."""
    assert bus.session.run(whereabouts()) != threading.main_thread().ident
    assert bus.session.run(whereabouts(), read=True) != threading.main_thread().ident


def test_while_another_process_writes_the_lane_waits_for_it(
    tmp_path: Path, bus: SyncCommandBus
) -> None:
    writer = bus.engine._writer  # type: ignore[attr-defined]
    op = whereabouts()
    with WriteLock(tmp_path / "test.db.lock", tmp_path / "test.db"):
        assert writer.run(op) is None
        waiting = writer.submit(op)
    assert waiting.result(30) != threading.get_ident()


class Held:
    """A write lock that a test holds, so that orders pile up behind it."""

    def __init__(self, tmp_path: Path) -> None:
        self.gate = threading.Lock()
        self.path = tmp_path / "lane.db"
        self.told: list[Wake] = []
        self.commits = 0
        lane_lock = self

        class Lock(WriteLock):
            def __init__(self) -> None: ...

            def take_if_free(self) -> bool:
                return False

            def __enter__(self) -> None:
                lane_lock.gate.acquire()

            def __exit__(self, *error: object) -> None:
                lane_lock.gate.release()

        self.lane = WriteLane(
            "test-lane", self._connect, "NORMAL", Lock(), lambda: None, self._committed
        )

    def _connect(self) -> sqlite3.Connection:
        made = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
        made.execute("create table if not exists t (n integer primary key)")
        return made

    def _committed(self, wakes: list[Wake]) -> None:
        self.commits += 1
        self.told += wakes

    def rows(self) -> list[int]:
        with sqlite3.connect(self.path) as reader:
            found = [row[0] for row in reader.execute("select n from t order by n")]
        reader.close()
        return found


def insert(number: int) -> Op[int]:
    yield Statement("insert into t values (?)", (number,))
    yield Wake(f"d{number}")
    return number


def fail_after_insert(number: int) -> Op[int]:
    yield Statement("insert into t values (?)", (number,))
    yield Wake("never")
    raise InvalidOperationError("changed my mind")


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Held]:
    made = Held(tmp_path)
    yield made
    made.lane.close()


def pile_up(held: Held, ops: list[Op[int]]) -> list[Future[int]]:
    """Submit while a first op waits for the lock, so that the rest form one group."""
    with held.gate:
        first = held.lane.submit(insert(0))
        while not first.running():
            threading.Event().wait(0.001)
        return [first, *(held.lane.submit(op) for op in ops)]


def test_ops_that_wait_together_share_one_commit(held: Held) -> None:
    futures = pile_up(held, [insert(n) for n in range(1, 21)])
    assert [future.result(30) for future in futures] == list(range(21))
    assert held.commits == 2
    assert [wake.domain for wake in held.told] == [f"d{n}" for n in range(21)]


def test_an_op_that_fails_takes_no_other_with_it(held: Held) -> None:
    futures = pile_up(held, [insert(1), fail_after_insert(2), insert(1), insert(3)])
    assert futures[1].result(30) == 1
    with pytest.raises(InvalidOperationError, match="changed my mind"):
        futures[2].result(30)
    with pytest.raises(Exception, match="UNIQUE constraint"):
        futures[3].result(30)
    assert futures[4].result(30) == 3
    assert held.rows() == [0, 1, 3]
    assert "never" not in [wake.domain for wake in held.told]


def test_an_op_that_fails_alone_leaves_nothing(held: Held) -> None:
    with pytest.raises(InvalidOperationError):
        held.lane.submit(fail_after_insert(5)).result(30)
    assert held.lane.submit(insert(6)).result(30) == 6
    assert held.rows() == [6]


def test_closing_a_lane_finishes_what_was_submitted_and_refuses_the_rest(held: Held) -> None:
    futures = pile_up(held, [insert(n) for n in range(1, 6)])
    held.lane.close()
    assert [future.result(0) for future in futures] == [0, 1, 2, 3, 4, 5]
    with pytest.raises(InvalidOperationError, match="closed"):
        held.lane.submit(insert(9))


def test_an_order_that_is_canceled_before_its_turn_is_not_carried_out(held: Held) -> None:
    with held.gate:
        first = held.lane.submit(insert(0))
        while not first.running():
            threading.Event().wait(0.001)
        doomed = held.lane.submit(insert(1))
        assert doomed.cancel()
    assert held.lane.submit(insert(2)).result(30) == 2
    assert held.rows() == [0, 2]


def test_of_concurrent_sends_of_one_id_exactly_one_succeeds(bus: SyncCommandBus) -> None:
    command_id = bus.send("shop", "Other").command_id
    outcomes: list[str] = []

    def send() -> None:
        try:
            bus.send("billing", "Order", command_id=command_id)
            outcomes.append("sent")
        except DuplicateCommandError:
            outcomes.append("duplicate")

    threads = [threading.Thread(target=send, daemon=True) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(outcomes) == ["duplicate"] * 7 + ["sent"]


# Processes.


def use_in_child(bus: SyncCommandBus, answers: Any) -> None:
    try:
        bus.send("shop", "Order")
        answers.put("sent")
    except InvalidOperationError as error:
        bus.close()
        answers.put(str(error))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_bus_from_before_a_fork_refuses_to_work_in_the_child(bus: SyncCommandBus) -> None:
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    child = context.Process(target=use_in_child, args=(bus, answers))
    child.start()
    assert "opened before a fork" in answers.get(timeout=30)
    child.join(30)
    assert child.exitcode == 0
    assert bus.send("shop", "Order").command_id


def test_a_closed_bus_says_how_to_open_it(tmp_path: Path) -> None:
    bus = SyncCommandBus(f"sqlite:///{tmp_path}/test.db")
    with pytest.raises(InvalidOperationError, match="with bus:"):
        bus.send("shop", "Order")


# Rows that were changed by hand.


def test_a_lease_of_a_dead_worker_on_a_deleted_command_delays_no_rescue(tmp_path: Path) -> None:
    with SyncCommandBus(f"sqlite:///{tmp_path / 'test.db'}") as bus:
        bus.send("d", "t", 1)
        kept = bus.send("d", "t", 2).command_id
        SyncWorker(bus, "d", name="doomed").receive(2)
        edit(tmp_path, "delete from commandbus_command where seq = 1")
        edit(tmp_path, "update commandbus_lease set until = 0")
        assert [taken.command.command_id for taken in SyncWorker(bus, "d").receive(2)] == [kept]


def test_a_queue_row_without_its_command_is_noted_and_passed_over(tmp_path: Path) -> None:
    file = tmp_path / "test.db"
    with SyncCommandBus(f"sqlite:///{file}?synchronous=off") as bus:
        gone, kept = bus.send("work", "note"), bus.send("work", "note")
        connection = sqlite3.connect(file)
        connection.execute(
            "delete from commandbus_command where command_id = ?", (gone.command_id.bytes,)
        )
        connection.commit()
        (received,) = SyncWorker(bus, "work").receive(10)
        assert received.command.command_id == kept.command_id
        assert bus.stats("work").ready == 0
        (details,) = connection.execute("select details from commandbus_audit").fetchone()
        assert "ORPHAN" in details
        connection.close()


def test_a_due_row_without_its_command_is_noted_and_goes(tmp_path: Path) -> None:
    """If it stayed, idle workers would be told that something is due now, for ever."""
    with SyncCommandBus(f"sqlite:///{tmp_path / 'test.db'}") as bus:
        bus.send("d", "t", delay=60)
        edit(tmp_path, "delete from commandbus_command")
        edit(tmp_path, "update commandbus_scheduled set due_at = 1")
        reply = bus.session.run(bus.engine.store.claim(ClaimRequest(("d",), 1, "w", 30.0)))
        assert (reply.claimed, reply.next_due_in) == ([], None)
        assert "ORPHAN" in str(rows_of(tmp_path, "commandbus_audit"))


def test_a_rescue_that_finds_the_disk_full_changes_nothing(tmp_path: Path) -> None:
    """SQLite undoes the whole transaction then; what the claim did next would commit by itself."""
    with SyncCommandBus(f"sqlite:///{tmp_path / 'test.db'}") as bus:
        for _ in range(2):
            bus.send_many([SendRequest("d", "t")] * 200)
            bus.session.run(bus.engine.store.claim(ClaimRequest(("d",), 200, "doomed", 30.0)))
        bus.send("d", "t")
        edit(tmp_path, "update commandbus_lease set until = 0")
        tables = ("lease", "queue", "scheduled", "audit", "outcome")
        before = [rows_of(tmp_path, f"commandbus_{table}") for table in tables]
        connection = fill(bus)
        with pytest.raises(StoreUnavailable, match="disk is full"):
            bus.session.run(bus.engine.store.claim(ClaimRequest(("d",), 500, "next", 30.0)))
        assert [rows_of(tmp_path, f"commandbus_{table}") for table in tables] == before
        connection.execute("pragma max_page_count = 1000000")
        reply = bus.session.run(bus.engine.store.claim(ClaimRequest(("d",), 500, "next", 30.0)))
        assert (len(reply.claimed), reply.rescued, reply.stuck) == (401, 400, ())


def rows_of(tmp_path: Path, table: str) -> list[Any]:
    with closing(sqlite3.connect(tmp_path / "test.db")) as connection:
        return connection.execute(f"select * from {table} order by 1, 2, 3").fetchall()


def fill(bus: SyncCommandBus) -> sqlite3.Connection:
    """Let the file of a bus have no page more than it uses; returns the connection that says so."""
    engine: Any = bus.engine
    connection: sqlite3.Connection = engine._writer.connection
    connection.execute("create table ballast (bytes blob)")
    while connection.execute("pragma freelist_count").fetchone()[0]:
        connection.execute("insert into ballast values (zeroblob(3000))")
    (pages,) = connection.execute("pragma page_count").fetchone()
    connection.execute(f"pragma max_page_count = {pages}")
    return connection


def test_an_empty_claim_says_when_the_next_command_is_due(tmp_path: Path) -> None:
    """A worker that starts later than the send hears of the moment by its first claim alone."""
    with SyncCommandBus(f"sqlite:///{tmp_path}/due.db") as bus:
        bus.send("d", "later", delay=50)
        reply = bus.session.run(bus.engine.store.claim(ClaimRequest(("d",), 1, "w", 30.0)))
    assert reply.claimed == []
    assert reply.next_due_in == pytest.approx(50, abs=10)


@pytest.mark.parametrize("sweep", [True, False])
def test_a_claim_that_promotes_due_work_says_when_more_is_due(tmp_path: Path, sweep: bool) -> None:
    """Behind a backlog no claim is empty, and the next sweep may be 0.1 s away."""
    with SyncCommandBus(f"sqlite:///{tmp_path}/due.db") as bus:
        bus.send("paused", "note", delay=5)
        bus.pause("paused")
        bus.send("d", "later", delay=50)
        bus.send("d", "now")
        request = ClaimRequest(("d", "paused"), 1, "w", 30.0, sweep=sweep)
        reply = bus.session.run(bus.engine.store.claim(request))
    assert len(reply.claimed) == 1
    assert reply.next_due_in == (pytest.approx(50, abs=10) if sweep else None)


@pytest.mark.parametrize(
    ("ahead", "level"), [(0.0, "ok"), (-5.0, "ok"), (5.0, "ok"), (5.1, "error"), (-5.1, "error")]
)
def test_the_doctor_compares_the_clock_with_that_of_the_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: float, level: str
) -> None:
    url = f"sqlite:///{tmp_path}/test.db"
    SyncCommandBus(url).open().close()
    monkeypatch.setattr(doctor, "clock_difference", lambda path, clock: ahead)
    found = {finding.subject: finding for finding in SqliteAdministration(url).doctor()}
    assert found["clock"].level == level
    assert found["clock"].value == f"{abs(ahead):.1f} s from that of the file system"
