"""Where claims may begin: lower bounds on the key of the queue, one per priority.

Claimed rows stay in the index until vacuum may remove them, which a snapshot held open by anyone
prevents. A claim that began at the domain's first key would walk them all, again and again. So each
claim begins after the last key it took, priority by priority, and still looks at whole other
priorities.

A bound is a guess: sends commit out of order and retries return with old keys. Therefore bounds are
forgotten after a second, when a claim finds nothing, and when this process itself gives work back. The
look without bounds is timed, and where it is slow it is taken more rarely: it may cost a twentieth.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from commandbus.engines.postgres.arrays import integers

FORGET_SECONDS = 1.0
WALK_SHARE = 20
PRIORITIES_MAX = 8

_LOWEST, _HIGHEST = -(2**31), 2**31 - 1
_FIRST, _LAST = 0, 2**63 - 1


class Ranges(NamedTuple):
    """Ranges of (priority, seq) as four array literals: the first key and the one after the last."""

    from_priorities: str
    from_seqs: str
    to_priorities: str
    to_seqs: str


EVERYTHING = Ranges(integers([_LOWEST]), integers([_FIRST]), integers([_HIGHEST]), integers([_LAST]))


class Bounds:
    """The bounds of all domains in this process. A race between threads costs one walk, not a row."""

    def __init__(self) -> None:
        self._known: dict[str, dict[int, int]] = {}
        self._fresh_until: dict[str, float] = {}

    def ranges(self, domain: str, now: float) -> Ranges | None:
        """Where to look, or None for everywhere."""
        known = self.after(domain, now)
        if not known:
            return None
        keys = [(_LOWEST, _FIRST)]
        for priority in sorted(known):
            keys += [(priority, _FIRST), (priority, known[priority]), (priority + 1, _FIRST)]
        keys.append((_HIGHEST, _LAST))
        # The pairs are: below the priority; what it has after the bound; and so on, to the end.
        starts = [keys[0], *(key for i in range(len(known)) for key in keys[2 + 3 * i : 4 + 3 * i])]
        ends = [key for i in range(len(known)) for key in (keys[1 + 3 * i], keys[3 + 3 * i])]
        ends.append(keys[-1])
        return Ranges(
            integers(priority for priority, _ in starts),
            integers(seq for _, seq in starts),
            integers(priority for priority, _ in ends),
            integers(seq for _, seq in ends),
        )

    def after(self, domain: str, now: float) -> dict[int, int] | None:
        """The bounds themselves, by priority, or None where there are none to go by."""
        known = self._known.get(domain)
        return known if known and now < self._fresh_until.get(domain, 0.0) else None

    def walked(self, domain: str, now: float, seconds: float) -> None:
        """A look without bounds was taken, and took so long."""
        self._known[domain] = {}
        self._fresh_until[domain] = now + max(FORGET_SECONDS, WALK_SHARE * seconds)

    def took(self, domain: str, keys: Iterable[tuple[int, int]]) -> None:
        """These keys, in their order, were taken."""
        known = dict(self._known.get(domain, ()))
        for priority, seq in keys:
            known[priority] = seq + 1
        self._known[domain] = known if len(known) <= PRIORITIES_MAX else {}

    def forget(self, domain: str) -> None:
        self._known.pop(domain, None)
