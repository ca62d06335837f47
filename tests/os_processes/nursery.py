"""Processes that start at once: forked from one that has imported everything already.

Starting Python and importing the bus takes a third of a second of processor time; a laboratory that
kills hundreds of processes would do little else. `python -m tests.os_processes.nursery FD` is the
parent of them all: it has one thread, no connection and no bus, forks on request, and says how each
of its children ended. It ends when its owner does, and its children by the end of their standard input.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
MODULES = (
    "tests.chaos.catalogue",
    "tests.chaos.process",
    "tests.chaos.saga_process",
    "tests.chaos.crew",
    "tests.chaos.storm",
    "tests.failpoints.child",
    "tests.os_processes.child",
)
REQUEST_MAX = 65_536


class Forked:
    """A process of the nursery, with what `subprocess.Popen` has of it."""

    def __init__(self, pid: int, ends: tuple[int, int, int]) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.stdin = os.fdopen(ends[0], "w", encoding="utf-8")
        self.stdout = os.fdopen(ends[1], "r", encoding="utf-8", errors="replace")
        self.stderr = os.fdopen(ends[2], "r", encoding="utf-8", errors="replace")
        self._ended = threading.Event()

    def end(self, code: int) -> None:
        self.returncode = code
        self._ended.set()

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if not self._ended.wait(timeout):
            raise subprocess.TimeoutExpired("a forked process", timeout or 0.0)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Nursery:
    """The owner's side; every thread may ask."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._children: dict[int, Forked] = {}
        self._early: dict[int, int] = {}
        """How children ended of which the asking thread does not know yet."""
        self._pids: list[int] = []
        self._answered = threading.Condition()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.os_processes.nursery", str(theirs.fileno())],
                cwd=ROOT,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=os.environ | {"PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": ""},
            )
        threading.Thread(target=self._hear, name="nursery", daemon=True).start()

    def start(self, module: str, config: dict[str, Any]) -> Forked:
        pipes = [os.pipe() for _ in range(3)]
        theirs, ours = [], []
        for number, (read, write) in enumerate(pipes):
            theirs.append(read if number == 0 else write)
            ours.append(write if number == 0 else read)
        with self._lock:
            request = json.dumps([module, config]).encode()
            socket.send_fds(self._socket, [request], theirs)
            with self._answered:
                assert self._answered.wait_for(lambda: self._pids, 60), "the nursery does not answer"
                pid = self._pids.pop()
                child = Forked(pid, (ours[0], ours[1], ours[2]))
                self._children[pid] = child
                if pid in self._early:
                    self._finish(pid, self._early.pop(pid))
        for end in theirs:
            os.close(end)
        return child

    def _hear(self) -> None:
        while said := self._socket.recv(REQUEST_MAX):
            kind, pid, code = json.loads(said)
            with self._answered:
                if kind == "began":
                    self._pids.append(pid)
                    self._answered.notify_all()
                elif pid in self._children:
                    self._finish(pid, code)
                else:
                    self._early[pid] = code

    def _finish(self, pid: int, code: int) -> None:
        self._children.pop(pid).end(code)

    def close(self) -> None:
        # Closing alone would end nothing while a thread listens.
        self._socket.shutdown(socket.SHUT_RDWR)
        self._process.wait(10)


_shared: list[Nursery] = []
_sharing = threading.Lock()


def shared() -> Nursery:
    """One for all laboratories of this process."""
    with _sharing:
        if not _shared:
            _shared.append(Nursery())
            atexit.register(_shared[0].close)
        return _shared[0]


def serve(owner: socket.socket) -> None:
    """Fork on request, and tell how children ended, until the owner hangs up."""
    for module in MODULES:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    died, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        ready, _, _ = select.select([owner, died], [], [])
        if died in ready:
            os.read(died, REQUEST_MAX)
            _reap(owner)
        if owner in ready:
            request, fds, _, _ = socket.recv_fds(owner, REQUEST_MAX, 3)
            if not request:
                return
            pid = os.fork()
            if pid == 0:
                _become(request, fds, [owner.fileno(), died, wake])
            for fd in fds:
                os.close(fd)
            owner.send(json.dumps(["began", pid, 0]).encode())


def _reap(owner: socket.socket) -> None:
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            owner.send(json.dumps(["ended", pid, os.waitstatus_to_exitcode(status)]).encode())


def _become(request: bytes, fds: list[int], not_mine: list[int]) -> None:
    """In the child: run the module as if it had been started for this."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number, fd in enumerate(fds):
            os.dup2(fd, number)
        for fd in [*fds, *not_mine]:
            os.close(fd)
        sys.stdin = os.fdopen(0, encoding="utf-8")
        module, config = json.loads(request)
        sys.argv = [module, json.dumps(config)]
        if bug := config.get("bug"):
            importlib.import_module("tests.chaos.catalogue").switch_on(bug)
        importlib.import_module(module).main()
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
