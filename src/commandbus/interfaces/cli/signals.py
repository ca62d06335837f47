"""Signals to a worker or router in this process.

A handler of signals in Python runs in the main thread, between two of its steps; and that thread may be
in a system call, for as long as an app's handler likes to block the loop. So signals are heard by a
thread of their own, over the file that the interpreter writes to the moment that one arrives.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from math import inf

from commandbus.interfaces.cli import output
from commandbus.interfaces.cli.exits import Exit
from commandbus.runtimes.signals import HEARD

SUPERVISOR = "COMMANDBUS_SUPERVISOR"
"""Set for worker processes to the id of the process that looks after them."""


def supervisor() -> int:
    """The process that looks after this one; 0 for none."""
    return int(os.environ.get(SUPERVISOR) or 0)


DRAINED = 74
"""How a worker process tells its supervisor that none takes its place: nothing is left to do, or an
operator stopped it."""
ABORT_SECONDS = 5.0
"""What has not stopped so long after its patience never will: the process is ended."""
_ASKED = 0
"""No signal has this number."""


class Signals:
    """The first signal drains, the second cancels, the third ends the process at once; and so does the
    end of `patience`, and a moment more, however stuck the rest of the process is.

    `stop` is called in another thread, with the seconds that handlers still have, None for all of
    them; it must not wait. `failure` is the exit code when it did not stop in time.
    """

    def __init__(
        self,
        stop: Callable[[float | None], object],
        patience: float,
        failure: Callable[[], int] = lambda: Exit.FAILURE,
    ) -> None:
        self._stop = stop
        self._failure = failure
        self._patience = patience
        self._count = 0
        self._abort_at = inf
        self._ear, self._mouth = socket.socketpair()
        self._mouth.setblocking(False)
        signal.set_wakeup_fd(self._mouth.fileno(), warn_on_full_buffer=False)
        for number in HEARD:
            # Without a handler, the signal would do what it does by default.
            signal.signal(number, lambda number, frame: None)
        threading.Thread(target=self._listen, name="commandbus-signals", daemon=True).start()
        self._watch_supervisor()

    def _listen(self) -> None:
        while True:
            left = self._abort_at - time.monotonic()
            if left <= 0:
                output.note("aborting: not stopped in time; what runs comes back with its lease")
                os._exit(self._failure())
            if select.select([self._ear], [], [], None if left == inf else left)[0]:
                for number in self._ear.recv(64):
                    if number == _ASKED:
                        self._asked()
                    elif number in HEARD:
                        self._received()

    @property
    def left(self) -> float:
        """Seconds until the process is ended, whatever it does; infinite before the first signal."""
        return self._abort_at - time.monotonic()

    def drain(self) -> None:
        """As an operator asks for: no signal is counted, so that the first one still drains."""
        self._mouth.send(bytes([_ASKED]))

    def _asked(self) -> None:
        if self._count == 0:
            self._give(None)
            output.note("draining: an operator stops this worker (a second signal cancels handlers)")

    def _received(self) -> None:
        self._count += 1
        match self._count:
            case 1:
                self._give(None)
                output.note("draining: running handlers finish (a second signal cancels them)")
            case 2:
                self._give(0.0)
                output.note("canceling: running commands go back (a third signal aborts)")
            case _:
                os._exit(Exit.FAILURE)

    def _give(self, seconds: float | None) -> None:
        """Act before anything is printed: the reader of the output may be gone."""
        patience = self._patience if seconds is None else seconds
        self._abort_at = min(self._abort_at, time.monotonic() + patience + ABORT_SECONDS)
        self._stop(seconds)

    def _watch_supervisor(self) -> None:
        """Drain when the process that started this one is gone, because no other process would stop
        it."""
        expected = supervisor()
        os.environ.pop(SUPERVISOR, None)
        # On Windows the parent of a program in a virtual environment is its launcher, and stays so.
        if not expected or sys.platform == "win32":
            return

        def watch() -> None:
            while os.getppid() == expected:
                time.sleep(0.5)
            os.kill(os.getpid(), signal.SIGTERM)

        threading.Thread(target=watch, name="commandbus-supervisor", daemon=True).start()
