"""Programs that an isolated handler has started, and that outlive its worker.

While a worker lives it ends the process group of a child together with the child. When the worker
itself is killed, the kernel ends its children (PR_SET_PDEATHSIG), but not what these have started. All
of them have a mark in their environment, by which the process that recovers a dead worker finds them.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

from commandbus.domain.process_identity import ProcessIdentity
from commandbus.store.process_list import this_process

logger = logging.getLogger("commandbus.worker")

PROC = Path("/proc")
NAME = "COMMANDBUS_CHILD_OF"


def mark() -> dict[str, str]:
    """What the environment of a child of this process has more."""
    return {NAME: _value(this_process())}


def end_orphans(worker: ProcessIdentity) -> int:
    """Kill what children of a dead process have left, and say how many there were. Finds nothing
    where other users' processes, or those of another container, are concerned."""
    if sys.platform != "linux" or not worker.is_listed_with(this_process()):
        return 0
    wanted, ended = f"{NAME}={_value(worker)}".encode(), 0
    for entry in PROC.iterdir():
        if entry.name.isdecimal() and _kill_if_marked(int(entry.name), wanted):
            ended += 1
    if ended:
        logger.warning("%d processes that children of process %d left are killed", ended, worker.pid)
    return ended


def _kill_if_marked(pid: int, wanted: bytes) -> bool:
    try:
        fd = os.pidfd_open(pid)  # its number may be another process's after the look
    except OSError:
        return False
    try:
        with suppress(OSError):
            if wanted in (PROC / str(pid) / "environ").read_bytes().split(b"\0"):
                signal.pidfd_send_signal(fd, signal.SIGKILL)
                return True
        return False
    finally:
        os.close(fd)


def _value(process: ProcessIdentity) -> str:
    return f"{process.pid}:{process.started}"
