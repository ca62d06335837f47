"""One writer at a time, across processes, without polling.

SQLite's own lock makes those that wait sleep and try again, which starves some of them for seconds when
ten processes write. A lock of the operating system queues them and wakes the next at once. It is also
held while the write-ahead log is folded back, which keeps older SQLite libraries (before 3.51.3) clear
of a race between a checkpoint and a writer.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from weakref import WeakSet

from commandbus.errors import ConfigurationError

try:
    import fcntl
except ImportError:  # not on this system; SQLite's own lock is correct, only slower under contention
    fcntl = None  # type: ignore[assignment]

_locks: WeakSet[WriteLock] = WeakSet()


class WriteLock:
    """Held around each write transaction. The kernel lets go of it when its process dies."""

    def __init__(self, path: Path, beside: Path) -> None:
        """A new lock file gets the rights of the file `beside` it: a user who may only read that file
        must not be able to hold up its writers. A symbolic link is refused, and so is a file of
        another user beside a private one."""
        flags = os.O_RDWR | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
        try:
            try:
                self._file = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600)
                path.chmod(beside.stat().st_mode & 0o666)
            except FileExistsError:
                self._file = os.open(path, flags)
                self._check_owner(path, beside)
        except OSError as error:
            raise ConfigurationError(
                f"The lock file {path} cannot be opened ({error.strerror}); it must be a plain file, "
                "no link, that this user may write, in a folder that this user may write."
            ) from error
        _locks.add(self)

    def _check_owner(self, path: Path, beside: Path) -> None:
        lock, store = os.fstat(self._file), beside.stat()
        is_shared = bool(store.st_mode & 0o066)
        if not hasattr(os, "geteuid") or is_shared:  # on Windows files have no such owner
            return
        if lock.st_uid not in (os.geteuid(), store.st_uid, 0):
            os.close(self._file)
            raise ConfigurationError(
                f"The lock file {path} belongs to another user (uid {lock.st_uid}), who could hold up "
                f"every write to {beside.name}. Remove it, and keep the store in a folder in which no "
                "other user may create files."
            )

    def take_if_free(self) -> bool:
        """Take it without waiting; a `with` that follows has it already, and lets go of it."""
        if fcntl is not None:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
        return True

    def __enter__(self) -> None:
        if fcntl is not None:
            fcntl.flock(self._file, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        if fcntl is not None:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._file = -1


def _leave_all() -> None:
    """In the child of a fork: with this file open, it would hold what a parent that was killed held."""
    for lock in tuple(_locks):
        with suppress(OSError):
            lock.close()


if hasattr(os, "register_at_fork"):  # not on Windows, where nothing forks
    os.register_at_fork(after_in_child=_leave_all)
