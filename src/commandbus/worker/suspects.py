"""Commands whose workers died: what runs beside them, so that a killer takes few others with it.

When a process dies, each command that it held counts a crash, because nobody can tell which of them
killed it. After one crash a command still runs among others, but no more of its kind than there are
slots, and nothing is claimed ahead. On its last chance before it is parked it runs alone: if it is
the killer it dies alone, and if it is innocent nobody else can harm it.

Alone has its limits, or one command would idle a whole worker: who waits too long for long handlers
to end goes back, for another worker may be free; who runs for long no longer keeps others out; and
who was given back too often runs among others in the end.
"""

from __future__ import annotations

from math import inf

from commandbus.domain.outcome import CRASHES_MAX
from commandbus.store.records import Claimed

WAIT_SECONDS = 1.0
"""How long a suspect waits for what runs to end; nothing is claimed meanwhile."""
ALONE_SECONDS = 5.0
"""How long one that runs keeps everything else out."""
RELEASES_MAX = 10
"""Given back more often, by whomever, it is not given back for this any more."""
SPREAD_SECONDS = 0.1
SPREAD_MAX = 2.0
"""Those that go back together return one after the other, and not to the head of the queue at once,
where they would be claimed together again before everything else."""


class Suspects:
    def __init__(self) -> None:
        self.waiting: Claimed | None = None
        """Claimed, and waits to run alone."""
        self.around = False
        """The last claim had commands that saw a crash: nothing is claimed ahead."""
        self.near = False
        """It had one on its last chance: the next claim takes one command at a time."""
        self._until = inf
        self._alone = False
        self._crowded = False
        """One waited in vain: until everything has ended, the next need not try."""

    @property
    def keep_others_out(self) -> bool:
        return self.waiting is not None or self._alone

    @property
    def deadline(self) -> float:
        """When waiting, or being alone, has lasted long enough."""
        return self._until if self.keep_others_out else inf

    def sort(
        self, claimed: list[Claimed], concurrency: int, now: float
    ) -> tuple[list[Claimed], list[Claimed]]:
        """Which of those that were just claimed may start at once, and which go back. One may stay
        to wait."""
        self.around = self.near = False
        if not any(one.crashes for one in claimed):
            return claimed, []
        self.around = True
        start: list[Claimed] = []
        back: list[Claimed] = []
        places = concurrency
        for one in claimed:
            if not one.crashes or one.releases >= RELEASES_MAX:
                start.append(one)
            elif one.crashes < CRASHES_MAX - 1:
                places -= 1
                (start if places >= 0 else back).append(one)
            else:
                self.near = True
                if self.keep_others_out or self._crowded:
                    back.append(one)
                else:
                    self.waiting, self._until = one, now + WAIT_SECONDS
        return start, back

    def may_start(self, now: float) -> Claimed | None:
        """Nothing else is held: the one that waits starts."""
        one, self.waiting = self.waiting, None
        if one is not None:
            self._alone, self._until = True, now + ALONE_SECONDS
        return one

    def overdue(self, now: float) -> Claimed | None:
        """Time passes; whom to give back because it waited in vain."""
        if now < self.deadline:
            return None
        self._alone = False
        self._crowded = self.waiting is not None
        return self.give_up()

    def give_up(self) -> Claimed | None:
        one, self.waiting = self.waiting, None
        return one

    def nothing_runs(self) -> None:
        self._alone = self._crowded = False


def spread(position: int) -> float:
    """How long the n-th of those that go back stays away."""
    return min(SPREAD_MAX, SPREAD_SECONDS * (position + 1))
