"""The flight recorder: which commands a worker has begun, in a file that outlives its process.

The file is mapped into memory. A begin, an end and a recorded outcome are stores to memory, without a
system call; when the process is killed, the kernel keeps what was written. Other processes of the
machine read the file (see `recordings`) and give back what the dead worker held.

Each entry is a command under a lease: running from before its payload is decoded, finished when its
handler has returned. The place of a finished one is used again, the oldest first, so it stays there
until long after the store has its outcome: then no reader asks for it, because the command is not under
that lease any more. The state is written last and checked with a checksum, so that an entry which was
being written when the process died counts as not begun.

While a command runs that the next crash parks, a process that sends SIGKILL to itself writes that down
before: such a death is the doing of a command, and one by SIGKILL from outside is not.

The owner holds a lock on the file, which the kernel releases when the process dies, however it dies.
The file lies in a folder that only its user can enter, one folder per store.
"""

from __future__ import annotations

import hashlib
import logging
import mmap
import os
import signal
import stat
import struct
import sys
import tempfile
import time
import zlib
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Any

import msgspec

from commandbus.domain.process_identity import ProcessIdentity
from commandbus.store.process_list import this_process
from commandbus.store.records import Claimed, Settlement
from commandbus.store.suspects import LAST_CHANCE

try:
    import fcntl
except ImportError:  # Windows: leases are the only net there
    fcntl = None  # type: ignore[assignment]

logger = logging.getLogger("commandbus.worker")

OFF = "off"
SUFFIX = ".recorder"
MAGIC = b"CMDBUSR1"
PREFIX = struct.Struct("<8sII")
"""Magic, length and checksum of the header, which follows as JSON."""
HEADER_BYTES = 1024
UNRECORDED = HEADER_BYTES - 1
"""This byte is not 0 while a command runs for which there was no entry."""
KILLED_ITSELF = HEADER_BYTES - 2
"""This byte is not 0 when the process was about to send SIGKILL to itself."""
EXCUSED_UNTIL = HEADER_BYTES - 16
"""Here is the moment until which leases end because the store does not answer."""
ENTRY = struct.Struct("<qqqdB")
"""Sequence, lease, both combined as a checksum, the moment by which it must have ended, state."""
ENTRY_BYTES = 40
STATE = 32
FREE, RUNNING, FINISHED = 0, 1, 2
_pack = ENTRY.pack_into
CAPACITY = 2_000
MOMENT = struct.Struct("<d")
_DEADLINE_AT = 24


class Header(msgspec.Struct, frozen=True):
    """Whose recorder a file is."""

    worker: str
    process: ProcessIdentity
    capacity: int
    supervisor: int = 0
    """The process that watches this one; 0 for none."""


def file_size(capacity: int) -> int:
    return HEADER_BYTES + capacity * ENTRY_BYTES


def folder_for(setting: str | None, identity: str) -> Path:
    """Where the recorders of a store are. In memory if possible: a mapped file on a full disk could
    not be written."""
    if setting is None:
        shared = Path("/dev/shm")  # noqa: S108 - a private folder in it
        usable = shared.is_dir() and os.access(shared, os.W_OK | os.X_OK)
        base = (shared if usable else Path(tempfile.gettempdir())) / f"commandbus-{os.getuid()}"
    else:
        base = Path(setting).absolute()
    return base / hashlib.sha256(identity.encode()).hexdigest()[:16]


def open_recorder(
    setting: str | None, identity: str, worker: str, supervisor: int = 0
) -> FlightRecorder | None:
    """The recorder of a worker that begins; None where there can be none, which is logged."""
    if setting == OFF or fcntl is None:
        return None
    try:
        folder = folder_for(setting, identity)
        return FlightRecorder(folder, Header(worker, this_process(), CAPACITY, supervisor))
    except (OSError, ValueError) as error:
        logger.warning(
            "worker %s has no flight recorder, so a crash is noticed by the end of its leases: %s",
            worker,
            error,
        )
        return None


class FlightRecorder:
    """The recorder of one worker. Threads may use it at once: each entry has one writer."""

    def __init__(self, folder: Path, header: Header) -> None:
        self.path = folder / f"{header.worker}{SUFFIX}"
        self._fd = _create(self.path, header)
        self._map = mmap.mmap(self._fd, file_size(header.capacity))
        self._free = deque(range(HEADER_BYTES, file_size(header.capacity), ENTRY_BYTES))
        self._places: dict[tuple[int, int], int] = {}
        """Of the commands that run."""
        self._unrecorded: set[tuple[int, int]] = set()
        recorders_here()[self.path] = self

    def began(self, claimed: Claimed) -> None:
        """Its run begins: from now on it may be what kills this process."""
        seq, lease_id = claimed.seq, claimed.lease_id
        if claimed.crashes >= LAST_CHANCE:
            watch_own_kills()
        try:
            place = self._free.popleft()
        except IndexError:
            self._unrecorded.add((seq, lease_id))
            self._map[UNRECORDED] = 1
            return
        _pack(self._map, place, seq, lease_id, seq ^ lease_id, inf, RUNNING)
        self._places[seq, lease_id] = place

    def limited(self, claimed: Claimed, seconds: float) -> None:
        """It must end within so many seconds."""
        place = self._places.get((claimed.seq, claimed.lease_id))
        if place is not None:
            MOMENT.pack_into(self._map, place + _DEADLINE_AT, time.monotonic() + seconds)

    def pauses(self, claimed: Claimed, *, goes_on: bool = False) -> None:
        """It waits for the store, before or after its handler, and is not what kills this process."""
        place = self._places.get((claimed.seq, claimed.lease_id))
        if place is not None:
            self._map[place + STATE] = RUNNING if goes_on else FINISHED

    def ended(self, claimed: Claimed) -> None:
        """Its handler has ended, and its outcome is not recorded yet."""
        place = self._places.pop((claimed.seq, claimed.lease_id), None)
        if place is not None:
            self._map[place + STATE] = FINISHED
            self._free.append(place)

    def settled(self, settlements: Iterable[Settlement]) -> None:
        """The store has their outcomes: a handler that still runs, because the worker did not wait for
        its end, counts no more."""
        if self._places or self._unrecorded:
            for settlement in settlements:
                self._forget((settlement.seq, settlement.lease_id))

    def leases_gone(self, lease_ids: Sequence[int]) -> None:
        """Whatever was held under these leases is not this worker's any more. What runs is on record
        until it ends, since the store may not have taken it back yet; its timeout is over."""
        gone = set(lease_ids)
        for key, place in list(self._places.items()):
            if key[1] in gone:
                MOMENT.pack_into(self._map, place + _DEADLINE_AT, inf)
        for key in [key for key in self._unrecorded if key[1] in gone]:
            self._forget(key)

    def _forget(self, key: tuple[int, int]) -> None:
        place = self._places.pop(key, None)
        if place is not None:
            self._map[place + STATE] = FREE
            self._free.append(place)
        elif self._unrecorded:
            self._unrecorded.discard(key)
            if not self._unrecorded:
                self._map[UNRECORDED] = 0

    def kills_itself(self) -> None:
        """This process is about to send SIGKILL to itself."""
        self._map[KILLED_ITSELF] = 1

    def excused(self, until: float) -> None:
        """Leases that end until then do so because the store does not answer; see `LeaseKeeper`."""
        MOMENT.pack_into(self._map, EXCUSED_UNTIL, until)

    def content(self) -> bytes:
        """The file, as another process would read it now."""
        return self._map[:]

    def close(self) -> None:
        """The worker has ended in order. Threads that were left behind may write to the map for as
        long as they like: no reader is left."""
        if self.path in owned_here():
            recorders_here().pop(self.path, None)
            owned_here().discard(self.path)
            _remove(self.path)
            os.close(self._fd)


def lock(fd: int) -> None:
    """Raises BlockingIOError or PermissionError while another process holds the lock of a file."""
    assert fcntl is not None
    fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def owned_here() -> set[Path]:
    """The recorders of this process. It must not open them again: closing a file gives up all locks
    that the process has on it."""
    return _owned.setdefault(os.getpid(), set())


_owned: dict[int, set[Path]] = {}


def recorders_here() -> dict[Path, FlightRecorder]:
    """Those of this process that have not been closed."""
    return _recorders.setdefault(os.getpid(), {})


_recorders: dict[int, dict[Path, FlightRecorder]] = {}


def watch_own_kills() -> None:
    """From now on the recorders of this process say when it sends SIGKILL to itself. The hook cannot be
    removed and is called for every audit event of the interpreter, so it is added when it is needed."""
    if not _watching:
        _watching.append(True)
        sys.addaudithook(_note_own_kill)


_watching: list[bool] = []
_KILLS = frozenset({"os.kill", "os.killpg", "signal.pthread_kill"})


def _note_own_kill(event: str, arguments: tuple[Any, ...]) -> None:
    if event not in _KILLS or arguments[1] != signal.SIGKILL:
        return
    group = os.getpgrp()
    own = {"os.kill": (os.getpid(), 0, -1, -group), "os.killpg": (group, 0)}
    if (
        event not in own or arguments[0] in own[event]
    ):  # a thread that can be named is one of this process
        for recorder in list(recorders_here().values()):
            recorder.kills_itself()


def _create(path: Path, header: Header) -> int:
    """A locked file in its place. It gets its name when it is complete, so that no reader finds half
    of it, or one that is not locked yet."""
    for left in (2, 1, 0):
        make_private(path.parent)
        unfinished = path.with_name(f".{path.name}")
        owned_here().update((path, unfinished))
        try:
            fd = os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        except FileNotFoundError:  # the last worker that used the folder has just removed it
            if not left:
                raise
            continue
        try:
            lock(fd)
            image = _image(header)
            if os.write(fd, image) < len(image):
                raise OSError(f"there is no space for {path}")
            unfinished.rename(path)
        except BaseException:
            with suppress(OSError):
                unfinished.unlink()
            os.close(fd)
            owned_here().discard(path)
            raise
        return fd
    raise AssertionError("the last try returns or raises")


def _image(header: Header) -> bytes:
    """The file as it begins. All of it is written, so that its pages exist before they are mapped."""
    encoded = msgspec.json.encode(header)
    prefix = PREFIX.pack(MAGIC, len(encoded), zlib.crc32(encoded))
    if len(prefix) + len(encoded) > EXCUSED_UNTIL:
        raise ValueError(f"the name of the host or of the worker is too long: {header.worker!r}")
    return (prefix + encoded).ljust(file_size(header.capacity), b"\0")


def make_private(folder: Path) -> None:
    """Create a folder, and the one above it, for this user alone. Raises PermissionError when one of
    them is something else, or others can enter it."""
    for one in (folder.parent, folder):
        with suppress(FileExistsError):
            one.mkdir(0o700, parents=one is not folder)
        check_private(one)


def check_private(folder: Path) -> None:
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise PermissionError(
            f"{folder} must be a folder of this user alone (mode 0700); remove it, or set recorder= "
            "(COMMANDBUS_RECORDER) to another folder"
        )


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink()
    with suppress(OSError):  # others are in it
        path.parent.rmdir()
