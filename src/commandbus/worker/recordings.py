"""Reading flight recorders of dead processes: what they ran, so that it can be given back.

A file counts if it is a plain file of this user in a folder of this user alone, is complete, and its
process is dead: its lock is free, and the list of processes does not have it. The process that acts
on it holds the lock meanwhile, so that others leave the file alone, and removes it afterwards. Acting
twice is harmless, because the store looks at leases.
"""

from __future__ import annotations

import logging
import os
import stat
import time
import zlib
from collections.abc import Callable, Container, Iterator
from contextlib import suppress
from math import isfinite
from pathlib import Path

import msgspec

from commandbus.domain.process_identity import ProcessEntry
from commandbus.store.deaths import NOT_RENEWED, Run, Witness, WorkerDeath
from commandbus.store.outage import Outage
from commandbus.store.process_list import is_seen_alive, is_seen_stopped, this_process
from commandbus.store.session import Engine
from commandbus.worker.isolation.orphans import end_orphans
from commandbus.worker.recorder import (
    ENTRY,
    ENTRY_BYTES,
    EXCUSED_UNTIL,
    FINISHED,
    HEADER_BYTES,
    KILLED_ITSELF,
    MAGIC,
    MOMENT,
    OFF,
    PREFIX,
    RUNNING,
    SUFFIX,
    UNRECORDED,
    Header,
    check_private,
    file_size,
    folder_for,
    lock,
    owned_here,
    recorders_here,
)

logger = logging.getLogger("commandbus.worker")

CAPACITY_MAX = 100_000
PID_END = 1 << 31
UNFINISHED_SECONDS = 60.0
"""A file that did not get its name in so long was left by a process that died."""
SUPERVISOR_SECONDS = 2.0
"""How long the supervisor of a dead process has to act, which knows how the process ended."""


LOOKS_SECONDS = 0.1, 0.3, 2.0, 8.0, 30.0
"""After which times the leases of a dead worker are looked for again: a claim that the server was
carrying out when the process died may be committed later, at most when its statement timeout ends."""
BACK_SECONDS = 10.0
"""In which time after an outage workers renew their leases, or others take them back."""


class DamagedRecorderError(ValueError):
    """A file that is no recorder, or not all of one."""


class Recording(msgspec.Struct, frozen=True):
    """What a recorder says."""

    header: Header
    running: dict[Run, float]
    """With the moments by which they must have ended."""
    finished: frozenset[Run]
    complete: bool
    killed_itself: bool = False
    excused_until: float = 0.0
    """Until then leases end because the store does not answer."""

    def death(self, cause: str | None = None, from_inside: bool | None = None) -> WorkerDeath:
        process = self.header.process
        return WorkerDeath(
            self.header.worker,
            cause or f"Its worker process {process.pid} on {process.host} died",
            frozenset(self.running),
            self.finished,
            self.complete,
            from_inside=self.killed_itself or from_inside,
        )


def read_recording(data: bytes) -> Recording:
    """Raises DamagedRecorderError. An entry that was being written counts as not begun."""
    header = _header(data)
    if len(data) != file_size(header.capacity):
        raise DamagedRecorderError("its length is not what its header says")
    running: dict[Run, float] = {}
    finished: set[Run] = set()
    for place in range(HEADER_BYTES, file_size(header.capacity), ENTRY_BYTES):
        seq, lease_id, check, deadline, state = ENTRY.unpack_from(data, place)
        if check != seq ^ lease_id:
            continue
        if state == RUNNING:
            running[lease_id, seq] = deadline
        elif state == FINISHED:
            finished.add((lease_id, seq))
    complete, killed_itself = not data[UNRECORDED], bool(data[KILLED_ITSELF])
    (excused_until,) = MOMENT.unpack_from(data, EXCUSED_UNTIL)
    return Recording(header, running, frozenset(finished), complete, killed_itself, excused_until)


def _header(data: bytes) -> Header:
    if len(data) < HEADER_BYTES:
        raise DamagedRecorderError("it is too short")
    magic, length, checksum = PREFIX.unpack_from(data)
    encoded = data[PREFIX.size : PREFIX.size + length]
    if magic != MAGIC or length > HEADER_BYTES or zlib.crc32(encoded) != checksum:
        raise DamagedRecorderError("its header is not one of a recorder")
    try:
        header = msgspec.json.decode(encoded, type=Header)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DamagedRecorderError(f"its header cannot be read: {error}") from None
    if not 0 < header.capacity <= CAPACITY_MAX:
        raise DamagedRecorderError("its capacity is not one of a recorder")
    if not 0 < header.process.pid < PID_END or not 0 <= header.supervisor < PID_END:
        raise DamagedRecorderError("its process ids are none")
    return header


class DeadWorker:
    """A recorder whose process is dead, locked so that no other process acts on it.

    It is acted on several times: the server may commit a claim of the dead process after its death was
    noticed."""

    def __init__(self, path: Path, fd: int, recording: Recording) -> None:
        self.recording = recording
        self.looks = 0
        self._path = path
        self._fd = fd
        held_here()[path] = self

    @property
    def look_in(self) -> float | None:
        """In how many seconds to act on it again; None when that is not needed."""
        return LOOKS_SECONDS[self.looks - 1] if self.looks <= len(LOOKS_SECONDS) else None

    def remove(self) -> None:
        """It needs no other look."""
        with suppress(OSError):
            self._path.unlink()
        self.leave()
        with suppress(OSError):  # others are in it
            self._path.parent.rmdir()

    def leave(self) -> None:
        """Let others act on it."""
        held_here().pop(self._path, None)
        os.close(self._fd)


def held_here() -> dict[Path, DeadWorker]:
    """Those that this process has locked. It must not open them again, as its own recorders."""
    return _held.setdefault(os.getpid(), {})


_held: dict[int, dict[Path, DeadWorker]] = {}


class Recordings:
    """The recorders of a store on this machine."""

    def __init__(self, folder: Path, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._folder = folder
        self._monotonic = monotonic
        self._seen: dict[Path, float] = {}

    def dead(self, *, of: int = 0, ended: Container[ProcessEntry] = ()) -> list[DeadWorker]:
        """Those of dead processes, locked, without those that this process acts on already. Children of
        a supervisor that lives are left to it for a moment; it asks with `of`, its own id, and names
        the children whose end it has seen."""
        found: list[DeadWorker] = []
        for path in self._paths():
            try:
                dead = self._look_at(path, of, ended)
            except DamagedRecorderError as error:
                logger.warning("the flight recorder %s is removed: %s", path, error)
                continue
            except OSError as error:
                logger.debug("the flight recorder %s is left alone: %s", path, error)
                continue
            if dead is not None:
                found.append(dead)
        return found

    def has_dead(self) -> bool:
        """Whether a process died a moment ago: its file stays until the last look."""
        if any(path.parent == self._folder for path in held_here()):
            return True
        return any(self._is_of_dead(path) for path in self._paths())

    def _is_of_dead(self, path: Path) -> bool:
        with suppress(OSError, DamagedRecorderError):
            fd = _open(path)
            try:
                return _is_dead(fd, _header(os.pread(fd, HEADER_BYTES, 0)))
            finally:
                os.close(fd)
        return False

    def death_of(self, worker: str) -> WorkerDeath | None:
        """What the recorder of a worker says, if its process is dead. Reads the file only: another
        process may be acting on it."""
        recording, is_dead = self._read(worker)
        return recording.death() if recording is not None and is_dead else None

    def is_beside(self, worker: str) -> bool:
        """Whether the recorder of a worker lies here."""
        return os.path.exists(self._folder / f"{worker}{SUFFIX}")  # noqa: PTH110 - any name will do

    def is_living(self, worker: str) -> bool:
        """Whether the process of a worker is seen alive."""
        recording, _ = self._read(worker)
        return recording is not None and bool(is_seen_alive(recording.header.process))

    def loss_of(self, worker: str) -> WorkerDeath | None:
        """What the recorder of a worker says whose lease has ended, also if its process lives. Such a
        process begins nothing under that lease: it writes down a begin before it looks at the lease. If
        it is not stopped, and the store is not away, what it finished counts a crash, too: its outcome
        may be what cannot be recorded."""
        recording, is_dead = self._read(worker)
        if recording is None or is_dead:
            return None if recording is None else recording.death()
        process = recording.header.process
        if not process.is_near(this_process()):
            return None
        begun, replace = recording.death(NOT_RENEWED), msgspec.structs.replace
        if is_seen_stopped(process) or self._monotonic() < recording.excused_until:
            return replace(begun, excused=True)
        blames = len(begun.running) <= 1
        return replace(
            begun, running=begun.running | begun.finished, finished=frozenset(), from_inside=blames
        )

    def _read(self, worker: str) -> tuple[Recording | None, bool]:
        """And whether its process is dead."""
        path = self._folder / f"{worker}{SUFFIX}"
        if (held := held_here().get(path)) is not None:
            return held.recording, True
        if (own := recorders_here().get(path)) is not None:
            return read_recording(own.content()), False
        if path not in self._paths():
            return None, False
        try:
            fd = _open(path)
            try:
                recording = read_recording(_content(fd))
                return recording, _is_dead(fd, recording.header)
            finally:
                os.close(fd)
        except (OSError, DamagedRecorderError) as error:
            logger.debug("the flight recorder %s says nothing: %s", path, error)
            return None, False

    def has(self, process: ProcessEntry) -> bool:
        """Whether a worker of this process keeps a recorder, or did when it died."""
        return any(True for _ in self._of(process))

    def overdue(self, process: ProcessEntry, now: float) -> float:
        """By how many seconds a command of a living process is over its time; 0 for none."""
        ends = [end for recording in self._of(process) for end in recording.running.values()]
        return max([0.0, *(now - end for end in ends if isfinite(end))])

    def _of(self, process: ProcessEntry) -> Iterator[Recording]:
        for path in self._paths():
            with suppress(OSError, DamagedRecorderError):
                fd = _open(path)
                try:
                    recording = read_recording(_content(fd))
                finally:
                    os.close(fd)
                if recording.header.process.entry == process:
                    yield recording

    def _paths(self) -> Iterator[Path]:
        try:
            check_private(self._folder.parent)
            check_private(self._folder)
            found = sorted(self._folder.iterdir())
        except OSError:  # no worker of this store has a recorder here, or the folder is not ours
            return
        for path in found:
            here = path in owned_here() or path in held_here()
            if path.name.endswith(SUFFIX) and not here:
                yield path

    def _look_at(self, path: Path, asking: int, ended: Container[ProcessEntry]) -> DeadWorker | None:
        fd = _open(path)
        try:
            # Before it is locked, so that the supervisor finds it free.
            if _is_new_and_unfinished(path, fd) or self._is_left_to_others(path, fd, asking, ended):
                return None
            with suppress(BlockingIOError, PermissionError):  # its owner lives, or another acts on it
                lock(fd)
                if os.fstat(fd).st_nlink:
                    dead = self._believe(path, fd)
                    if dead is not None:
                        fd = -1
                    return dead
            return None
        finally:
            if fd >= 0:
                os.close(fd)

    def _believe(self, path: Path, fd: int) -> DeadWorker | None:
        try:
            recording = read_recording(_content(fd))
        except DamagedRecorderError:
            path.unlink()
            raise
        process = recording.header.process
        if not process.is_near(this_process()) or is_seen_alive(process):
            return None
        end_orphans(process)  # before its commands run again
        return DeadWorker(path, fd, recording)

    def _is_left_to_others(
        self, path: Path, fd: int, asking: int, ended: Container[ProcessEntry]
    ) -> bool:
        """Whether its process is seen alive, or has a supervisor that knows how it ended and has had no
        time to act."""
        try:
            header = _header(os.pread(fd, HEADER_BYTES, 0))
        except DamagedRecorderError:
            return False
        if is_seen_alive(header.process):
            self._seen.pop(path, None)
            return True
        supervisor = header.supervisor
        if not supervisor or not _exists(supervisor):
            return False
        if supervisor == asking:  # it does not know yet how this one ended
            return header.process.entry not in ended
        now = self._monotonic()
        return now - self._seen.setdefault(path, now) < SUPERVISOR_SECONDS


def witness_of(recordings: Recordings | None, outage: Outage, lease_seconds: float) -> Witness:
    """What is known of a worker whose lease has ended: what its recorder says. Where no recorder can be
    read, it is excused by an outage that this process knows of, if that was long enough to end a lease:
    each is renewed after a third of its length."""

    def witness(worker: str) -> WorkerDeath | None:
        loss = None if recordings is None else recordings.loss_of(worker)
        if loss is None and outage.lasted(lease_seconds / 3, BACK_SECONDS):
            return WorkerDeath(worker, NOT_RENEWED, complete=False, excused=True)
        return loss

    return witness


def recordings_beside(engine: Engine, setting: str | None) -> Recordings | None:
    """The recorders of the workers of a store; None where they have none."""
    if setting == OFF or os.name != "posix" or not engine.store.capabilities.durable:
        return None
    return Recordings(folder_for(setting, engine.identity))


def _open(path: Path) -> int:
    """Raises OSError for what is not a plain file of this user."""
    fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_nlink > 1:
        os.close(fd)
        raise OSError(f"{path} is not a plain file of this user")
    return fd


def _is_new_and_unfinished(path: Path, fd: int) -> bool:
    """Whether a worker that begins is about to lock this file: a lock of another would refuse it."""
    return path.name.startswith(".") and time.time() - os.fstat(fd).st_mtime < UNFINISHED_SECONDS


def _is_dead(fd: int, header: Header) -> bool:
    """The list of processes says it, or, of a process that is not in the same list, the lock."""
    seen = is_seen_alive(header.process)
    if seen is not None:
        return not seen
    if not header.process.is_near(this_process()):
        return False
    try:
        lock(fd)
    except (BlockingIOError, PermissionError):
        return False
    return True


def _content(fd: int) -> bytes:
    return os.pread(fd, file_size(CAPACITY_MAX) + 1, 0)


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it is another user's, so it exists
        return True
    return True
