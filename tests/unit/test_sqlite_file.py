"""An SQLite file under a running program: deleted, replaced, and compared with the clock."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from commandbus import HandlerRegistry, SendRequest, StoreUnavailable
from commandbus.engines.sqlite.lock import WriteLock
from commandbus.sync import SyncCommandBus, SyncWorker
from commandbus.testing.waiting import eventually


@pytest.mark.parametrize("suffix", ["", "-wal"])
def test_a_file_that_was_deleted_is_noticed_before_a_send_is_acknowledged(
    tmp_path: Path, suffix: str
) -> None:
    path = tmp_path / "jobs.db"
    with SyncCommandBus(f"sqlite:///{path}") as bus:
        bus.send("orders", "ship")
        Path(f"{path}{suffix}").unlink()
        with pytest.raises(StoreUnavailable, match="deleted or replaced"):
            bus.send("orders", "ship")


def test_a_file_that_was_replaced_is_noticed_before_a_send_is_acknowledged(tmp_path: Path) -> None:
    path, other = tmp_path / "jobs.db", tmp_path / "other.db"
    with SyncCommandBus(f"sqlite:///{other}") as bus:
        bus.send("orders", "ship")
    with SyncCommandBus(f"sqlite:///{path}") as bus:
        bus.send("orders", "ship")
        other.replace(path)
        with pytest.raises(StoreUnavailable, match="start again"):
            bus.send_many([SendRequest("orders", "ship")] * 3)


def test_a_worker_on_a_file_that_was_deleted_says_so(tmp_path: Path) -> None:
    path, registry = tmp_path / "jobs.db", HandlerRegistry()
    registry.register("orders", "ship", lambda command, context: None)
    with SyncCommandBus(f"sqlite:///{path}") as bus:
        bus.send("orders", "ship")
        worker = SyncWorker(bus, "orders", registry, poll_interval=0.1)
        running = threading.Thread(target=worker.run, daemon=True)
        running.start()
        try:
            eventually(lambda: bus.stats("orders").completed == 1)
            path.unlink()
            eventually(lambda: worker.metrics.claim_failures >= 1)
            assert "deleted or replaced" in str(worker.health_status.report().last_error)
        finally:
            worker.stop(0)
            running.join(30)


@pytest.mark.parametrize(("hours", "words"), [(1, "3600 s ahead of"), (-1, "3600 s behind")])
def test_a_process_whose_clock_is_wrong_says_so(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    hours: int,
    words: str,
) -> None:
    real = time.time_ns
    with SyncCommandBus(f"sqlite:///{tmp_path / 'jobs.db'}") as bus:
        bus.send("orders", "ship")
        assert not [record for record in caplog.records if "clock" in record.message]
        monkeypatch.setattr(time, "time_ns", lambda: real() + hours * 3_600_000_000_000)
        for _ in range(3):
            bus.send("orders", "ship")
    (record,) = [record for record in caplog.records if "clock" in record.message]
    assert words in record.message
    assert record.levelname == "ERROR"


def test_a_transaction_that_writes_nothing_is_no_reason_to_doubt_the_clock(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "jobs.db"
    with SyncCommandBus(f"sqlite:///{path}") as bus:
        bus.send("orders", "ship")
        worker = SyncWorker(bus, "mail")
        a_minute_ago = time.time_ns() - 60_000_000_000
        os.utime(f"{path}-wal", ns=(a_minute_ago, a_minute_ago))
        assert worker.receive() == []
        assert Path(f"{path}-wal").stat().st_mtime_ns == a_minute_ago  # nothing was written
    assert not [record for record in caplog.records if "clock" in record.message]


def test_a_bus_is_opened_inside_a_transaction_of_the_caller(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    SyncCommandBus(f"sqlite:///{path}").open().close()
    caller = sqlite3.connect(path)
    caller.execute("create table orders (id integer)")
    caller.execute("begin immediate")
    caller.execute("insert into orders values (7)")

    with SyncCommandBus(f"sqlite:///{path}") as bus:
        sent = bus.within(caller).send("orders", "ship")
        caller.commit()
        assert bus.get_command(sent.command_id) is not None
    caller.close()


def test_the_log_stays_small_under_programs_that_write_little_each(tmp_path: Path) -> None:
    """While another one is connected, none of them is the last, which folds the log back."""
    url, sizes = f"sqlite:///{tmp_path}/jobs.db", list[int]()
    with SyncCommandBus(url):
        for _ in range(6):
            with SyncCommandBus(url) as short:
                short.send("orders", "ship", "x" * 50_000)
            sizes.append((tmp_path / "jobs.db-wal").stat().st_size)
    assert sizes[-1] < 2 * sizes[0]


HOLDS_AND_FORKS = """
import os, signal, sys
from pathlib import Path
from commandbus.engines.sqlite.lock import WriteLock
with WriteLock(Path(sys.argv[1] + ".lock"), Path(sys.argv[1])):
    if os.fork() == 0:
        print("forked", flush=True)
        sys.stdin.read()
        os._exit(0)
    signal.pause()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_writer_that_is_killed_lets_go_although_its_children_live(tmp_path: Path) -> None:
    store = tmp_path / "jobs.db"
    store.touch()
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", HOLDS_AND_FORKS, store], **pipes) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"forked\n"
        lock = WriteLock(tmp_path / "jobs.db.lock", store)
        assert not lock.take_if_free()
        writer.kill()
        writer.wait()
        assert lock.take_if_free()
        lock.close()
