"""The file itself: created private, and checked after every commit.

A file that is deleted or replaced under a running program takes commits all the same, into an inode
that no path leads to any more. So a commit is acknowledged only after its path was found to lead to the
same file. The time of that write, set by the kernel, also shows a process whose clock may be wrong.
"""

from __future__ import annotations

import logging
import os
import time
from contextlib import suppress
from pathlib import Path

from commandbus.domain.moment import SECOND, Clock, system_clock
from commandbus.errors import StoreUnavailable

logger = logging.getLogger("commandbus.sqlite")

PRIVATE = 0o600
CLOCK_DIFFERENCE_MAX = 5.0
"""Seconds by which the clock of a process may differ from that of the file system."""
_REMIND_SECONDS = 60.0

Identity = tuple[int, int]


def create(path: Path) -> None:
    """Create the file for this user alone, unless it exists. SQLite gives its log the same rights."""
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, PRIVATE))


def clock_difference(path: Path, clock: Clock) -> float:
    """Seconds by which the clock is ahead of the kernel's, which dates the lock; raises OSError."""
    lock = Path(f"{path}.lock")
    os.utime(lock)
    return clock() / SECOND - lock.stat().st_mtime


class OpenFile:
    """A file that this process has open, and the log beside it."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = str(path)
        self._log = f"{path}-wal"
        self._clock = clock
        self._identity = _identity(self._path)
        self._log_identity: Identity | None = None
        self._remind_at = 0.0

    def check(self) -> None:
        """After a commit: raises StoreUnavailable when the path leads to another file by now."""
        try:
            found = os.stat(self._log)  # noqa: PTH116 - after every commit, and twice as fast
            if _identity(self._path) != self._identity:
                raise FileNotFoundError
        except OSError:
            raise self._lost() from None
        log = found.st_dev, found.st_ino
        if self._log_identity is None:
            self._log_identity = log
        elif log != self._log_identity:
            raise self._lost()
        if self._clock is system_clock:
            self._compare_clocks(found.st_mtime)

    def _compare_clocks(self, written_at: float) -> None:
        if abs(self._clock() / SECOND - written_at) <= CLOCK_DIFFERENCE_MAX:
            return
        if time.monotonic() < self._remind_at:
            return
        # A transaction that changed nothing leaves the log at the time of an earlier write.
        try:
            ahead = clock_difference(Path(self._path), self._clock)
        except OSError:
            return
        if abs(ahead) > CLOCK_DIFFERENCE_MAX:
            self._remind_at = time.monotonic() + _REMIND_SECONDS
            logger.error(
                "the clock of this process is %.0f s %s that of the file system: delayed commands run "
                "at the wrong time, and leases of other processes are misjudged; correct the clock",
                abs(ahead),
                "ahead of" if ahead > 0 else "behind",
            )

    def _lost(self) -> StoreUnavailable:
        return StoreUnavailable(
            f"The SQLite file {self._path} or its log was deleted or replaced while this program had "
            "it open, so what it wrote last may be lost. Stop every program that has it open, put the "
            "right file there without a log (-wal) of another, start again, and repeat what failed."
        )


def _identity(path: str) -> Identity:
    found = os.stat(path)  # noqa: PTH116
    return found.st_dev, found.st_ino
