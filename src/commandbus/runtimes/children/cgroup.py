"""A memory limit by the kernel, where this process may make control groups (cgroup v2).

A limit of a process on itself (setrlimit) bounds what it may reserve. A control group bounds what it
and the processes that it starts really use, and the kernel reports when it has killed for that. It
needs a writable folder beside the worker's own group, with the memory controller on: systemd's
Delegate=yes with DelegateSubgroup=, or a container with a writable /sys/fs/cgroup.
"""

from __future__ import annotations

import os
from contextlib import suppress
from functools import cache
from pathlib import Path

MOUNT = Path("/sys/fs/cgroup")


class Cgroup:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._memory: int | None = None

    @classmethod
    def create(cls, pid: int, parent: Path | None = None) -> Cgroup | None:
        """A group with this process in it; None where that is not possible."""
        parent = parent or writable_parent()
        if parent is None:
            return None
        folder = parent / f"commandbus-{os.getpid()}-{pid}"
        try:
            folder.mkdir()
            (folder / "cgroup.procs").write_text(str(pid))
        except OSError:
            with suppress(OSError):
                folder.rmdir()
            return None
        return cls(folder)

    def limit(self, memory: int | None) -> None:
        """Bound what it may use; None for no bound."""
        if memory == self._memory:
            return
        self._memory = memory
        with suppress(OSError):  # the process bounds itself as well
            (self._folder / "memory.max").write_text("max" if memory is None else str(memory))
            (self._folder / "memory.swap.max").write_text("max" if memory is None else "0")

    @property
    def killed(self) -> bool:
        """Whether the kernel has killed in it, because it needed more than its bound."""
        with suppress(OSError, ValueError):
            for line in (self._folder / "memory.events").read_text().splitlines():
                name, _, count = line.partition(" ")
                if name == "oom_kill":
                    return int(count) > 0
        return False

    def remove(self) -> None:
        with suppress(OSError):
            self._folder.rmdir()


@cache
def writable_parent() -> Path | None:
    """The folder below which this process may make groups with a memory limit."""
    with suppress(OSError):
        return find_parent(MOUNT, Path("/proc/self/cgroup").read_text())
    return None


def find_parent(mount: Path, own: str) -> Path | None:
    """`own` is what the kernel says about the groups of this process. Beside its own group, for a group
    that has processes cannot have groups with controllers below it."""
    place = next((line[3:] for line in own.splitlines() if line.startswith("0::")), None)
    if place is None or place == "/":
        return None
    parent = (mount / place.strip("/")).parent
    try:
        controllers = (parent / "cgroup.subtree_control").read_text().split()
    except OSError:
        return None
    usable = "memory" in controllers and os.access(parent / "cgroup.procs", os.W_OK)
    return parent if usable and os.access(parent, os.W_OK) else None
