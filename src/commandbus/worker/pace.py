"""How often a worker does things, and for how long it waits, in seconds."""

from __future__ import annotations

from commandbus.store.sessions import QUIET_SECONDS

QUICK_CHECK_FROM = 30.0
"""Workers that poll less often than this use the cheap idle check, and none while the store knows by a
session that they hear announcements."""
SWEEP_INTERVAL = 0.1
"""A busy worker promotes due work and rescues expired leases this often, not with every claim."""
SWEEP_INTERVAL_MIN = 0.02
"""The shortest interval between two promotions, where work becomes due earlier."""
SETTLE_GAP = 0.004
"""While all slots are busy and more work waits for them, settles begin no closer to each other: each
costs a commit, and nothing is held up but the moment at which outcomes are known."""
HAND_IN_SECONDS = 0.004
"""While more is ready, the core learns of outcomes this often, and of many at once: it costs the same
for one as for a hundred."""
HOARD_SECONDS = 1.0
"""Commands that were claimed ahead are given back when nothing has finished for this long: a slow
command came among fast ones, and other workers may be free."""
HELD_UP_SECONDS = 10.0
"""After that nothing is claimed ahead for this long: commands that went back are the next ones to be
claimed, and would go back again."""
MEASURED_MIN = 32
"""Nothing is claimed ahead before this many commands have ended: the fast ones among the first end
before the slow ones, so their average is too low."""
SUSPECTS_HOARD_SECONDS = 0.2
"""The same while suspects are held, which may be among them."""


def fallback(poll_interval: float, *, hears: bool) -> float:
    """Seconds until the fallback claim. `hears`: news is announced to this process as long
    as it lives."""
    is_quiet = hears and poll_interval >= QUICK_CHECK_FROM
    return max(poll_interval, QUIET_SECONDS) if is_quiet else poll_interval


class HandlerTime:
    """How long handlers take, as a running mean."""

    def __init__(self) -> None:
        self.seconds: float | None = None
        self.runs = 0

    def add(self, seconds: float, runs: int) -> None:
        """Add so many runs, which took so many seconds together."""
        self.runs += runs
        average = seconds / runs
        self.seconds = average if self.seconds is None else 0.8 * self.seconds + 0.2 * average

    def known(self) -> float | None:
        """The mean; None before there were enough runs."""
        return self.seconds if self.runs >= MEASURED_MIN else None
