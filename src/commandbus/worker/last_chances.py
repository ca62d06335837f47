"""Commands on their last chance begin alone.

A third crash parks a command, so a process that dies then should have run nothing else: a command that
kills its process is parked by itself, and one that is harmless runs for as short a time as it can. It
waits for what the worker has in its slots, and the worker claims nothing until it has ended.

Neither lasts long, for a slow command must not idle a worker: after HOLD_SECONDS it begins beside the
others, and after ALONE_SECONDS of its run others begin beside it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from commandbus.store.records import Claimed, Settlement
from commandbus.store.suspects import LAST_CHANCE

HOLD_SECONDS = 0.2
ALONE_SECONDS = 0.15


class LastChances:
    def __init__(self) -> None:
        self.apart = False
        """Whether one waits or runs alone, so that nothing else may be claimed."""
        self._waiting: deque[tuple[float, Claimed]] = deque()
        """With the moments by which they begin."""
        self._alone: tuple[int, int] | None = None
        """Sequence and lease of the one that runs alone."""
        self._until = 0.0

    @property
    def waiting(self) -> int:
        """How many wait for others to end."""
        return len(self._waiting)

    def hold(self, ready: list[Claimed], now: float) -> list[Claimed]:
        """Of commands that may begin, those that are not on their last chance; the others wait."""
        held = [(now + HOLD_SECONDS, one) for one in ready if one.crashes >= LAST_CHANCE]
        if not held:
            return ready
        self._waiting += held
        self.apart = True
        return [one for one in ready if one.crashes < LAST_CHANCE]

    def begin(self, now: float, startable: int) -> list[Claimed]:
        """Those that begin now, where the worker holds so many commands that wait for no other."""
        if self._alone is not None and now >= self._until:
            self._alone = None
        begun: list[Claimed] = []
        while self._waiting:
            latest, one = self._waiting[0]
            is_free = self._alone is None and startable == len(self._waiting)
            if now < latest and not is_free:
                break
            if is_free:
                self._alone, self._until = (one.seq, one.lease_id), now + ALONE_SECONDS
            self._waiting.popleft()
            begun.append(one)
        self.apart = bool(self._waiting) or self._alone is not None
        return begun

    def ended(self, settlements: Iterable[Settlement]) -> None:
        """Handlers have ended."""
        if self._alone in [(one.seq, one.lease_id) for one in settlements]:
            self._alone = None

    def deadline(self) -> float:
        """When to look again, while anything is apart."""
        moments = [latest for latest, _ in self._waiting]
        return min(moments if self._alone is None else [*moments, self._until])

    def give_up(self, lease_ids: frozenset[int] | None = None) -> list[Claimed]:
        """Those that wait, under these leases or any: they are not going to begin here."""
        given_up = [one for _, one in self._waiting if lease_ids is None or one.lease_id in lease_ids]
        if given_up:
            self._waiting = deque(entry for entry in self._waiting if entry[1] not in given_up)
        if self._alone is not None and lease_ids is not None and self._alone[1] in lease_ids:
            self._alone = None
        return given_up
