"""The governor: which domains this process sleeps for, as far as senders elsewhere know.

Senders notify only while a worker sleeps (see the function `wake` in the schema), so a worker that goes
idle says so before its last look, and one that stays busy takes it back. Not at once: a worker that
is woken for single commands would say it again and again.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from commandbus.store.sessions import QUIET_SECONDS
from commandbus.store.wakeup import WakeHub

ASLEEP_SECONDS = 3 * QUIET_SECONDS
"""How long a statement of being asleep holds; the listener renews it."""
RENEW_SECONDS = QUIET_SECONDS
BUSY_SECONDS = 0.2
"""Busy for so long without a pause: no longer asleep."""
LISTEN_SECONDS = 2.0
"""How long a worker that falls asleep waits for the connection that listens."""
PATIENCE = (0.02, 0.05, 0.1, 0.25, 0.5)
"""Sends were in flight, so no worker could fall asleep: the pauses between further attempts."""


class Sleepers:
    """What this process has said. Guesses are harmless: too much asleep costs senders notifications;
    too little is excluded. `asleep` is only noted after the server has it, and only the row of a known
    time is taken back: a worker that falls asleep meanwhile has written a later one."""

    def __init__(self) -> None:
        self.listening = threading.Event()
        self.session = ""
        """By which the server knows that this process lives: its name, while it listens directly."""
        self.missed = False
        """A worker wanted to fall asleep and could not, because this process does not listen."""
        self.epoch = 0
        """Counts what may cost this process its rows: each loss of the connection that listens, and
        each new one."""
        self._asleep: dict[str, int] = {}
        """Until when, as the server has it."""
        self._idle: dict[str, dict[str, float]] = {}
        self._busy_since: dict[str, float] = {}
        self._refused: dict[str, int] = {}

    def is_asleep(self, domain: str) -> bool:
        return domain in self._asleep

    def domains(self) -> set[str]:
        return set(self._asleep)

    def asleep(self, domain: str, until: int, epoch: int) -> None:
        """The server knows that this process sleeps for the domain, by a row that was written in this
        epoch. Until this process listens again, others take it for ended and delete its rows, also
        those that it wrote meanwhile."""
        if epoch == self.epoch:
            self._asleep[domain] = until
        self._refused.pop(domain, None)

    def renewed(self, domain: str, until: int) -> None:
        if domain in self._asleep:
            self._asleep[domain] = until

    def refused(self, domain: str) -> float:
        """The server did not let us fall asleep; when to look again."""
        tries = self._refused.get(domain, 0)
        self._refused[domain] = tries + 1
        return PATIENCE[min(tries, len(PATIENCE) - 1)]

    def idle(self, domain: str, worker: str, now: float) -> None:
        """A worker found nothing."""
        self._idle.setdefault(domain, {})[worker] = now
        self._busy_since.pop(domain, None)

    def found(self, domain: str, worker: str, now: float) -> bool:
        """A worker found work; whether it is time to record that no worker of this process sleeps. Not
        while another worker of this process does: only the server can tell it of what others send."""
        idle = self._idle.setdefault(domain, {})
        idle.pop(worker, None)
        since = self._busy_since.setdefault(domain, now)
        if domain not in self._asleep or now - since < BUSY_SECONDS:
            return False
        return all(now - moment > ASLEEP_SECONDS for moment in tuple(idle.values()))

    def awake(self, domain: str) -> int:
        """No longer asleep; returns the time of the row to take back."""
        return self._asleep.pop(domain, 0)

    def forget(self) -> None:
        """The server may have forgotten, too: everything is recorded again."""
        self.epoch += 1
        self._asleep = {}


def look_again(hub: WakeHub, domains: Iterable[str]) -> None:
    """After a row was taken back: a worker that began to wait meanwhile may have relied on it, so it
    looks once more, and falls asleep with a row of its own."""
    for domain in hub.armed_domains().intersection(domains):
        hub.wake(domain, None, "notify", everyone=True)
