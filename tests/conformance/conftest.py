"""Which engines and runtimes the conformance suite runs on. Each test gets a fresh, empty store."""

from __future__ import annotations

import os
import sqlite3
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

from commandbus.engines.sqlite.file import PRIVATE
from commandbus.sync import SyncCommandBus
from commandbus.testing import Configuration, FakeClock, Harness
from commandbus.testing.conformance.fixtures import bus, open_bus

__all__ = ["bus", "configuration", "open_bus", "runtime"]

ENGINES = [
    "memory",
    "sqlite",
    pytest.param("postgres", marks=pytest.mark.postgres),
    pytest.param("pgmq", marks=[pytest.mark.postgres, pytest.mark.pgmq]),
]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A store decides where commands wait, not how a runtime waits for them: each behaviour is tried on
    SQLite in both runtimes, in one of them on PostgreSQL, and in the other one over PGMQ and in memory.
    A child process knows no store, and takes long to start: its behaviours are tried in memory in both
    runtimes, and on one durable store in one of them. With COMMANDBUS_TEST=everything all is tried on
    all."""
    if os.environ.get("COMMANDBUS_TEST") == "everything":
        return
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        in_children = "/test_isolation.py" in item.nodeid
        again = _in_children_again(item) if in_children else _in_the_other_runtime(item)
        (left_out if again else kept).append(item)
    config.hook.pytest_deselected(items=left_out)
    items[:] = kept


def _in_children_again(item: pytest.Item) -> bool:
    case = getattr(item, "callspec", None)
    if case is None:
        return False
    engine = case.params.get("configuration")
    if engine == "memory" or "runtime" not in case.params:
        return False
    chosen = zlib.crc32(item.nodeid.split("[")[0].encode())
    durable, runtime = ("sqlite", "postgres", "pgmq")[chosen % 3], ("asyncio", "threads")[chosen % 2]
    return (engine, case.params["runtime"]) != (durable, runtime)


def _in_the_other_runtime(item: pytest.Item) -> bool:
    case = getattr(item, "callspec", None)
    engine = case.params.get("configuration") if case is not None else None
    if case is None or engine in (None, "sqlite") or "runtime" not in case.params:
        return False
    chosen = zlib.crc32(item.nodeid.split("[")[0].encode()) + (engine != "postgres")
    return bool(case.params["runtime"] != ("asyncio", "threads")[chosen % 2])


@pytest.fixture(params=["asyncio", "threads"])
def runtime(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=ENGINES)
def configuration(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Configuration:
    match request.param:
        case "memory":
            return Configuration("memory", "memory://", clock=FakeClock())
        case "sqlite":
            return sqlite_configuration(tmp_path)
        case "postgres":
            # Here, so that the other engines are tested without psycopg, too.
            from commandbus.engines.postgres import receipts
            from tests.postgres.database import postgres_configuration

            # Every outcome that can be in a receipt is in one; over PGMQ these few are rows.
            monkeypatch.setattr(receipts, "MEMBERS_MIN", 1)
            return postgres_configuration()
        case "pgmq":
            from tests.pgmq.database import pgmq_configuration

            return pgmq_configuration()
        case other:
            raise AssertionError(f"no configuration is called {other}")


@cache
def _sqlite_file() -> bytes:
    """A file with the schema and nothing else: copying it takes a fraction of creating one."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bus.db"
        SyncCommandBus(f"sqlite:///{path}?synchronous=off").open().close()
        return path.read_bytes()


def sqlite_configuration(folder: Path) -> Configuration:
    """A file of its own; fsync is for machines that lose power, which tests do not."""
    path = folder / "bus.db"
    path.touch(PRIVATE)
    path.write_bytes(_sqlite_file())

    @contextmanager
    def begin(_: Harness) -> Iterator[sqlite3.Connection]:
        # An asyncio bus uses the connection from the thread of its loop.
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        connection.execute("create table if not exists mine (n integer)")
        connection.execute("begin immediate")
        try:
            yield SqliteTransaction(connection)
        finally:
            connection.close()

    return Configuration("sqlite", f"sqlite:///{path}?synchronous=off", clock=FakeClock(), begin=begin)


class SqliteTransaction:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection

    def commit(self) -> None:
        self.connection.execute("commit")

    def rollback(self) -> None:
        self.connection.execute("rollback")
