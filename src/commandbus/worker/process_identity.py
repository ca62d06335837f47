"""Which process of which machine: a process id alone is soon given to another process."""

from __future__ import annotations

import os
import socket
from functools import lru_cache
from pathlib import Path

import msgspec

PROC = Path("/proc")


class ProcessIdentity(msgspec.Struct, frozen=True):
    pid: int
    started: int = 0
    """In ticks since the machine was started; 0 where that cannot be told."""
    boot: str = ""
    """The kernel's id of the time since the machine was started."""
    namespace: str = ""
    """Process ids count in it: containers have their own."""
    host: str = ""

    def is_near(self, other: ProcessIdentity) -> bool:
        """Whether both run, or ran, on one machine, so that one can tell by a lock that the other is
        dead. Containers have different names on one kernel."""
        return self.host == other.host or (self.boot != "" and self.boot == other.boot)

    def is_seen_alive(self, here: ProcessIdentity) -> bool:
        """Whether this very process is in the list of processes of that one."""
        if (self.boot, self.namespace) != (here.boot, here.namespace) or not self.started:
            return False
        state, started = state_of(self.pid)
        return started == self.started and state not in "ZX"


def this_process() -> ProcessIdentity:
    return _identity(os.getpid())


@lru_cache(maxsize=4)
def _identity(pid: int) -> ProcessIdentity:
    return ProcessIdentity(pid, state_of(pid)[1], _boot(), _namespace(), socket.gethostname())


def state_of(pid: int) -> tuple[str, int]:
    """The state of a process, and when it started; X, 0 when there is none, or no such list."""
    try:
        fields = (PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
        return fields[0].decode(), int(fields[19])
    except (OSError, ValueError, IndexError):
        return "X", 0


def _boot() -> str:
    try:
        return (PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _namespace() -> str:
    try:
        return str((PROC / "self/ns/pid").readlink())
    except OSError:
        return ""
