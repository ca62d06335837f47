"""The list of processes that the operating system keeps: which of them live."""

from __future__ import annotations

import os
import socket
from functools import lru_cache
from pathlib import Path

import msgspec

from commandbus.domain.process_identity import ProcessIdentity

PROC = Path("/proc")


def is_seen_alive(process: ProcessIdentity) -> bool | None:
    """Whether this very process is in the list of processes; None where another list would have it."""
    if not process.is_listed_with(this_process()):
        return None
    state, started = state_of(process.pid)
    if state == "X" and not (PROC / "1").exists():
        return None  # processes of other users are hidden
    return started == process.started and state not in "ZX"


def is_seen_stopped(process: ProcessIdentity) -> bool:
    """Whether this very process is in the list of processes, stopped by a signal or a debugger."""
    if not process.is_listed_with(this_process()):
        return False
    state, started = state_of(process.pid)
    return started == process.started and state in "Tt"


def this_process() -> ProcessIdentity:
    return _identity(os.getpid())


def child_process(pid: int) -> ProcessIdentity:
    """A child of this process whose exit status has not been taken: its id is not another's yet."""
    return msgspec.structs.replace(this_process(), pid=pid, started=state_of(pid)[1])


@lru_cache(maxsize=4)
def _identity(pid: int) -> ProcessIdentity:
    return ProcessIdentity(pid, state_of(pid)[1], _boot(), _namespace(), socket.gethostname())


def own_memory() -> int:
    """Bytes of memory that this process holds; 0 where there is no such list."""
    try:
        return int((PROC / "self/statm").read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


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
