"""Commands whose workers died: which of them may run side by side.

When a process dies, each command that it held counts a crash, because nobody can tell which of them
killed it; after the third it is parked. What matters is that a killer and a harmless command do not
die together time and again:

- after one crash, no more of them run together in a process than it has slots, and nothing is
  claimed ahead;
- on its last chance a command runs beside fresh ones only. If it is the killer, its neighbours count
  their first crash; if it is harmless, no other suspect can take it along.

No slot waits for that: who may not run here now goes back for a moment, to this worker or another;
and one on its last chance begins when those others have left. One with a key never goes back: the
others of its group would overtake it.
"""

from __future__ import annotations

from collections.abc import Iterable

from commandbus.domain.outcome import CRASHES_MAX
from commandbus.store.records import Claimed, Settlement

RELEASES_MAX = 10
"""Given back more often, by whomever, it is not given back for this any more."""
SPREAD_SECONDS = 0.1
SPREAD_MAX = 2.0
"""Those that go back together return one after the other, and not to the head of the queue at once,
where they would be claimed together again before everything else."""


class Suspects:
    def __init__(self) -> None:
        self.around = False
        """The last claim had some: nothing is claimed ahead."""
        self.waiting: Claimed | None = None
        """On its last chance, and begins when those who are leaving have left: until then they would
        count a crash, too."""
        self._leaving: set[int] = set()
        self._aboard: dict[int, int] = {}
        """Sequence and lease of those that would count a crash if this process died now."""
        self._last_chance = False
        """The one that is aboard is on its last chance."""

    def sort(self, claimed: list[Claimed], concurrency: int) -> tuple[list[Claimed], list[Claimed]]:
        """Which of those that were just claimed may start, and which go back."""
        self.around = any(one.crashes for one in claimed)
        if not self.around:
            return claimed, []
        start: list[Claimed] = []
        back: list[Claimed] = []
        for one in claimed:
            if not one.crashes or one.keyed or one.releases >= RELEASES_MAX:
                start.append(one)
            elif not self._take(one, concurrency):
                back.append(one)
            elif self._last_chance:
                self.waiting = one
            else:
                start.append(one)
        self._leaving.update(one.seq for one in back)
        return start, back

    def begin(self) -> Claimed | None:
        """The one that waits, if it need not wait any more."""
        return None if self._leaving else self.give_up()

    def give_up(self) -> Claimed | None:
        one, self.waiting = self.waiting, None
        return one

    def _take(self, one: Claimed, concurrency: int) -> bool:
        last_chance = one.crashes >= CRASHES_MAX - 1
        if self._aboard and (last_chance or self._last_chance or len(self._aboard) >= concurrency):
            return False
        self._aboard[one.seq] = one.lease_id
        self._last_chance = last_chance
        return True

    def recorded(self, settled: Iterable[Settlement]) -> None:
        """Their outcomes are durable, or are never going to be."""
        if self._aboard or self._leaving:
            for settlement in settled:
                self._aboard.pop(settlement.seq, None)
                self._leaving.discard(settlement.seq)

    def gone(self, lease_ids: frozenset[int]) -> None:
        """Their leases are somebody else's."""
        if self._aboard:
            kept = {seq: lease for seq, lease in self._aboard.items() if lease not in lease_ids}
            self._aboard = kept
        if self.waiting is not None and self.waiting.lease_id in lease_ids:
            self.waiting = None


def spread(position: int, releases: int) -> float:
    """How long the n-th of those that go back stays away, longer each time."""
    return min(SPREAD_MAX, SPREAD_SECONDS * (position + 1) * (releases + 1))
