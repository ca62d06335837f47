"""Child processes of workers: they end with their worker, and leave nothing behind."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from pathlib import Path
from typing import Any

import pytest

from commandbus import CommandStatus, HandlerRegistry, RetryPolicy
from commandbus.sync import SyncCommandBus, SyncWorker
from commandbus.testing.conformance import isolated_handlers
from commandbus.testing.conformance.isolation import alive
from commandbus.testing.waiting import eventually
from commandbus.worker.recorder import recorders_here
from commandbus.worker.recordings import read_recording
from tests.support.extent import sample

APP = Path(__file__).parent / "isolated_app.py"
PATIENCE = 60.0
PARKED = CommandStatus.IN_TROUBLESHOOTING_QUEUE
TIMEOUTS = sample(12, 30)
ONCE = RetryPolicy(max_attempts=1)


@contextmanager
def script(url: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    worker = subprocess.Popen([sys.executable, str(APP), url, *arguments])
    try:
        yield worker
    finally:
        worker.terminate()
        assert worker.wait(PATIENCE) is not None


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'isolated.db'}"


def test_handlers_of_a_script_run_in_children(url: str) -> None:
    with SyncCommandBus(url) as bus, script(url) as worker:
        sent = bus.send("main", "buy", {"number": 7})
        result: Any = bus.wait(sent, PATIENCE).result
        assert result["order"] == {"number": 7}
        assert result["pid"] not in (worker.pid, os.getpid())
    eventually(lambda: not alive(result["pid"]))


def test_a_handler_whose_child_takes_long_to_begin_is_not_over_its_time(
    url: str, tmp_path: Path
) -> None:
    """The supervisor of a worker kills it when a handler is over its time."""
    registry = HandlerRegistry("orders")
    hang = isolated_handlers.loop_in_c
    registry.register("orders", "hang", hang, isolation="process", timeout=0.5, retry=ONCE)
    recorder = str(tmp_path / "recorders")
    with (
        SyncCommandBus(url) as bus,
        SyncWorker(bus, "orders", registry, concurrency=1, recorder=recorder) as worker,
    ):
        sent = bus.send("orders", "hang")

        def running() -> list[float]:
            (its,) = recorders_here().values()
            return list(read_recording(its.content()).running.values())

        eventually(lambda: len(running()) == 1)
        assert running() == [inf]
        assert bus.wait(sent, PATIENCE).error_code == "HANDLER_TIMEOUT"
        assert worker.metrics.child_kills == {"timeout": 1}


def test_a_script_without_a_guard_says_what_to_do(url: str) -> None:
    with SyncCommandBus(url) as bus, script(url, "--unguarded"):
        sent = bus.send("main", "buy", {"number": 7}, max_attempts=1)
        record = bus.wait(sent, PATIENCE)
        assert (record.status, record.error_code) == (PARKED, "CHILD_NOT_STARTED")
        assert 'if __name__ == "__main__":' in (record.error_message or "")


def test_a_busy_child_and_what_it_started_die_with_their_killed_worker(
    url: str, tmp_path: Path
) -> None:
    path = tmp_path / "pid"
    with SyncCommandBus(url) as bus, script(url) as worker:
        bus.send("main", "hang", {"path": str(path)})
        eventually(lambda: path.exists() and path.read_text(), PATIENCE)
        child, grandchild = map(int, path.read_text().split())
        assert alive(child)
        worker.send_signal(signal.SIGKILL)
        worker.wait(PATIENCE)
        eventually(lambda: not alive(child))
        assert alive(grandchild)
        registry = HandlerRegistry()
        registry.register("other", "echo", isolated_handlers.echo)
        with SyncWorker(bus, registry):  # the next worker on the machine finds what the dead one left
            eventually(lambda: not alive(grandchild))


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_hard_timeouts_leave_nothing_behind() -> None:
    registry = HandlerRegistry()
    registry.register(
        "orders",
        "hang",
        isolated_handlers.loop_in_c,
        isolation="process",
        soft_timeout=0.02,
        timeout=0.04,
        retry=ONCE,
    )
    files, memory, before = open_files(), 0, 0
    with SyncCommandBus("memory://") as bus:
        with SyncWorker(bus, "orders", registry, concurrency=2) as worker:
            for number in range(TIMEOUTS):
                record = bus.wait(bus.send("orders", "hang"), PATIENCE)
                assert (record.status, record.error_code) == (PARKED, "HANDLER_TIMEOUT")
                if number == 4:
                    gc.collect()
                    memory, before = resident(), open_files()
            # On a busy machine an exception of the soft timeout may come before the loop begins.
            assert worker.metrics.child_kills["timeout"] >= TIMEOUTS - 4
            gc.collect()
            assert resident() - memory < 8 * 1024**2
            # One more child may be warm, and one that is being started has more files for a moment.
            eventually(lambda: open_files() <= before + 4)
            assert worker.metrics.children <= 2
        assert worker.metrics.children == 0
    assert open_files() <= files
