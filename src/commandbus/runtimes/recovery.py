"""What a supervisor does about a worker process that has ended: why it ended, and what it held."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Mapping
from pathlib import Path

from commandbus.operations.deaths import recover
from commandbus.runtimes.threads.bus import SyncCommandBus
from commandbus.services.crash_recovery import log_recovery
from commandbus.worker.recorder import OFF, folder_for
from commandbus.worker.recordings import Recordings

logger = logging.getLogger("commandbus.supervisor")

__all__ = ["Recordings", "cause_of", "memory_kills", "recordings_of", "recover_dead"]
CGROUPS = Path("/sys/fs/cgroup")


def cause_of(pid: int, code: int, killed_for_memory: bool = False) -> str:
    """The end of a process in words; a negative code is a signal, as subprocess says it."""
    who = f"Its worker process {pid}"
    if killed_for_memory and code == -signal.SIGKILL:
        return f"{who} was killed by SIGKILL because memory ran out"
    if code < 0:
        try:
            return f"{who} was killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"{who} was killed by signal {-code}"
    return f"{who} ended with exit code {code}"


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
    engine = SyncCommandBus(url).engine
    if recorder == OFF or os.name != "posix" or not engine.store.capabilities.durable:
        return None
    return Recordings(folder_for(recorder, engine.identity))


def recover_dead(
    url: str,
    recordings: Recordings,
    supervisor: int,
    causes: Mapping[int, str],
    stopping: threading.Event,
) -> None:
    """Give back what dead processes held: `causes` are those that are known, by process. Looks for
    claims that were committed later, until the supervisor stops."""
    found = recordings.dead(of=supervisor, ended=causes)
    try:
        wait: float | None = 0.0
        while found and wait is not None:
            last = stopping.wait(wait)
            with SyncCommandBus(url) as bus:
                for dead in found:
                    death = dead.recording.death(causes.get(dead.recording.header.process.pid))
                    log_recovery(dead, bus.session.run(recover(bus.scope, death)))
                    dead.looks += 1
            wait = None if last else found[0].look_in
    finally:
        for dead in found:
            if dead.looks:
                dead.remove()
            else:
                dead.leave()
