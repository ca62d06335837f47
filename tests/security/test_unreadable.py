"""One record that cannot be read breaks no list, no search and no action of an operator."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx
import psycopg
import pytest

from commandbus import CommandBus, CommandRecord, CommandStatus, HandlerRegistry, PermanentCommandError
from commandbus.errors import InvalidOperationError
from commandbus.interfaces.cli import target
from commandbus.interfaces.cli.promotion import move
from commandbus.interfaces.web import create_dashboard
from commandbus.operations.parked_notes import escalate
from commandbus.processes import ProcessRecord
from commandbus.records import Unreadable
from commandbus.store.records import Capacity
from commandbus.store.replies import follow_up
from commandbus.sync import (
    SyncCommandBus,
    SyncProcessManager,
    SyncTroubleshootingQueue,
    SyncWorker,
)
from commandbus.testing.conformance.helpers import registry_of
from commandbus.testing.handlers import Recorder
from commandbus.testing.harness import Harness
from commandbus.testing.sagas import BookTrip, Trip
from commandbus.testing.waiting import eventually
from tests.cli.helpers import Cli

DOMAIN = "shop"
FAR = 9_000_000_000_000_000_000
"""Microseconds: about the year 287,000."""

TEXTS = {
    "no json": "no json",
    "nothing": "",
    "half a document": '{"a": ',
    "1,500 levels": "[" * 1500 + "]" * 1500,
    "200 levels": "[" * 200 + "]" * 200,
    "1e999": "1e999",
    "a number beyond 64 bits": str(2**70),
    "a lone surrogate": '"\\ud800"',
}


@dataclass
class Shop:
    """A store whose rows can be damaged past all checks."""

    url: str
    bus: SyncCommandBus
    update: Callable[[str, str, Any, int], None]
    """Table, column, value, and the sequence of the command."""

    @property
    def desk(self) -> SyncTroubleshootingQueue:
        return SyncTroubleshootingQueue(self.bus)

    def park(self, data: Any = None, **options: Any) -> CommandRecord:
        sent = self.bus.send(DOMAIN, "Buy", data, **options).command_id
        worker = SyncWorker(self.bus, DOMAIN)
        (received,) = worker.receive()
        worker.fail(received, PermanentCommandError("BROKEN", "it is broken"))
        return self.get(sent)

    def get(self, command_id: UUID) -> CommandRecord:
        record = self.bus.get_command(command_id, domain=DOMAIN)
        assert record is not None
        return record

    def damage(self, record: CommandRecord, **columns: Any) -> CommandRecord:
        for name, value in columns.items():
            table, _, column = name.partition("_")
            self.update(table, column, value, record.sequence)
        return self.get(record.command_id)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/bus.db?synchronous=off"

        def update(table: str, column: str, value: Any, seq: int) -> None:
            with closing(sqlite3.connect(tmp_path / "bus.db")) as connection, connection:
                sql = f"update commandbus_{table} set {column} = ? where seq = ?"
                assert connection.execute(sql, (value, seq)).rowcount >= 1

    else:
        from tests.postgres.database import postgres_configuration

        url = postgres_configuration().url

        def update(table: str, column: str, value: Any, seq: int) -> None:
            with psycopg.connect(url) as connection:
                sql = f"update commandbus.{table} set {column} = %s where seq = %s"
                assert connection.execute(sql.encode(), (value, seq)).rowcount >= 1

    with SyncCommandBus(url) as bus:
        yield Shop(url, bus, update)


def damages() -> list[Any]:
    """Every JSON column with every bad text, and times that no datetime holds."""
    columns = ("command_data", "command_headers", "command_tags", "outcome_error", "audit_details")
    found = [
        pytest.param({column: text}, id=f"{column} is {name}")
        for column in columns
        for name, text in TEXTS.items()
    ]
    for column in ("command_created_at", "command_due_at", "command_expires_at", "audit_at"):
        found.append(pytest.param({column: FAR}, id=f"{column} is far away"))
        found.append(pytest.param({column: -FAR}, id=f"{column} is long ago"))
    for column in ("outcome_finished_at", "outcome_started_at"):
        found.append(pytest.param({column: -FAR}, id=f"{column} is long ago"))
    found.append(pytest.param({"command_headers": "[1]"}, id="headers are a list"))
    found.append(pytest.param({"command_tags": '{"x": 1}'}, id="tags are an object"))
    found.append(pytest.param({"command_data": '"a\\u0000b"'}, id="data has a NUL"))
    found.append(pytest.param({"audit_kind": "STRANGE"}, id="an entry of an unknown kind"))
    found.append(pytest.param({"audit_details": '{"error": 7}'}, id="a noted error is a number"))
    return found


@pytest.mark.parametrize("damage", damages())
def test_every_read_and_every_action_goes_on(shop: Shop, damage: dict[str, Any]) -> None:
    good = shop.park({"n": 1}, tags=["a"], headers={"h": "1"})
    bad = shop.park({"n": 2}, tags=["b"], headers={"h": "2"})
    last = shop.park({"n": 3}, tags=["c"], headers={"h": "3"})
    everything = {good.command_id, bad.command_id, last.command_id}
    shop.damage(bad, **damage)

    for page in (
        shop.bus.query_commands(),
        shop.bus.query_commands(domain=DOMAIN, status="IN_TROUBLESHOOTING_QUEUE"),
        shop.desk.list_troubleshooting(),
    ):
        assert {record.command_id for record in page} == everything
    for conditions, wanted in (
        ({"tag": "a"}, good),
        ({"data": {"n": "1"}}, good),
        ({"headers": {"h": "3"}}, last),
    ):
        assert [r.command_id for r in shop.bus.query_commands(**conditions)] == [wanted.command_id]
    assert good.command_id in {r.command_id for r in shop.bus.query_commands(error="BROKEN")}
    assert shop.desk.count(DOMAIN) == 3
    assert sum(group.count for group in shop.desk.group_failures()) == 3
    assert len(shop.desk.list_cases(shop.desk.list_troubleshooting())) == 3
    assert shop.bus.wait(bad.command_id, 5).status is CommandStatus.IN_TROUBLESHOOTING_QUEUE
    assert shop.bus.why(bad.command_id).reasons
    assert shop.bus.get_audit_trail(bad.command_id)
    assert shop.bus.search_audit()
    assert shop.bus.search_audit(actor="ann") is not None
    registry = HandlerRegistry()
    registry.register(DOMAIN, "Buy", lambda command, context: None)
    assert shop.bus.check_payloads(registry).checked == 3
    shop.bus.session.run(escalate(shop.bus.scope, 0.0, "alarms", 60.0))
    shop.desk.acting("ann").comment(bad.command_id, "looked at it")
    shop.desk.assign(bad.command_id, "ann")
    assert [r.command_id for r in shop.desk.list_assigned("ann")] == [bad.command_id]

    shop.desk.acting("ann").operator_cancel(bad.command_id, reason="cannot be read")
    assert shop.get(bad.command_id).status is CommandStatus.CANCELED
    shop.desk.operator_complete(good.command_id, {"by": "hand"})
    report = shop.bus.acting("ann").erase(reason="asked", data={"n": "3"}, cancel_waiting=True)
    assert (report.erased, report.complete) == (1, True)
    shop.bus.prune({"CANCELED": 1, "COMPLETED": 1})
    assert shop.bus.stats(DOMAIN).parked == 0


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
class TestData:
    def test_it_is_shown_as_unreadable_with_a_reason(self, shop: Shop, text: str) -> None:
        record = shop.damage(shop.park({"n": 1}), command_data=text, command_headers=text)
        assert isinstance(record.data, Unreadable)
        assert record.data.reason
        assert record.headers == {}
        assert [problem.partition(":")[0] for problem in record.unreadable] == ["data", "headers"]

    def test_a_retry_is_refused_until_the_data_is_replaced(self, shop: Shop, text: str) -> None:
        record = shop.damage(shop.park(), command_data=text)
        with pytest.raises(InvalidOperationError, match="data cannot be read"):
            shop.desk.operator_retry(record.command_id)
        report = shop.desk.bulk("retry", domain=DOMAIN)
        assert (report.done, report.refused) == (0, 1)
        shop.desk.acting("ann").operator_retry(record.command_id, data={"n": 1})
        mended = shop.get(record.command_id)
        assert (mended.data, mended.status, mended.unreadable) == ({"n": 1}, "PENDING", ())
        (retried,) = [
            e for e in shop.bus.get_audit_trail(record.command_id) if e.event_type == "OPERATOR_RETRY"
        ]
        assert "unreadable" in retried.details["original_data"]
        assert shop.bus.verify_audit().problems == []

    def test_a_command_that_waits_is_canceled(self, shop: Shop, text: str) -> None:
        sent = shop.bus.send(DOMAIN, "Buy").command_id
        shop.damage(shop.get(sent), command_data=text)
        shop.bus.cancel(sent)
        assert shop.get(sent).status is CommandStatus.CANCELED

    def test_an_erasure_replaces_it(self, shop: Shop, text: str) -> None:
        record = shop.damage(shop.park({"n": 1}, tags=["ann"]), command_data=text, outcome_error=text)
        shop.desk.operator_cancel(record.command_id, reason="asked for")
        shop.damage(record, outcome_result=text, audit_details=text)
        report = shop.bus.acting("dpo").erase(reason="asked", tag="ann")
        assert report.erased == 1
        erased = shop.get(record.command_id)
        assert (erased.data, erased.unreadable) == ({"erased": True}, ())


def test_a_moment_out_of_range_is_the_last_or_the_first(shop: Shop) -> None:
    sent = shop.bus.send(DOMAIN, "Buy").command_id
    record = shop.damage(shop.get(sent), command_expires_at=FAR, command_created_at=-FAR)
    assert record.expires_at == datetime.max.replace(tzinfo=UTC)
    assert record.created_at == datetime.min.replace(tzinfo=UTC)


def test_a_status_that_is_none_is_named_and_left_to_an_operator(shop: Shop) -> None:
    good, bad = shop.park(), shop.park()
    record = shop.damage(bad, outcome_status="STRANGE")
    assert record.status is CommandStatus.IN_TROUBLESHOOTING_QUEUE
    assert "STRANGE" in str(record.unreadable)
    listed = {one.command_id for one in shop.bus.query_commands()}
    assert listed == {good.command_id, bad.command_id}
    assert shop.bus.take_samples() is not None


def test_a_result_that_cannot_be_read_is_marked(shop: Shop) -> None:
    sent = shop.bus.send(DOMAIN, "Buy").command_id
    worker = SyncWorker(shop.bus, DOMAIN)
    worker.complete(worker.receive()[0], 7)
    record = shop.damage(shop.get(sent), outcome_result="1e999")
    assert record.result == Unreadable("Number out of range")
    assert record.unreadable == ("result: Number out of range",)


@pytest.mark.parametrize("column", ["state", "progress", "error"])
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
def test_a_process_that_cannot_be_read_breaks_no_list(shop: Shop, column: str, text: str) -> None:
    manager = SyncProcessManager(shop.bus, BookTrip)
    bad, good = (manager.start(Trip()).process_id for _ in range(2))
    shop.update("process", column, text, _process(shop, bad).sequence)
    listed = {record.process_id: record for record in shop.bus.list_processes()}
    assert set(listed) == {bad, good}
    assert _process(shop, bad) == listed[bad]
    if column == "state":
        assert isinstance(listed[bad].state, Unreadable)
    else:
        error = listed[bad].error
        assert error is not None
        assert error.code == "UNREADABLE"
    assert shop.bus.get_process_audit(bad)


def _process(shop: Shop, process_id: UUID) -> ProcessRecord:
    record = shop.bus.get_process(process_id)
    assert record is not None
    return record


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
def test_the_command_line_shows_it(
    shop: Shop, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COMMANDBUS_URL", shop.url)
    monkeypatch.setattr(target, "chosen_url", None)
    columns = {"command_data": text, "command_headers": text, "audit_details": text}
    bad, good = shop.park(), shop.park({"n": 1})
    shop.damage(bad, command_expires_at=FAR, **columns)
    cli = Cli()
    for arguments in (("list",), ("tsq", "list")):
        for form in ((), ("--json",)):
            shown = cli(*arguments, *form).out
            assert str(bad.command_id) in shown
            assert str(good.command_id) in shown
    assert "unreadable" in cli("show", str(bad.command_id)).out
    assert "unreadable" in cli("show", str(bad.command_id), "--json").out
    cli("why", str(bad.command_id))
    assert "cannot be read" in cli("tsq", "retry", str(bad.command_id), code=None).err
    cli("tsq", "cancel", str(bad.command_id), "--reason", "bad")


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
async def test_the_dashboard_shows_it(shop: Shop, text: str) -> None:
    columns = {"command_data": text, "command_headers": text, "audit_details": text}
    bad, good = shop.park(), shop.park({"n": 1})
    shop.damage(bad, command_expires_at=FAR, **columns)
    async with CommandBus(shop.url) as bus:
        transport = httpx.ASGITransport(app=create_dashboard(bus, open_to_this_machine=True))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            for path in (
                "/commands",
                "/troubleshooting",
                "/api/v1/commands",
                "/api/v1/troubleshooting",
            ):
                answer = await client.get(path)
                assert answer.status_code == 200, path
                assert str(bad.command_id)[:8] in answer.text
            searched = await client.get("/commands", params={"q": "data.n:1"})
            assert searched.status_code == 200
            place = f"/commands/{DOMAIN}/{bad.command_id}"
            answer = await client.get(f"/api/v1{place}")
            assert answer.status_code == 200
            assert "unreadable" in answer.text
            page = await client.get(place)
            assert page.status_code == 200
            assert "The payload cannot be read" in page.text
            assert re.search(r"<textarea[^>]* required[^>]*></textarea>", page.text)
            refused = await client.post(f"/api/v1{place}/retry", json={})
            assert refused.status_code == 409
            assert "cannot be read" in refused.text
            body = {"reason": "cannot be read"}
            assert (await client.post(f"/api/v1{place}/cancel", json=body)).status_code == 200
    assert shop.get(bad.command_id).status is CommandStatus.CANCELED
    assert good.status is CommandStatus.IN_TROUBLESHOOTING_QUEUE


@pytest.mark.postgres
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
def test_a_promotion_moves_it(text: str, tmp_path: Path) -> None:
    from tests.postgres.database import empty_url

    def update(table: str, column: str, value: Any, seq: int) -> None:
        with closing(sqlite3.connect(tmp_path / "old.db")) as connection, connection:
            connection.execute(
                f"update commandbus_{table} set {column} = ? where seq = ?", (value, seq)
            )

    url = f"sqlite:///{tmp_path}/old.db?synchronous=off"
    with SyncCommandBus(url) as old, SyncCommandBus(empty_url()) as new:
        shop = Shop(url, old, update)
        parked = shop.damage(shop.park(), command_data=text, command_tags=text, audit_details=text)
        waiting = old.send(DOMAIN, "Buy").command_id
        shop.damage(shop.get(waiting), command_data=text)
        assert move(old, new, "here", "elsewhere") == (2, 2)
        for command_id in (parked.command_id, waiting):
            record = new.get_command(command_id, domain=DOMAIN)
            assert record is not None
            assert isinstance(record.data, Unreadable)


@pytest.mark.parametrize(
    "text", ["no json", "[" * 1500 + "]" * 1500, "1e999"], ids=["no", "deep", "1e999"]
)
def test_on_every_engine_a_worker_parks_it_and_an_operator_ends_it(bus: Harness, text: str) -> None:
    if bus.configuration.name == "pgmq":
        pytest.skip("a message of PGMQ is jsonb, which refuses such texts itself")
    command = follow_up("orders", "ship", text, uuid4(), uuid4(), headers=text, tags=text)
    bus.run(bus.store.insert([command], Capacity()))
    good = bus.send(command_type="ship")
    assert isinstance(bus.get(command.command_id).data, Unreadable)
    assert {record.command_id for record in bus.query()} == {good, command.command_id}
    assert bus.call(bus.bus.why, command.command_id).reasons
    with bus.run_worker(registry_of(ship=Recorder())):
        eventually(lambda: bus.get(good).status == "COMPLETED")
        eventually(lambda: bus.get(command.command_id).status == "IN_TROUBLESHOOTING_QUEUE")
    page = bus.call(bus.troubleshooting.list_troubleshooting)
    assert [record.command_id for record in page] == [command.command_id]
    with pytest.raises(InvalidOperationError, match="cannot be read"):
        bus.call(bus.troubleshooting.operator_retry, command.command_id)
    bus.call(bus.troubleshooting.operator_cancel, command.command_id, reason="cannot be read")
    assert bus.get(command.command_id).status == "CANCELED"
