"""The commands that a worker has claimed and not begun, the most urgent first.

What was claimed ahead must not stand before a more urgent command that was claimed later. Priorities
order the commands of one domain; domains take turns as the claims took them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import TypeVar

from commandbus.store.records import Claimed

T = TypeVar("T")

OVERTAKEN_MAX = 100
"""So often a command is overtaken at most. Here it does not become older or expire, and no other
worker can take it."""
_priority: Callable[[Claimed], int] = attrgetter("priority")


class ReadyQueue:
    """One thread adds and withdraws; any thread may take from `waiting`, by single operations."""

    def __init__(self, ageing: int | None = None) -> None:
        """With `ageing`, so many microseconds of waiting count as a step of priority."""
        self.waiting: deque[Claimed] = deque()
        self._urgency = _priority if ageing is None else _aged(ageing)
        self._last = 0
        """The least urgent one that may be waiting."""
        self._overtaken: dict[int, int] = {}
        """How often each that waits was overtaken, by sequence."""

    def add(self, claimed: Sequence[Claimed]) -> None:
        """Behind those that are as urgent, before those that are less so."""
        if not claimed:
            return
        urgencies = [self._urgency(one) for one in claimed]
        last = max(urgencies)
        if not self.waiting:
            self._last = last
            self._overtaken.clear()
            self.waiting.extend(claimed)
            return
        overtakes = min(urgencies) < self._last
        self._last = max(self._last, last)
        if overtakes:
            waiting = drained(self.waiting)
            times = self._overtaken
            self._overtaken = times = {one.seq: times.get(one.seq, 0) + 1 for one in waiting}
            first = [one for one in waiting if times[one.seq] > OVERTAKEN_MAX]
            others = [one for one in waiting if times[one.seq] <= OVERTAKEN_MAX]
            claimed = [*first, *_in_order([*others, *claimed], self._urgency)]
        self.waiting.extend(claimed)

    def withdraw(self, lease_ids: frozenset[int] | None) -> list[Claimed]:
        """Take out those under one of these leases, or all."""
        taken: list[Claimed] = []
        kept: list[Claimed] = []
        for one in drained(self.waiting):
            (taken if lease_ids is None or one.lease_id in lease_ids else kept).append(one)
        self.waiting.extendleft(reversed(kept))
        return taken


def drained(items: deque[T]) -> list[T]:
    """All that is there now, while others may add and take."""
    found: list[T] = []
    with suppress(IndexError):
        while True:
            found.append(items.popleft())
    return found


def _aged(ageing: int) -> Callable[[Claimed], int]:
    def urgency(claimed: Claimed) -> int:
        return claimed.priority - claimed.age // ageing

    return urgency


def _in_order(commands: list[Claimed], urgency: Callable[[Claimed], int]) -> list[Claimed]:
    """Each domain keeps its places in the queue; the most urgent of the domain is in the first one."""
    by_domain: dict[str, deque[Claimed]] = {}
    for one in sorted(commands, key=urgency):
        by_domain.setdefault(one.domain, deque()).append(one)
    return [by_domain[one.domain].popleft() for one in commands]
