"""A server that has too few connections for all that want one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from math import inf

FOLLOW_AGAIN_SECONDS = 5.0
OVER_SECONDS = 6.0
"""Work that is refused tries again sooner than this: what is not refused for so long has what it needs,
perhaps by a connection that came back, and no new one tells of it."""


class Shortage:
    """Which connections come first when the server refuses to give more.

    Claims, settles, renewals, handlers and senders come first; services and the listener follow when
    those have what they need. A refused connection of the first kind closes an idle one of the process,
    or the listener's, so helpers never keep a connection that the work needs.
    """

    def __init__(
        self, make_room: Callable[[], bool], monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._make_room = make_room
        self._monotonic = monotonic
        self._over = threading.Event()
        """The last attempt to connect for the work succeeded, or is long ago."""
        self._refused_at = inf
        """When the work was refused last, if it ever was."""
        self._follow_at, self._refusals = 0.0, 0

    def served(self) -> None:
        self._over.set()

    def refused(self) -> bool:
        """The work did not get a connection; returns whether another one was closed for it."""
        self._refused_at = self._monotonic()
        self._over.clear()
        return self._make_room()

    def may_follow(self, seconds: float) -> bool:
        """Whether services and the listener may connect, after waiting for it for so long."""
        if self._monotonic() >= self._refused_at + OVER_SECONDS:
            self._over.set()
        return self._over.wait(seconds) and self._monotonic() >= self._follow_at

    def follower_served(self) -> None:
        self._refusals = 0

    def follower_refused(self) -> None:
        """A service or the listener did not get a connection. After the second time in a row none of
        them tries again for a while, so that those of a fleet do not take every connection that gets
        free; the first may have been cut instead of refused."""
        self._refusals += 1
        if self._refusals > 1:
            self._follow_at = self._monotonic() + FOLLOW_AGAIN_SECONDS

    def end(self) -> None:
        """Let what waits go on, because the bus is closed."""
        self._over.set()
