"""How processes learn whether other processes are alive.

A store with a server knows a process by a connection that it keeps: while the connection is open, the
process lives, and it need not say so again and again. The process is then known under the name of its
session. Processes without a session report themselves in time, or are seen in the list of processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from commandbus.store.op import Op

WORKERS = "commandbus.workers"
"""The topic that is woken when this process gets or loses its session."""
LEASES = "commandbus.leases"
"""The topic that is woken when other processes may hold leases."""
WORKER_REQUESTS = "commandbus.worker_requests"
"""The topic that is woken when operators asked something of a worker."""
CANCELLATIONS = "commandbus.cancellations"
"""The topic that is woken when a running command is to stop."""
QUIET_SECONDS = 600.0
"""A process whose session proves that it hears announcements looks no more often without a reason."""


class ForeignLeases(msgspec.Struct, frozen=True):
    """What a worker sees of other workers' leases."""

    ends_in: float | None = None
    """Seconds until the first of them ends, 0 or less when it has; None when there is none."""
    lost: tuple[str, ...] = ()
    """The workers with leases whose session has ended."""


class SessionStore(Protocol):
    @property
    def session(self) -> str:
        """The name of this process's session; empty while it has none. With one, this process also
        hears what others announce."""
        ...

    def ended_sessions(self, sessions: Sequence[str]) -> Op[set[str]]:
        """Those of them that have ended, or that the server does not know (any more)."""
        ...

    def foreign_leases(self, worker: str) -> Op[ForeignLeases]:
        """What other workers than this one hold, in all domains."""
        ...


def quiet(store: SessionStore, seconds: float) -> float:
    """How long to rest until the next look at something that is announced when it changes."""
    return max(seconds, QUIET_SECONDS) if store.session else seconds


class Sessionless:
    """A store without a server: no process has a session."""

    session = ""

    def ended_sessions(self, sessions: Sequence[str]) -> Op[set[str]]:
        yield from ()
        return set()
