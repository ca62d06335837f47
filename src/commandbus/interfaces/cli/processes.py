"""Several worker processes under one command: started, watched, restarted, stopped together."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from types import FrameType

from commandbus.interfaces.cli import output
from commandbus.interfaces.cli.exits import Exit
from commandbus.interfaces.cli.serving import SUPERVISOR

HOPELESS = frozenset({Exit.USAGE, Exit.NO_APP, Exit.STORE, Exit.SCHEMA})
"""Exit codes of a new process that another try would not change."""
YOUNG_SECONDS = 5.0
RESTART_SECONDS = 1.0
LOOK_SECONDS = 0.1


@dataclass(slots=True)
class _Child:
    process: subprocess.Popen[bytes]
    started: float
    restart_at: float | None = None


class Supervisor:
    """Keeps a number of worker processes alive, and passes signals on to them."""

    def __init__(self, arguments: list[str], url: str, processes: int) -> None:
        self._arguments = arguments
        # Not on the command line, where everyone on the machine could read a password in it.
        self._environment = os.environ | {"COMMANDBUS_URL": url, SUPERVISOR: str(os.getpid())}
        self._count = processes
        self._children: list[_Child] = []
        self._signals = 0

    def run(self) -> int:
        """Until a signal has stopped them all; returns the worst exit code."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._pass_on)
        self._children = [self._start() for _ in range(self._count)]
        worst = 0
        while True:
            for child in self._children:
                worst = max(worst, self._look_after(child))
            if self._signals and all(child.process.poll() is not None for child in self._children):
                # One that had not begun yet is ended by the signal itself, which is just as clean.
                clean = (Exit.OK, -signal.SIGTERM)
                failed = any(child.process.returncode not in clean for child in self._children)
                return worst or (Exit.FAILURE if failed else Exit.OK)
            if worst and not self._signals:
                self._pass_on(signal.SIGTERM, None)
            time.sleep(LOOK_SECONDS)

    def _start(self) -> _Child:
        # A process group of its own: Ctrl-C reaches this process only, which then passes it on.
        process = subprocess.Popen(  # noqa: S603 - this program, with its own arguments
            [sys.executable, "-m", "commandbus", "worker", *self._arguments],
            env=self._environment,
            process_group=0,
        )
        return _Child(process, time.monotonic())

    def _look_after(self, child: _Child) -> int:
        """Restart a process that died; returns its exit code when that would be pointless."""
        code, now = child.process.poll(), time.monotonic()
        if code is None or self._signals:
            return 0
        if child.restart_at is None:
            if code in HOPELESS and now - child.started < YOUNG_SECONDS:
                return code
            output.warn(f"worker process {child.process.pid} ended with {code}; starting another")
            child.restart_at = now + RESTART_SECONDS
        elif now >= child.restart_at:
            fresh = self._start()
            child.process, child.started, child.restart_at = fresh.process, fresh.started, None
        return 0

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        self._signals += 1
        for child in self._children:
            if child.process.poll() is None:
                child.process.send_signal(signal.SIGTERM)
        if self._signals >= 3:
            os._exit(Exit.FAILURE)
