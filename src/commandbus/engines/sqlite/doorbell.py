"""Doorbells: how a commit in one process wakes those that sleep in others.

A process that waits for work has a named pipe beside the file, its bell, and a word in the lock file: a
bit for each domain that it waits for, none while it is busy. A commit that made work reads these words,
which costs a memory access, and writes a byte to the bells of processes that wait for it. A busy fleet
rings nothing. Bytes carry no data: the process that hears one looks at the store.

A ring is a hint. Where bells do not work (no named pipes, a file system without them, a folder of
another user, a process that runs an older version) the watcher finds work by the change counter.
"""

from __future__ import annotations

import errno
import mmap
import os
import random
import select
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from weakref import WeakSet
from zlib import crc32

from commandbus.engines.sqlite.lock import WriteLock
from commandbus.errors import ConfigurationError
from commandbus.store.op import Wake

SLOTS = 64
"""Processes that can wait with a bell; more than these use the change counter alone."""
_WORD = 8
_SIZE = SLOTS * _WORD
_NONE = bytes(_SIZE)
_BITS = 63
EVERY_COMMIT = 1 << _BITS
"""The bit of a process in which an outcome is awaited."""

LOOK = b"!"
STAND_BY = b"."
"""Another process was asked to look: look a moment later, whether it took all."""
EXPECT = b"~"
"""A transaction of a caller will commit, at a moment that only the caller knows."""
_FLAGS = os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC if hasattr(os, "mkfifo") else 0

_bells: WeakSet[Bell] = WeakSet()


def mask_of(domains: Iterable[str]) -> int:
    """A bit for each domain. Domains that share one cause a needless claim."""
    mask = 0
    for domain in domains:
        mask |= 1 << crc32(domain.encode()) % _BITS
    return mask


class Doorbell:
    """What this process says about its sleep, and the bells of the others."""

    def __init__(self, store: Path) -> None:
        self._store = store
        self._masks: dict[frozenset[str], int] = {}
        self._slot: int | None = None
        self._pid = os.getpid()
        self._map: mmap.mmap | None = None
        self._words: memoryview | None = None
        if hasattr(os, "mkfifo"):
            # Without a place for the words nothing is rung, and the change counter does the work.
            with suppress(OSError, ValueError):
                self._open_words()

    def _open_words(self) -> None:
        file = os.open(f"{self._store}.lock", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            size = os.fstat(file).st_size
            if size < _SIZE:  # written, so that a full disk is an error here and not a signal later
                os.pwrite(file, bytes(_SIZE - size), size)
            self._map = mmap.mmap(file, _SIZE)
            self._words = memoryview(self._map).cast("Q")
        finally:
            os.close(file)

    def listen(self) -> Bell | None:
        """This process's own bell, or None where there can be none. Called once, before `sleep`."""
        if self._words is None:
            return None
        try:
            # Its own opening of the lock file: the write lane may hold the other one.
            lock = WriteLock(Path(f"{self._store}.lock"), self._store)
        except ConfigurationError:  # the lock file was replaced meanwhile; a second bus would say so
            return None
        try:
            with lock:
                for slot in range(SLOTS):
                    bell = _hang(self._bell_of(slot), self._store)
                    if bell is not None:
                        self._words[slot] = 0
                        self._slot = slot
                        return bell
        except OSError:
            pass
        finally:
            lock.close()
        return None

    def sleep(self, domains: Iterable[frozenset[str]], observed: bool) -> None:
        """Say what this process waits for: nothing, while it is busy. Cheap: called with each claim."""
        if self._slot is None or self._words is None:
            return
        mask = EVERY_COMMIT if observed else 0
        for each in domains:
            found = self._masks.get(each)
            if found is None:
                found = self._masks[each] = mask_of(each)
            mask |= found
        self._words[self._slot] = mask

    def ring(self, wakes: Iterable[Wake], unheard: Iterable[Wake]) -> None:
        """After a commit with these wake-ups. Of the processes that sleep for one that was `unheard` in
        this process, one looks at once, and the others a moment later."""
        if self._map is None or self._words is None or self._map[:] == _NONE:
            return
        everyone = EVERY_COMMIT | mask_of(wake.domain for wake in wakes if wake.everyone)
        one = mask_of(wake.domain for wake in unheard if not wake.due_in)
        others = mask_of(wake.domain for wake in wakes)
        asleep = [(slot, word) for slot, word in enumerate(self._words) if word and slot != self._slot]
        # Not always the same one, so that all share the load.
        random.shuffle(asleep)
        for slot, word in asleep:
            if word & (one | everyone):
                self._ring(slot, LOOK)
                one &= ~word
            elif word & others:
                self._ring(slot, STAND_BY)

    def expect(self, wakes: Iterable[Wake]) -> None:
        """Before a caller's commit: all that sleep for its domains look for it, this process too."""
        if self._words is None:
            return
        wanted = mask_of(wake.domain for wake in wakes)
        for slot, word in enumerate(self._words):
            if word & wanted:
                self._ring(slot, EXPECT)

    def _ring(self, slot: int, message: bytes) -> None:
        assert self._words is not None
        # The one that is rung says so again before it looks. If it is gone, it is not rung again.
        self._words[slot] = 0
        with suppress(OSError):
            bell = os.open(self._bell_of(slot), os.O_WRONLY | _FLAGS)
            try:
                if stat.S_ISFIFO(os.fstat(bell).st_mode):
                    os.write(bell, message)
            finally:
                os.close(bell)

    def _bell_of(self, slot: int) -> str:
        return f"{self._store}.bell-{slot}"

    def close(self) -> None:
        if self._words is not None:
            if self._slot is not None and self._pid == os.getpid():
                self._words[self._slot] = 0
            self._words.release()
        if self._map is not None:
            self._map.close()
        self._words = self._map = self._slot = None


class Bell:
    """The named pipe of a process, and what rang since it last listened."""

    def __init__(self, path: str, reads: int, writes: int) -> None:
        self._path = path
        self._reads, self._writes = reads, writes
        """The writing end keeps the pipe from ending with the last ring."""
        found = os.fstat(reads)
        self._identity = found.st_dev, found.st_ino
        self._poll = select.poll()
        self._poll.register(reads, select.POLLIN)
        _bells.add(self)

    def wait(self, seconds: float) -> bytes:
        """What rang, or nothing within so many seconds."""
        if not self._poll.poll(max(0.0, seconds) * 1_000):
            return b""
        try:
            return os.read(self._reads, 4096)
        except BlockingIOError:
            return b""

    def interrupt(self) -> None:
        """Let `wait` return."""
        with suppress(OSError):
            os.write(self._writes, LOOK)

    def is_reachable(self) -> bool:
        """Whether the path still leads to this pipe."""
        try:
            found = os.stat(self._path)  # noqa: PTH116 - in a loop, and twice as fast
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == self._identity

    def close(self) -> None:
        if self._reads < 0:
            return
        if self.is_reachable():
            with suppress(OSError):
                os.unlink(self._path)  # noqa: PTH108 - as above
        self.leave()

    def leave(self) -> None:
        """In the child of a fork: with these ends open, the pipe would seem to have a reader."""
        if self._reads >= 0:
            os.close(self._reads)
            os.close(self._writes)
        self._reads = self._writes = -1


def _hang(path: str, store: Path) -> Bell | None:
    """A bell at this path, with the rights of the store, or None if another process has one there."""
    try:
        os.mkfifo(path, 0o600)
    except FileExistsError:
        if not _is_stale(path):
            return None
        try:
            os.unlink(path)  # noqa: PTH108 - as above
            os.mkfifo(path, 0o600)
        except OSError:  # another user's, in a folder where only they may remove it
            return None
    reads = os.open(path, os.O_RDONLY | _FLAGS)
    try:
        found = os.fstat(reads)
        if not stat.S_ISFIFO(found.st_mode) or found.st_uid != os.geteuid():
            raise OSError(errno.EPERM, "the pipe was replaced", path)
        os.fchmod(reads, store.stat().st_mode & 0o666)
        return Bell(path, reads, os.open(path, os.O_WRONLY | _FLAGS))
    except BaseException:
        os.close(reads)
        raise


def _is_stale(path: str) -> bool:
    """Whether this is a pipe that no process reads: its own one has died."""
    try:
        if not stat.S_ISFIFO(os.lstat(path).st_mode):
            return False
        os.close(os.open(path, os.O_WRONLY | _FLAGS))
    except OSError as error:
        return error.errno == errno.ENXIO
    return False


def _leave_all() -> None:
    for bell in tuple(_bells):
        bell.leave()


if hasattr(os, "register_at_fork"):  # not on Windows, where nothing forks
    os.register_at_fork(after_in_child=_leave_all)
