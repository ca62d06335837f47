"""Memory and processor time of workers: of those on the machine of the dashboard as its kernel says, of
others as they last reported. An idle worker does not report itself for these figures alone."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import msgspec

from commandbus.domain.presence import WorkerInfo


class Usage(msgspec.Struct, frozen=True):
    memory_bytes: int
    cpu_seconds: float
    """Since the process began."""
    is_reported: bool = False
    """By the worker, when it was last seen; otherwise measured now."""


def usage_of(worker: WorkerInfo) -> Usage | None:
    """None where neither the kernel nor the worker says."""
    measured = _measured(worker)
    if measured is None and worker.memory_bytes:
        return Usage(worker.memory_bytes, worker.cpu_seconds, is_reported=True)
    return measured


def _measured(worker: WorkerInfo) -> Usage | None:
    """None for a worker elsewhere, for one that is gone, and on systems without /proc."""
    identity = worker.process
    if worker.host != socket.gethostname() or identity is None or not identity.started:
        return None
    try:
        # The name of a program is in brackets, and may have any characters.
        fields = Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()
        pages = int(Path(f"/proc/{worker.pid}/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return None
    if int(fields[19]) != identity.started:  # the id belongs to another process by now
        return None
    ticks = int(fields[11]) + int(fields[12])
    return Usage(pages * os.sysconf("SC_PAGE_SIZE"), ticks / os.sysconf("SC_CLK_TCK"))
