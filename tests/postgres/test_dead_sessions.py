"""The server knows by a connection whether a worker's process lives; others act on its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from commandbus import CommandStatus, HandlerRegistry
from commandbus.engines.postgres.statements import queries
from commandbus.sync import SyncCommandBus, SyncWorker
from commandbus.testing.handlers import Gate
from commandbus.testing.waiting import eventually
from tests.pgmq.database import empty_url as empty_pgmq_url
from tests.postgres.database import empty_url
from tests.postgres.test_trouble import end_backends
from tests.security.stranger import stranger

pytestmark = pytest.mark.postgres

LISTENING = "commandbus listen"
APP = """
import asyncio, sys, time
from commandbus import CommandBus, HandlerRegistry, Worker
from commandbus.sync import SyncCommandBus, SyncWorker

registry = HandlerRegistry()
url, runtime = sys.argv[1:]

@registry.handler("orders", "ship")
def ship(command, context):
    print("begun", flush=True)
    time.sleep(600)

async def work():
    async with CommandBus(url) as bus:
        await Worker(bus, registry).run()

if runtime == "asyncio":
    asyncio.run(work())
with SyncCommandBus(url) as bus:
    SyncWorker(bus, registry).run()
"""


@contextmanager
def other_machine(url: str, runtime: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A worker that holds commands, and whose flight recorder cannot be read here."""
    process = subprocess.Popen(
        [sys.executable, "-c", APP, url, runtime],
        env=os.environ | {"COMMANDBUS_RECORDER": str(folder)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@contextmanager
def working(bus: SyncCommandBus, handler: Any, domain: str = "orders") -> Iterator[SyncWorker]:
    registry = HandlerRegistry()
    registry.register(domain, "ship", handler)
    worker = SyncWorker(bus, domain, registry)
    running = threading.Thread(target=worker.run, daemon=True)
    running.start()
    try:
        eventually(lambda: worker._core.idle)
        yield worker
    finally:
        worker.stop(1)
        running.join(30)


@pytest.mark.parametrize(
    ("transport", "runtime", "domain"),
    [
        ("", "asyncio", "orders"),
        ("", "threads", "elsewhere"),
        pytest.param("&transport=pgmq", "asyncio", "orders", marks=pytest.mark.pgmq),
    ],
)
def test_what_a_killed_process_held_is_given_back_long_before_its_lease_ends(
    transport: str, runtime: str, domain: str, tmp_path: Path
) -> None:
    """Also by a worker that serves another domain, and does not take it itself."""
    url = (empty_pgmq_url() if transport else empty_url()) + transport
    done: list[Any] = []
    with SyncCommandBus(url) as bus, other_machine(url, runtime, tmp_path) as other:
        eventually(lambda: bus.list_workers(), 30)
        sent = bus.send("orders", "ship").command_id
        assert other.stdout is not None
        assert other.stdout.readline() == "begun\n"
        (lost,) = bus.list_workers()
        assert lost.session
        with working(bus, lambda command, context: done.append(command), domain) as mine:
            eventually(lambda: len(bus.list_workers()) == 2)
            other.send_signal(signal.SIGKILL)
            eventually(lambda: mine.metrics.rescued == 1, 20)
            record = bus.get_command(sent)
            assert record is not None
            assert record.crashes == 1
            assert [info.name for info in bus.list_workers()] == [mine.name]
            if domain == "orders":
                assert bus.wait(sent, 20).status is CommandStatus.COMPLETED
            else:
                assert record.status is CommandStatus.PENDING
                assert record.error is not None
                assert lost.name in record.error.message


def test_a_process_that_connects_again_keeps_its_leases(url: str) -> None:
    with (
        Gate() as gate,
        SyncCommandBus(url) as bus,
        SyncCommandBus(url) as elsewhere,
        working(bus, gate) as holder,
        working(elsewhere, gate, "elsewhere") as other,
    ):
        sent = bus.send("orders", "ship").command_id
        gate.wait_for(1)
        eventually(lambda: sum(bool(info.session) for info in bus.list_workers()) == 2)
        for _ in range(3):
            key = key_of(url, bus)
            end_backends(url, LISTENING)
            eventually(lambda key=key: key_of(url, bus) not in (None, key))
        gate.open()
        assert bus.wait(sent, 20).status is CommandStatus.COMPLETED
        assert (holder.metrics.leases_lost, other.metrics.rescued) == (0, 0)


@pytest.fixture
def url() -> str:
    return empty_url()


def key_of(url: str, bus: SyncCommandBus) -> int | None:
    with psycopg.connect(url) as connection:
        query = "select key from commandbus.session where process = %s"
        found = connection.execute(query, [bus.engine.process]).fetchone()  # type: ignore[attr-defined]
        return None if found is None else int(found[0])


def ended(url: str, process: str) -> list[tuple[str, bool]]:
    with psycopg.connect(url) as connection:
        query = "select * from commandbus.ended_sessions(array[%s]::text)"
        return list(connection.execute(query, [process]))


class TestStrangers:
    """Every role can hold any advisory lock, and sees all of them."""

    def test_a_lock_of_another_connection_is_no_sign_of_life(self, url: str) -> None:
        with SyncCommandBus(url) as bus, working(bus, lambda command, context: None):
            process: str = bus.engine.process  # type: ignore[attr-defined]
            key = eventually(lambda: key_of(url, bus))
            assert ended(url, process) == []
            with psycopg.connect(url, autocommit=True) as connection:
                # As if the process were dead: its connection is closed, and nothing was said.
                row = (
                    "insert into commandbus.session values ('dead', 1, %s, pg_postmaster_start_time())"
                )
                connection.execute(row, [key + 1])
                with stranger(url) as other:
                    other.execute("select pg_advisory_lock(%s)", [key + 1])
                    assert ended(url, "dead") == [("dead", True)]

    def test_a_session_that_waits_for_the_lock_does_not_keep_a_process_from_its_session(
        self, url: str
    ) -> None:
        with SyncCommandBus(url) as bus, working(bus, lambda command, context: None):
            process: str = bus.engine.process  # type: ignore[attr-defined]
            key = eventually(lambda: key_of(url, bus))
            with stranger(url) as other:
                waiting = threading.Thread(
                    target=other.execute, args=["select pg_advisory_lock(%s)", [key]], daemon=True
                )
                waiting.start()
                end_backends(url, LISTENING)
                eventually(lambda: key_of(url, bus) not in (None, key))
                waiting.join(30)
                assert ended(url, process) == []


def test_processes_of_an_earlier_server_are_given_a_minute(url: str) -> None:
    """All of them connect again after a restart, and some later than others."""
    with psycopg.connect(url, autocommit=True) as connection:
        for name, server in (("replaced", "'2000-01-01'"), ("closed", "pg_postmaster_start_time()")):
            connection.execute(f"insert into commandbus.session values ('{name}', 1, 1, {server})")
        try:
            ((is_old,),) = connection.execute(
                "select now() > pg_postmaster_start_time() + interval '1 minute'"
            )
            assert ended(url, "closed") == [("closed", True)]
            assert ended(url, "replaced") == ([("replaced", False)] if is_old else [])
        finally:
            connection.execute("delete from commandbus.session where process in ('replaced', 'closed')")


class TestAllConnectionsWereCut:
    """Every process connects again at the same moment, and looks for those that have ended."""

    @pytest.fixture
    def connect(self, url: str) -> Callable[[], psycopg.Connection[Any]]:
        with SyncCommandBus(url, migrate=True):
            pass
        return partial(psycopg.connect, url, autocommit=True, cursor_factory=psycopg.RawCursor)

    def hold(self, connection: psycopg.Connection[Any], process: str, key: int) -> None:
        statements = queries("commandbus")
        connection.execute(statements.hold_session, [process, key])
        connection.execute(statements.forget_ended, [process])

    def fall_asleep(self, connection: psycopg.Connection[Any], process: str) -> None:
        connection.execute(queries("commandbus").sleep, ["orders", process, 10**9])

    def test_a_process_that_is_back_is_not_taken_for_one_that_ended(
        self, connect: Callable[[], psycopg.Connection[Any]]
    ) -> None:
        with connect() as first, connect() as second, connect() as watch:
            self.hold(first, "first", 1)
            self.fall_asleep(first, "first")
            first.execute("select pg_advisory_unlock(1)")  # as when its connection is lost
            with first.transaction():
                self.hold(first, "first", 2)
                self.fall_asleep(first, "first")
                self.hold(second, "second", 3)
            sessions = watch.execute("select process from commandbus.session order by 1").fetchall()
            asleep = watch.execute("select process from commandbus.sleeper").fetchall()
        assert (sessions, asleep) == ([("first",), ("second",)], [("first",)])

    def test_no_process_waits_for_rows_that_another_one_deletes(
        self, connect: Callable[[], psycopg.Connection[Any]]
    ) -> None:
        """Each deletes the rows of all that are not back yet: they would wait in a circle."""
        with connect() as first, connect() as second, connect() as watch:
            for process, key in (("first", 1), ("second", 2), ("gone", 3)):
                self.hold(watch, process, key)
                self.fall_asleep(watch, process)
            watch.execute("select pg_advisory_unlock_all()")
            second.execute("set lock_timeout = '5s'")
            with first.transaction():
                first.execute(queries("commandbus").forget_ended, ["first"])
                second.execute(queries("commandbus").forget_ended, ["second"])
            asleep = watch.execute("select process from commandbus.sleeper").fetchall()
        assert asleep == []
