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
from commandbus.interfaces.cli.care import Care, sign_seconds
from commandbus.interfaces.cli.exits import Exit
from commandbus.interfaces.cli.signals import SUPERVISOR
from commandbus.runtimes.probes import notify_systemd

HOPELESS = frozenset({Exit.USAGE, Exit.NO_APP, Exit.STORE, Exit.SCHEMA})
"""Exit codes of a new process that another try would not change."""
SYSTEMD = frozenset({"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"})
YOUNG_SECONDS = 5.0
RESTART_SECONDS = 1.0
LOOK_SECONDS = 0.1


@dataclass(slots=True)
class _Child:
    index: int
    process: subprocess.Popen[bytes]
    started: float
    restart_at: float | None = None


class Supervisor:
    """Keeps a number of worker processes alive, and passes signals on to them. Where systemd asks for
    signs of life, it gives them itself, for systemd minds only the process that it started."""

    def __init__(self, arguments: list[str], url: str, care: Care, processes: int) -> None:
        self._arguments = arguments
        self._care = care
        inherited = {key: value for key, value in os.environ.items() if key not in SYSTEMD}
        # Not on the command line, where everyone on the machine could read a password in it.
        self._environment = inherited | {"COMMANDBUS_URL": url, SUPERVISOR: str(os.getpid())}
        self._count = processes
        self._children: list[_Child] = []
        self._signals = 0

    def run(self) -> int:
        """Until a signal has stopped them all; returns the worst exit code."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._pass_on)
        self._children = [self._start(index) for index in range(self._count)]
        notify_systemd("READY=1")
        worst, signed = 0, 0.0
        while True:
            if time.monotonic() >= signed + sign_seconds():
                notify_systemd("WATCHDOG=1")
                signed = time.monotonic()
            for child in self._children:
                worst = max(worst, self._look_after(child))
            if self._signals and all(child.process.poll() is not None for child in self._children):
                # One that had not begun yet is ended by the signal itself, which is just as clean; and
                # one that died before the signal was reported then.
                clean = (Exit.OK, -signal.SIGTERM)
                stopped = [child for child in self._children if child.restart_at is None]
                failed = any(child.process.returncode not in clean for child in stopped)
                return worst or (Exit.FAILURE if failed else Exit.OK)
            if worst and not self._signals:
                self._pass_on(signal.SIGTERM, None)
            time.sleep(LOOK_SECONDS)

    def _start(self, index: int) -> _Child:
        # A process group of its own: Ctrl-C reaches this process only, which then passes it on.
        process = subprocess.Popen(  # noqa: S603 - this program, with its own arguments
            [
                *(sys.executable, "-m", "commandbus", "worker", *self._arguments),
                *self._care.of_process(index),
            ],
            env=self._environment,
            process_group=0,
        )
        return _Child(index, process, time.monotonic())

    def _look_after(self, child: _Child) -> int:
        """Restart a process that died; returns its exit code when that would be pointless."""
        code, now = child.process.poll(), time.monotonic()
        if code is None or self._signals:
            return 0
        if child.restart_at is None:
            if code in HOPELESS and now - child.started < YOUNG_SECONDS:
                return code
            if code == Exit.OK:  # it has done its share
                output.note(f"worker process {child.process.pid} has ended; starting another")
                child.restart_at = now
            else:
                output.warn(f"worker process {child.process.pid} ended with {code}; starting another")
                child.restart_at = now + RESTART_SECONDS
        if now >= child.restart_at:
            fresh = self._start(child.index)
            child.process, child.started, child.restart_at = fresh.process, fresh.started, None
        return 0

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        self._signals += 1
        notify_systemd("STOPPING=1")
        for child in self._children:
            if child.process.poll() is None:
                child.process.send_signal(signal.SIGTERM)
        if self._signals >= 3:
            os._exit(Exit.FAILURE)
