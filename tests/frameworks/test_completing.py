"""Exactly once with an ORM on a SQLite file; PostgreSQL has its own tests."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from commandbus import CommandStatus, HandlerRegistry
from commandbus.errors import ConfigurationError
from commandbus.sync import SyncCommandBus
from commandbus.testing import FakeClock, drain
from tests.support.django_site import set_up_django

KILLED_AT = {
    "before the commit": "harm(); session.commit()",
    "after the commit": "session.commit(); harm()",
}
PROGRAM = """
import os, signal, sys
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session
from commandbus import HandlerRegistry
from commandbus.sync import SyncCommandBus, SyncWorker

def harm():
    os.kill(os.getpid(), signal.SIGKILL)

url, database = sys.argv[1:]
registry, engine = HandlerRegistry(), create_engine(database)

@registry.handler("orders", "ship")
def ship(command, context):
    with Session(engine) as session:
        session.execute(text("insert into effect (n) values (1)"))
        context.complete("done", within=session)
        COMMIT

with SyncCommandBus(url) as bus:
    SyncWorker(bus, "orders", registry, visibility_timeout=1, statement_timeout=0.9).run()
"""


def kill_a_worker(url: str, database: str, when: str) -> None:
    """Run a worker with a lease of a second, whose handler kills it around its commit."""
    program = PROGRAM.replace("COMMIT", KILLED_AT[when])
    ended = subprocess.run(
        [sys.executable, "-c", program, url, database], timeout=60, capture_output=True, text=True
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr


def finish(bus: SyncCommandBus, registry: HandlerRegistry) -> int:
    """How many more runs there are once the lease is over."""
    return len(drain(bus, registry))


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
@pytest.mark.parametrize(("when", "runs"), [("before the commit", 1), ("after the commit", 0)])
def test_a_kill_around_the_commit_has_the_effects_once(tmp_path: Path, when: str, runs: int) -> None:
    sqlalchemy = pytest.importorskip("sqlalchemy")
    pytest.importorskip("sqlalchemy.orm")
    path, clock = tmp_path / "app.db", FakeClock()
    url = f"sqlite:///{path}?synchronous=off"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("create table effect (n integer)")
    with SyncCommandBus(url) as bus:
        command_id = bus.send("orders", "ship").command_id
    kill_a_worker(url, f"sqlite:///{path}", when)
    registry, engine = HandlerRegistry(), sqlalchemy.create_engine(f"sqlite:///{path}")

    @registry.handler("orders", "ship")
    def ship(command: Any, context: Any) -> None:
        with sqlalchemy.orm.Session(engine) as session:
            session.execute(sqlalchemy.text("insert into effect (n) values (1)"))
            context.complete("again", within=session)
            session.commit()

    clock.advance(3600)
    with SyncCommandBus(url, clock=clock) as bus:
        assert finish(bus, registry) == runs
        record = bus.get_command(command_id)
    engine.dispose()
    assert record is not None
    assert record.status is CommandStatus.COMPLETED
    assert record.result == ("again" if runs else "done")
    with closing(sqlite3.connect(path)) as connection, connection:
        assert connection.execute("select count(*) from effect").fetchone() == (1,)


def test_django(tmp_path: Path) -> None:
    set_up_django()
    from django.db import connection, transaction

    registry = HandlerRegistry()

    @registry.handler("orders", "ship")
    def ship(command: Any, context: Any) -> None:
        with transaction.atomic():
            context.complete(command.data, within=connection)
            if command.data == "undone":
                transaction.set_rollback(True)

    with SyncCommandBus(f"sqlite:///{connection.settings_dict['NAME']}") as bus:
        for data in ("kept", "undone"):
            bus.send("orders", "ship", data, max_attempts=1)
        kept, undone = drain(bus, registry)
        bus.purge("orders")
    connection.close()
    assert (kept.status, kept.result) == (CommandStatus.COMPLETED, "kept")
    assert undone.error_code == "NOT_COMMITTED"


def test_a_session_on_another_file_is_refused(
    sync_sqlite_command_bus: SyncCommandBus, tmp_path: Path
) -> None:
    sqlalchemy = pytest.importorskip("sqlalchemy")
    pytest.importorskip("sqlalchemy.orm")
    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path / 'other.db'}")
    registry, refused = HandlerRegistry(), list[str]()

    @registry.handler("orders", "ship")
    def ship(command: Any, context: Any) -> None:
        with sqlalchemy.orm.Session(engine) as session, pytest.raises(ConfigurationError) as caught:
            context.complete(within=session)
        refused.append(str(caught.value))

    sync_sqlite_command_bus.send("orders", "ship")
    (record,) = drain(sync_sqlite_command_bus, registry)
    engine.dispose()
    assert "needs the same file" in refused[0]
    assert record.status is CommandStatus.COMPLETED
