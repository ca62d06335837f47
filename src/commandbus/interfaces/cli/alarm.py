"""Waiting that a signal ends: the end of a child is noticed at once, without looking all the time."""

from __future__ import annotations

import os
import select
import signal
import time
from typing import Self


class Alarm:
    """For the main thread of a process. On Windows there is no signal for the end of a child, so a wait
    takes its whole time there."""

    def __init__(self) -> None:
        self._read = self._write = -1

    def __enter__(self) -> Self:
        if os.name == "posix":
            self._read, self._write = os.pipe()
            os.set_blocking(self._read, False)
            os.set_blocking(self._write, False)
            self._former_fd = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
            self._former = signal.signal(signal.SIGCHLD, lambda number, frame: None)
        return self

    def __exit__(self, *_: object) -> None:
        if self._read >= 0:
            signal.signal(signal.SIGCHLD, self._former)
            signal.set_wakeup_fd(self._former_fd)
            os.close(self._read)
            os.close(self._write)

    def wait(self, seconds: float) -> bool:
        """Until a signal has come, or so long; whether one has come."""
        if self._read < 0:
            time.sleep(seconds)
            return False
        if not select.select([self._read], [], [], seconds)[0]:
            return False
        os.read(self._read, 4096)
        return True
