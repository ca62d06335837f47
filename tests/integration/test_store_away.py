"""A store that is away for longer than a lease: no worker has died, and no command counts a crash."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from commandbus import CommandStatus, HandlerRegistry
from commandbus.records import AuditEventType
from commandbus.testing import Configuration, FakeClock, Gate, Harness, eventually
from commandbus.worker.recordings import read_recording
from tests.pgmq.database import pgmq_configuration
from tests.postgres.database import postgres_configuration, tcp
from tests.support.proxy import Proxy

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="workers have no recorder there")

LEASE_SECONDS, SHORT_SECONDS = 30.0, 3.0
SERVER = (pytest.mark.postgres, pytest.mark.timeout(120))

HANGING = """
import ctypes, sys
from commandbus import HandlerRegistry
from commandbus.sync import SyncCommandBus, SyncWorker

registry = HandlerRegistry()

@registry.handler("orders", "ship")
def hang(command, context):
    print("begun", flush=True)
    ctypes.PyDLL(None).sleep(600)  # in C code, without letting go of the interpreter

with SyncCommandBus(sys.argv[1]) as bus:
    SyncWorker(bus, "orders", registry, visibility_timeout=1.0).run()
"""

Away = Callable[[], AbstractContextManager[None]]


@contextmanager
def on_server(configuration: Configuration, runtime: str, kind: str) -> Iterator[tuple[Harness, Away]]:
    """Behind a proxy, which refuses everything or falls silent."""
    with Proxy(tcp(configuration.url)) as proxy:
        through = Configuration(
            configuration.name,
            proxy.url,
            advance=configuration.advance,
            transport=configuration.transport,
        )
        with closing(through.open(runtime)) as bus:
            yield bus, proxy.frozen if kind == "frozen" else proxy.unreachable


@contextmanager
def in_file(path: Path, runtime: str) -> Iterator[tuple[Harness, Away]]:
    """Beside another program, which holds the write lock of the file."""

    @contextmanager
    def locked() -> Iterator[None]:
        with closing(sqlite3.connect(path, timeout=30, isolation_level=None)) as other:
            other.execute("begin immediate")
            yield

    configuration = Configuration("sqlite", f"sqlite:///{path}", clock=FakeClock())
    with closing(configuration.open(runtime)) as bus:
        yield bus, locked


ON_FILES: list[Any] = ["sqlite locked asyncio", "sqlite locked threads"]
ON_SERVERS = [
    pytest.param("postgres refusing asyncio", marks=SERVER),
    pytest.param("postgres frozen threads", marks=SERVER),
    pytest.param("pgmq refusing threads", marks=[*SERVER, pytest.mark.pgmq]),
    pytest.param("pgmq frozen asyncio", marks=[*SERVER, pytest.mark.pgmq]),
]


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Harness, Away]]:
    engine, kind, runtime = request.param.split()
    if engine == "sqlite":
        opened = in_file(tmp_path / "bus.db", runtime)
    else:
        made = {"postgres": postgres_configuration, "pgmq": pgmq_configuration}[engine]
        opened = on_server(made(), runtime, kind)
    with opened as found:
        yield found


def asks_without_an_answer(worker: Any) -> bool:
    """Whether the worker has asked for its leases and has no answer."""
    recording = read_recording(worker._execution.recorder.content())
    return recording.excused_until > time.monotonic()


def has_been_away(worker: Any) -> bool:
    """Whether the worker knows of an outage that ends leases."""
    return bool(worker._outage.lasted(SHORT_SECONDS / 3, 1.0))


@pytest.mark.parametrize("place", ON_FILES + ON_SERVERS, indirect=True)
def test_what_ran_or_had_finished_meanwhile_runs_again_without_a_crash(
    place: tuple[Harness, Away],
) -> None:
    check_lost_leases_count_no_crash(*place, asks_without_an_answer)


@pytest.mark.parametrize("place", ON_SERVERS[::2], indirect=True)
def test_a_worker_without_a_recorder_is_excused_by_who_was_without_the_store_too(
    place: tuple[Harness, Away],
) -> None:
    check_lost_leases_count_no_crash(*place, has_been_away, SHORT_SECONDS, recorder="off")


def check_lost_leases_count_no_crash(
    bus: Harness,
    away: Away,
    is_noticed: Callable[[Any], bool],
    seconds: float = LEASE_SECONDS,
    **options: Any,
) -> None:
    registry, gate = HandlerRegistry(), Gate()
    registry.register("orders", "ship", gate)
    options |= {"concurrency": 2, "visibility_timeout": seconds, "poll_interval": 0.2}
    with bus.run_worker(registry, **options) as running:
        worker = running.worker
        ids = [bus.send(), bus.send()]
        gate.wait_for(2)
        with away():
            gate.let_one_go()  # its outcome cannot be recorded
            worker._keeper.keep(worker._core.leases, time.monotonic() - seconds / 2)  # it is due
            eventually(lambda: is_noticed(worker))
            worker._keeper.keep(worker._core.leases, time.monotonic() - seconds)  # its time is over
            bus.advance(seconds + 1)
        gate.open()
        for command_id in ids:
            assert bus.wait(command_id).status is CommandStatus.COMPLETED
    for command_id in ids:
        assert bus.get(command_id).crashes == 0
        kinds = bus.kinds(command_id)
        assert AuditEventType.WORKER_LOST not in kinds
        assert kinds.count(AuditEventType.RELEASED) == 1
    assert len(gate.entered) == 4


@pytest.mark.postgres
def test_a_handler_that_holds_up_its_process_is_no_outage() -> None:
    """The process lives and the store answers: the handler keeps the lease from being renewed."""
    configuration = postgres_configuration()
    registry = HandlerRegistry()
    registry.register("orders", "ship", lambda command, context: None)
    with closing(configuration.open("threads")) as bus:
        command_id = bus.send()
        command = [sys.executable, "-c", HANGING, configuration.url]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as hanging:
            try:
                assert hanging.stdout is not None
                assert hanging.stdout.readline() == b"begun\n"
                with bus.run_worker(registry, visibility_timeout=1.0):
                    eventually(lambda: bus.get(command_id).status is CommandStatus.COMPLETED)
                assert hanging.poll() is None
            finally:
                hanging.kill()
        assert bus.get(command_id).crashes == 1
