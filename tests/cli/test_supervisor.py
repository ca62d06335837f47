"""The supervisor of worker processes, with processes that do what a test says."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from commandbus.interfaces.cli import supervisor
from commandbus.interfaces.cli.exits import Exit
from commandbus.interfaces.cli.supervision import Supervision
from commandbus.runtimes.recovery import ProcessEnd

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="sends SIGTERM")

PID = 2**22 + 1
"""More than the kernel gives to a process."""


class Process:
    """A worker process that runs until it gets a signal; `started` is called while it starts."""

    started: Callable[[], None] = staticmethod(lambda: None)
    starts: list[Process]

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.pid = PID + len(self.starts)
        self.code: int | None = None
        self.starts.append(self)
        type(self).started()

    def poll(self) -> int | None:
        return self.code

    @property
    def returncode(self) -> int | None:
        return self.code

    def send_signal(self, number: int) -> None:
        self.code = -number

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Process]]:
    """Those that were started."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    monkeypatch.setattr(Process, "starts", [], raising=False)
    monkeypatch.setattr(subprocess, "Popen", Process)
    monkeypatch.setattr(supervisor, "RESTART_SECONDS", 0.01)
    yield Process.starts
    for number, handler in handlers.items():
        signal.signal(number, handler)


def watching(count: int = 1) -> supervisor.Supervisor:
    nothing = Supervision("127.0.0.1", None, None, watchdog=False)
    return supervisor.Supervisor([], "memory://", nothing, count)


def ended_causes(watch: supervisor.Supervisor, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Filled with what the supervisor says of processes that ended."""
    causes: list[str] = []

    def recover(ends: dict[Any, ProcessEnd]) -> None:
        causes.extend(end.cause for end in ends.values())

    monkeypatch.setattr(watch, "_recover", recover)
    return causes


@pytest.mark.parametrize("number", [1, 2, 3], ids=["first", "second", "restart"])
def test_a_signal_reaches_a_process_that_is_being_started(
    processes: list[Process], monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def started() -> None:
        if len(processes) == number:
            os.kill(os.getpid(), signal.SIGTERM)
        elif len(processes) > number:
            pytest.fail("another process was started after the signal")

    def looked(watch: supervisor.Supervisor, child: Any, now: float) -> None:
        if len(processes) == 2 and number == 3:
            processes[0].code = -signal.SIGKILL  # another takes its place

    monkeypatch.setattr(Process, "started", staticmethod(started))
    monkeypatch.setattr(supervisor.Supervisor, "_end_if_stuck", looked)
    assert watching(2 if number > 1 else 1).run() == Exit.OK
    assert len(processes) == number
    assert processes[-1].code == -signal.SIGTERM


def test_a_process_that_cannot_be_started_again_for_the_moment_is_tried_again(
    processes: list[Process], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def started() -> None:
        match len(processes):
            case 1:
                processes[0].code = -signal.SIGKILL
            case 2:
                raise OSError(errno.EAGAIN, "no more processes")
            case 3:
                os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Process, "started", staticmethod(started))
    assert watching().run() == Exit.OK
    assert len(processes) == 3
    assert "cannot be started, trying again" in capsys.readouterr().err


def test_a_program_that_is_gone_is_the_end_of_its_supervisor(
    processes: list[Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    def started() -> None:
        if len(processes) == 2:
            raise FileNotFoundError(errno.ENOENT, "gone")
        processes[0].code = -signal.SIGKILL

    monkeypatch.setattr(Process, "started", staticmethod(started))
    with pytest.raises(FileNotFoundError):
        watching().run()


@pytest.mark.parametrize(("counts", "is_cause"), [((0, 1), True), ((1, 1), False)], ids=str)
def test_memory_that_ran_out_long_before_is_not_the_cause_of_a_death(
    processes: list[Process], monkeypatch: pytest.MonkeyPatch, counts: tuple[int, int], is_cause: bool
) -> None:
    """Of the counts of the kernel, those of the last seconds are compared."""
    watch = watching()
    causes = ended_causes(watch, monkeypatch)
    kills = [0]
    monkeypatch.setattr(supervisor, "memory_kills", lambda: kills[0])
    child = watch._start(0)
    now = child.started
    for count in counts:
        kills[0] = count
        now += supervisor.MEMORY_SECONDS
        watch._count_memory_kills(child, now)
    watch._give_back(child, -signal.SIGKILL)
    watch._recoveries[0].join()
    (cause,) = causes
    assert ("memory ran out" in cause) is is_cause
    assert child.memory_kills == deque(counts)


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_process_whose_handler_is_over_its_time_is_killed_unless_it_is_stopped(
    processes: list[Process], monkeypatch: pytest.MonkeyPatch, is_stopped: bool
) -> None:
    """By SIGSTOP or a debugger: no command has done that."""

    class Overdue:
        def overdue(self, process: Any, now: float) -> float:
            return 60.0

    watch = watching()
    monkeypatch.setattr(watch, "_recordings", [Overdue()])
    monkeypatch.setattr(supervisor, "is_seen_stopped", lambda process: is_stopped)
    child = watch._start(0)
    for second in range(4):
        watch._end_if_stuck(child, child.started + 1.5 * second)
    assert processes[0].code == (None if is_stopped else -signal.SIGKILL)


ORPHANED = """
import ctypes, os, subprocess, sys, time
from commandbus.interfaces.cli.supervisor import reap_orphans

PR_SET_CHILD_SUBREAPER = 36
assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
child = subprocess.Popen([sys.executable, "-c", "import os; os.fork() or os._exit(0); os._exit(7)"])

def zombies():
    mine = open(f"/proc/self/task/{os.getpid()}/children").read().split()
    return {int(pid) for pid in mine if ") Z " in open(f"/proc/{pid}/stat").read()}

until = time.monotonic() + 20
while len(zombies()) < 2 and time.monotonic() < until:
    time.sleep(0.01)
assert len(zombies()) == 2, zombies()
reap_orphans({child.pid})
assert child.wait() == 7
reap_orphans(set())
assert zombies() == set()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no containers of this kind")
def test_processes_that_handlers_left_are_reaped_and_children_keep_their_status(tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", ORPHANED], check=False, cwd=tmp_path, timeout=60)
    assert ended.returncode == 0
