"""Which engines and runtimes the conformance suite runs on. Each test gets a fresh, empty store."""

from __future__ import annotations

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
from tests.support.extent import EVERYTHING

__all__ = ["bus", "configuration", "open_bus", "runtime"]

ENGINES: dict[str, tuple[pytest.MarkDecorator, ...]] = {
    "memory": (),
    "sqlite": (),
    "postgres": (pytest.mark.postgres,),
    "pgmq": (pytest.mark.postgres, pytest.mark.pgmq),
}
RUNTIMES = ("asyncio", "threads")

HERE = Path(__file__).parent
ABOUT_CALLS = {
    *("bad_input", "causation", "checking", "defaults", "handlers", "isolation", "lifespans"),
    *("middleware", "typed", "typed_requests"),
}
"""What is done with arguments, handlers and child processes before or after a store is asked."""
NOT_ABOUT_QUEUES = {
    *("acting", "audit", "breakers", "cases", "declarations", "ledger", "process_effects"),
    *("process_parts", "processes", "progress", "recorded_steps", "schedules"),
}
"""What is in tables and documents that PGMQ has no part in: its engine is PostgreSQL's for these."""
ABOUT_WAITING = {
    *("canceling", "deaths", "leases", "rescuing", "retries", "scheduling", "stopping", "suspects"),
    *("transactions", "waiting", "wakeups", "worker_loop"),
}
"""Where what a runtime waits for is the store's: its doorbell, its timers and its locks."""


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each behaviour is tried on every engine and in both runtimes, and not in every pair of them: on
    PostgreSQL and SQLite in one runtime, over PGMQ and in memory in the other. Which one that is
    alternates from test to test. What an engine has no part in is tried on fewer. With
    COMMANDBUS_TEST=everything all is tried on all."""
    if not {"configuration", "runtime"} <= set(metafunc.fixturenames):
        return
    pairs = [
        pytest.param(engine, runtime, marks=marks, id=f"{engine}-{runtime}")
        for engine, marks in ENGINES.items()
        for runtime in RUNTIMES
        if EVERYTHING or _is_tried(metafunc.definition, engine, runtime)
    ]
    # As a mark, which takes precedence over the parameters that these fixtures have for themselves.
    chosen = pytest.mark.parametrize(("configuration", "runtime"), pairs, indirect=True)
    metafunc.definition.add_marker(chosen, append=False)


def _is_tried(test: pytest.Item, engine: str, runtime: str) -> bool:
    module = test.path.stem.removeprefix("test_") if test.path.parent == HERE else None
    chosen = zlib.crc32(test.nodeid.encode())
    first, second = RUNTIMES if chosen % 2 == 0 else reversed(RUNTIMES)
    if module in ABOUT_CALLS:
        durable = ("sqlite", "postgres", "pgmq")[chosen % 3]
        return (engine, runtime) in ((durable, first), ("memory", second))
    match engine:
        case "postgres":
            return runtime == first
        case "sqlite":
            return runtime == first or module in ABOUT_WAITING
        case "pgmq":
            return runtime == second and module not in NOT_ABOUT_QUEUES
        case _:
            return runtime == second


@pytest.fixture(params=RUNTIMES)
def runtime(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=[pytest.param(name, marks=marks) for name, marks in ENGINES.items()])
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
            from tests.postgres.database import postgres_configuration, verify_once

            # Every outcome that can be in a receipt is in one; over PGMQ these few are rows.
            monkeypatch.setattr(receipts, "MEMBERS_MIN", 1)
            verify_once(monkeypatch)
            return postgres_configuration()
        case "pgmq":
            from tests.pgmq.database import pgmq_configuration, verify_once

            verify_once(monkeypatch)
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
