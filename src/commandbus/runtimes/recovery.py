"""Crash recovery by a supervisor: why a worker process ended, and which commands it held."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec

from commandbus.domain.process_identity import ProcessEntry
from commandbus.errors import StoreUnavailable
from commandbus.operations.deaths import recover
from commandbus.runtimes.threads.bus import SyncCommandBus
from commandbus.services.crash_recovery import log_recovery
from commandbus.store.deaths import DeathReport, WorkerDeath
from commandbus.worker.recordings import Recording, Recordings, recordings_beside

logger = logging.getLogger("commandbus.supervisor")

__all__ = [
    "ProcessEnd",
    "Recordings",
    "SharedBus",
    "end_of",
    "memory_kills",
    "recordings_of",
    "recover_dead",
]
CGROUPS = Path("/sys/fs/cgroup")
FROM_OUTSIDE = frozenset({"SIGKILL", "SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT"})
"""Signals that processes are sent to end them; others come from a fault of what they run."""
TRIES = 3
"""A connection that was kept may be broken: the server was restarted meanwhile."""


class ProcessEnd(msgspec.Struct, frozen=True):
    """How a worker process has ended."""

    cause: str
    """In words, see `WorkerDeath`."""
    from_inside: bool
    """Whether what it ran is the reason, as far as its exit code or signal tells: SIGKILL that it sent
    to itself looks like one from outside, and its flight recorder says which it was."""


def end_of(pid: int, code: int, killed_for_memory: bool = False) -> ProcessEnd:
    """A negative code is a signal, as subprocess says it."""
    who = f"Its worker process {pid}"
    if killed_for_memory and code == -signal.SIGKILL:
        return ProcessEnd(f"{who} was killed by SIGKILL because memory ran out", True)
    if code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        return ProcessEnd(f"{who} was killed by {name}", name not in FROM_OUTSIDE)
    return ProcessEnd(f"{who} ended with exit code {code}", True)


def memory_kills() -> int:
    """How many processes of this control group, else of this machine, the kernel has killed because
    memory ran out; 0 where that is unknown."""
    for path in _memory_files():
        try:
            lines = path.read_text().splitlines()
        except OSError:
            continue
        for line in lines:
            name, _, number = line.partition(" ")
            if name == "oom_kill" and number.isdecimal():
                return int(number)
    return 0


def _memory_files() -> list[Path]:
    files = [Path("/proc/vmstat")]
    try:
        groups = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return files
    for line in groups:
        _, controllers, group = line.split(":", 2)
        if not controllers:
            files.insert(0, CGROUPS / group.lstrip("/") / "memory.events")
        elif "memory" in controllers.split(","):
            files.insert(0, CGROUPS / "memory" / group.lstrip("/") / "memory.oom_control")
    return files


def recordings_of(url: str, recorder: str | None) -> Recordings | None:
    """The recorders of the workers of a store; None when they have none."""
    return recordings_beside(SyncCommandBus(url).engine, recorder)


class SharedBus:
    """A bus that is open while any thread uses it: in a series of deaths each recovery finds a
    connection, instead of making one beside workers that keep the machine busy."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._lock = threading.Lock()
        self._users = 0
        self._bus: SyncCommandBus | None = None

    @contextmanager
    def used(self) -> Iterator[SyncCommandBus]:
        """Raises StoreUnavailable."""
        with self._lock:
            if self._bus is None:
                self._bus = SyncCommandBus(self._url).open()
            bus = self._bus
            self._users += 1
        try:
            yield bus
        finally:
            with self._lock:
                self._users -= 1
                if not self._users:
                    self._bus = None
                    bus.close()


def recover_dead(
    shared: SharedBus,
    recordings: Recordings,
    supervisor: int,
    ends: Mapping[ProcessEntry, ProcessEnd],
    stopping: threading.Event,
) -> None:
    """Give back what dead processes held: `ends` are those that are known, by process. Looks for claims
    that were committed later, until the supervisor stops."""
    found = recordings.dead(of=supervisor, ended=ends)
    if not found:
        return
    try:
        with shared.used() as bus:
            wait: float | None = 0.0
            while wait is not None:
                last = stopping.wait(wait)
                for dead in found:
                    log_recovery(dead, _recovered(bus, _death(dead.recording, ends)))
                    dead.looks += 1
                wait = None if last else found[0].look_in
    finally:
        for dead in found:
            if dead.looks:
                dead.remove()
            else:
                dead.leave()


def _death(recording: Recording, ends: Mapping[ProcessEntry, ProcessEnd]) -> WorkerDeath:
    end = ends.get(recording.header.process.entry)
    return recording.death() if end is None else recording.death(end.cause, end.from_inside)


def _recovered(bus: SyncCommandBus, death: WorkerDeath) -> DeathReport:
    for _ in range(TRIES - 1):
        try:
            return bus.session.run(recover(bus.scope, death))
        except StoreUnavailable as error:
            logger.debug("commands of worker %s are not given back yet: %s", death.worker, error)
    return bus.session.run(recover(bus.scope, death))
