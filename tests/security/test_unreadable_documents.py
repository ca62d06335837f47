"""One document that cannot be read blinds no list, no page, no worker and no doctor."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from uuid import UUID

import httpx
import psycopg
import pytest

from commandbus import CommandBus, Schedule, SendRequest
from commandbus.connect import create_administration
from commandbus.interfaces.web import create_dashboard
from commandbus.sync import SyncCommandBus, SyncTroubleshootingQueue, SyncWorker
from commandbus.testing.conformance.helpers import registry_of
from commandbus.testing.handlers import Recorder
from commandbus.testing.waiting import eventually

DOMAIN = "shop"
FAR = 9_000_000_000_000_000_000
BODIES = {"no json": "no json", "another shape": "[1]", "1,500 levels": "[" * 1500 + "]" * 1500}
KINDS = ("worker", "schedule", "breaker", "action", "cancellation", "batch")
Put = Callable[[str, str, str, int | None, str], None]


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Put]:
    """A URL, and how a program past all checks writes kind, key, status, due_at and body."""
    columns = "(kind, key, version, status, due_at, body) values"
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/bus.db?synchronous=off"

        def put(*values: object) -> None:
            with closing(sqlite3.connect(tmp_path / "bus.db")) as connection, connection:
                sql = f"insert into commandbus_document {columns} (?, ?, 1, ?, ?, ?)"
                connection.execute(sql, values)

    else:
        from tests.postgres.database import postgres_configuration

        url = postgres_configuration().url

        def put(*values: object) -> None:
            with psycopg.connect(url) as connection:
                sql = f"insert into commandbus.document {columns} (%s, %s, 1, %s, %s, %s)"
                connection.execute(sql.encode(), values)

    with SyncCommandBus(url):
        pass
    return url, put


def damage(put: Put, body: str) -> UUID:
    for kind in KINDS:
        put(kind, "bad", "open", FAR if kind == "worker" else 1, body)
    batch = UUID(int=7)
    put("batch", str(batch), "open", None, body)
    return batch


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
def test_lists_leave_it_out(store: tuple[str, Put], body: str) -> None:
    url, put = store
    with SyncCommandBus(url) as bus:
        bus.acting("ann").pause(DOMAIN, "closed")
        made = bus.create_batch([SendRequest(DOMAIN, "Buy")])
        batch = damage(put, body)
        replaced = Schedule(name="bad", domain=DOMAIN, command_type="Buy", every=60)
        assert not bus.list_workers()
        assert not bus.list_schedules()
        assert bus.put_schedule(replaced).schedule == replaced
        assert not bus.list_breakers()
        assert [action.action for action in bus.list_actions()] == ["put_schedule", "pause"]
        assert [found.batch_id for found in bus.list_batches(domain=DOMAIN)] == [made.batch_id]
        assert bus.get_batch(batch) is None
    assert create_administration(url).doctor()


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
def test_a_case_is_shown_without_it(store: tuple[str, Put], body: str) -> None:
    url, put = store
    with SyncCommandBus(url) as bus:
        sent = bus.send(DOMAIN, "Buy").command_id
        put("case", f"{DOMAIN} {sent}", "", None, body)
        record = bus.get_command(sent, domain=DOMAIN)
        assert record is not None
        assert [case.comments for case in SyncTroubleshootingQueue(bus).list_cases([record])] == [0]


def test_a_case_whose_key_names_no_command_is_left_out(store: tuple[str, Put]) -> None:
    url, put = store
    put("case", "bad", "vera", 1, "{}")
    with SyncCommandBus(url) as bus:
        assert not SyncTroubleshootingQueue(bus).list_assigned("vera")


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
def test_a_worker_goes_on(store: tuple[str, Put], body: str) -> None:
    url, put = store
    recorder = Recorder()
    with SyncCommandBus(url) as bus:
        bus.put_schedule(Schedule(name="good", domain=DOMAIN, command_type="Buy", every=1))
        damage(put, body)
        batch = bus.create_batch([SendRequest(DOMAIN, "Buy")]).batch_id
        worker = SyncWorker(bus, DOMAIN, registry_of(DOMAIN, Buy=recorder))
        running = threading.Thread(target=worker.run, daemon=True)
        running.start()
        try:
            assert eventually(lambda: len(recorder.commands) >= 2)
            assert eventually(lambda: str(bus.get_batch(batch).status) == "COMPLETED")
        finally:
            worker.stop(1)
            running.join(10)


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
async def test_every_page_is_shown(store: tuple[str, Put], body: str) -> None:
    url, put = store
    async with CommandBus(url) as bus:
        await bus.send(DOMAIN, "Buy")
        damage(put, body)
        transport = httpx.ASGITransport(app=create_dashboard(bus, open_to_this_machine=True))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            for path in ("/", "/workers", "/schedules", "/breakers", "/batches", "/audit", "/system"):
                answer = await client.get(path)
                assert answer.status_code == 200, (path, answer.text[:500])
