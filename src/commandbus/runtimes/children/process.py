"""A child process as its worker sees it: started, spoken to, ended and reaped."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from commandbus.runtimes.children.cgroup import Cgroup
from commandbus.worker.isolation.messages import FromChild, Inbox, Setup, Stop, ToChild, encode, frame
from commandbus.worker.isolation.orphans import mark
from commandbus.worker.isolation.verdicts import Death, End

_ROOT = str(Path(__file__).parents[3])
"""Where a child finds this package."""
_CODE = (
    f"import sys; sys.path.insert(0, {_ROOT!r}); "
    "from commandbus.runtimes.children import child; child.main()"
)
_CHUNK = 65_536


class ChildGone(Exception):  # noqa: N818 - a signal inside this package
    """The child has closed its end: it has ended or is about to."""


class ChildStalled(ChildGone):
    """The child did not read its message in time."""


class WrongMessage(ChildGone):
    """The child sent bytes that are no message."""


class Child:
    def __init__(self, setup: Setup) -> None:
        """Start one, by exec and not by fork alone: the threads and locks of the worker stay behind.

        The thread that does this must live as long as the child, because the kernel ends a child with
        the thread that started it.
        """
        self._socket, theirs = socket.socketpair()
        self._bell, heard = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._bell.setblocking(False)
        self._pidfd: int | None = None
        try:
            with theirs, heard:
                self._process = subprocess.Popen(  # noqa: S603 - this interpreter, and our own code
                    [sys.executable, *_flags(), "-c", _CODE, *_numbers(theirs, heard)],
                    stdin=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno(), heard.fileno()],
                    env=os.environ | mark(),
                    start_new_session=True,  # so that what the handler starts can be ended with it
                )
        except BaseException:
            self._close()
            raise
        self.pid = self._process.pid
        self.ready = False
        self.calls = self.canceled = 0
        """How many calls it was given, and the last one that it was asked to end."""
        self.ending: End | None = None
        """Why the worker has killed it."""
        self._inbox: Inbox[FromChild] = Inbox(FromChild)
        self._lock = threading.Lock()
        self._death: Death | None = None
        self._cgroup = Cgroup.create(self.pid)
        if sys.platform == "linux":
            with suppress(OSError):  # an old kernel, or a sandbox
                self._pidfd = os.pidfd_open(self.pid)
        with suppress(ChildGone):  # found out with the first answer
            self.say(setup)

    def say(self, message: ToChild, seconds: float | None = None) -> None:
        """Raises ChildGone, and ChildStalled when the child has not taken all of it in so many
        seconds; it is of no use then."""
        until = None if seconds is None else time.monotonic() + seconds
        left = memoryview(frame(message))
        while left:
            try:
                left = left[self._socket.send(left) :]
            except BlockingIOError:
                wait = None if until is None else until - time.monotonic()
                if not self._await(select.POLLOUT, wait):
                    raise ChildStalled from None
            except OSError as error:
                raise ChildGone from error

    def hear(self, seconds: float | None) -> FromChild | None:
        """The next message, or None when it is not complete after so many seconds. Raises ChildGone."""
        until = None if seconds is None else time.monotonic() + seconds
        while (message := self._next()) is None:
            wait = None if until is None else until - time.monotonic()
            if not self._await(select.POLLIN, wait):
                return None
            try:
                received = self._socket.recv(_CHUNK)
            except OSError as error:
                raise ChildGone from error
            if not received:
                raise ChildGone
            self._inbox.feed(received)
        return message

    def _next(self) -> FromChild | None:
        try:
            return self._inbox.take()
        except msgspec.MsgspecError as error:
            raise WrongMessage(str(error)) from error

    def _await(self, event: int, seconds: float | None) -> bool:
        """Whether the socket is ready within so many seconds. Raises ChildGone when the child has
        ended: what it has started may keep its socket open."""
        poll = select.poll()
        try:
            poll.register(self._socket, event)
            if self._pidfd is not None:
                poll.register(self._pidfd, select.POLLIN)
            ready = poll.poll(None if seconds is None else max(seconds, 0.0) * 1000)
        except (OSError, ValueError) as error:  # closed meanwhile
            raise ChildGone from error
        if ready and all(number == self._pidfd for number, _ in ready):
            raise ChildGone
        return bool(ready)

    def ring(self, stop: Stop) -> None:
        """Send a message to a child that is busy with its handler."""
        with suppress(OSError), self._lock:
            if self._death is None:
                self._bell.send(encode(stop))
                os.kill(self.pid, signal.SIGUSR1)

    def limit_memory(self, memory: int | None) -> None:
        """The cgroup's part of a limit; the child sets the other itself."""
        if self._cgroup is not None:
            self._cgroup.limit(memory)

    def kill(self) -> None:
        """End it and what it has started."""
        with suppress(ProcessLookupError, PermissionError), self._lock:
            if self._death is None:  # its number is not another process's yet
                os.killpg(self.pid, signal.SIGKILL)

    def leave(self) -> None:
        """Let an idle one end by itself: it sees the end of its input."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def reap(self) -> Death:
        """Wait for the end of one that was killed, left or has ended, and let go of everything."""
        with self._lock:
            if self._death is None:
                status, peak = self._wait()
                oom = self._cgroup is not None and self._cgroup.killed
                self._death = Death(status, peak, oom)
                if self._cgroup is not None:
                    self._cgroup.remove()
                self._close()
        return self._death

    def _wait(self) -> tuple[int | None, int | None]:
        # What the handler has started dies with it, while the number of the group is still its own.
        with suppress(ChildProcessError):
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
            _, status, usage = os.wait4(self.pid, 0)
            self._process.returncode = os.waitstatus_to_exitcode(status)
            unit = 1 if sys.platform == "darwin" else 1024
            return self._process.returncode, usage.ru_maxrss * unit
        self._process.returncode = 0  # a SIGCHLD handler of the program has taken its status
        return None, None

    def _close(self) -> None:
        self._socket.close()
        self._bell.close()
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None


def _numbers(*sockets: socket.socket) -> list[str]:
    return [str(one.fileno()) for one in sockets]


def _flags() -> list[Any]:
    """The interpreter's own options, such as -X and -W, as multiprocessing passes them on."""
    found: list[Any] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return found
