"""A disk that fills up, and a process that forks with the file open."""

import os
import shutil
import subprocess
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from commandbus import InvalidOperationError, SendRequest, StoreUnavailable
from commandbus.sync import SyncCommandBus
from tests.os_processes.lab import DOMAIN, Lab

DISK_BYTES = 4 * 1024 * 1024


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = shutil.which("mount")
    command = [mount or "mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)]
    if mount is None or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("SKIPPED: this user may not mount a small disk, so a full one cannot be tried")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_refuses_sends_and_loses_none_that_it_took(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"\0" * (DISK_BYTES // 2))
    sent: list[str] = []
    with SyncCommandBus(f"sqlite:///{small_disk}/full.db") as bus:
        with pytest.raises(StoreUnavailable, match="disk is full"):
            send_until_refused(bus, sent)
        assert sent, "the disk was full before anything was sent"
        # Still full: refused again, in bulk as well, and reads still work.
        with pytest.raises(StoreUnavailable):
            bus.send_many([SendRequest(DOMAIN, "note", "x" * 100_000) for _ in range(20)])
        assert {str(record.command_id) for record in every_command(bus)} == set(sent)

        ballast.unlink()
        for number in range(20):
            sent.append(str(bus.send(DOMAIN, "note", {"n": number}).command_id))
        assert {str(record.command_id) for record in every_command(bus)} == set(sent)

    with SyncCommandBus(f"sqlite:///{small_disk}/full.db") as reopened:
        assert {str(record.command_id) for record in every_command(reopened)} == set(sent)


def send_until_refused(bus: SyncCommandBus, sent: list[str]) -> None:
    for number in range(10_000):
        result = bus.send(DOMAIN, "note", {"n": number, "pad": "x" * 2_000})
        sent.append(str(result.command_id))


def every_command(bus: SyncCommandBus) -> list[object]:
    found: list[object] = []
    after = None
    while True:
        page = bus.query_commands(domain=DOMAIN, limit=1_000, after=after)
        found += page
        if (after := page.next) is None:
            return found


def test_a_bus_opened_before_a_fork_says_so_in_the_child(lab: Lab) -> None:
    lab.send(1)
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        # Python warns of forks in a process with threads, which is what is tried here.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        answer = "not refused"
        try:
            lab.bus.send(DOMAIN, "note")
        except InvalidOperationError as error:
            answer = str(error)
        finally:
            os.write(writing, answer.encode())
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        assert "before a fork" in pipe.read()
    lab.send(1)
    assert lab.bus.stats(DOMAIN).ready == 2
    lab.check_integrity()
