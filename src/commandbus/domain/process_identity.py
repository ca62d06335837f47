"""Which process of which machine: an id alone is soon given to another process."""

from __future__ import annotations

import msgspec

ProcessEntry = tuple[int, int, str, str]


class ProcessIdentity(msgspec.Struct, frozen=True):
    pid: int
    started: int = 0
    """In ticks since the machine was started; 0 where that is unknown."""
    boot: str = ""
    """The kernel's id of the time since the machine was started."""
    namespace: str = ""
    """Process ids count in it: containers have their own."""
    host: str = ""

    @property
    def entry(self) -> ProcessEntry:
        """What distinguishes it from all other processes of the machine: a container that starts again
        gives the same ids again, and the name of the host may change."""
        return self.pid, self.started, self.boot, self.namespace

    def is_near(self, other: ProcessIdentity) -> bool:
        """Whether both run, or ran, on one machine, so that one can tell by a lock that the other is
        dead. Containers have different names on one kernel."""
        return self.host == other.host or (self.boot != "" and self.boot == other.boot)

    def is_listed_with(self, other: ProcessIdentity) -> bool:
        """Whether both are, or were, in one list of processes."""
        return self.started > 0 and (self.boot, self.namespace) == (other.boot, other.namespace)
