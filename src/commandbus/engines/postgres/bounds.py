"""Where claims may begin: lower bounds on the key of the queue, one per priority.

Claimed rows stay in the index until vacuum may remove them, which an open snapshot of any
session prevents. A claim that began at the domain's first key would walk them all, again and again.
So each claim begins after the last key it took, priority by priority, and searches other priorities
from their beginning.

A bound is a guess: sends commit out of order, and due work, retries and rescued commands return with
old keys, often put there by other processes. Therefore bounds are forgotten after FORGET_SECONDS, when
a claim finds nothing, and when this process itself returns work. Claims without bounds are timed, and
are made more rarely where they are slow: they may take a twentieth of the time. But no bounds are kept
for longer than PAUSE_MAX_SECONDS: that is how long they can hide a command. A worker that is woken by
new work starts at the last known bounds, and searches the whole index a moment later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from commandbus.engines.postgres.templates import BIGINT, INTEGER, Columns, Values

FORGET_SECONDS = 0.03
"""The longest delay until a claim sees returned work, where claims without bounds are cheap."""
PAUSE_MAX_SECONDS = 1.0
"""The longest where they are slow, by dead rows or because the server stood still."""
WALK_SHARE = 20
WALK_NOISE_SECONDS = 0.001
"""Differences below this are noise."""
WALKS = 3
"""The fastest of the last three claims without bounds counts: dead rows make each of them slow, a busy
machine only some."""
PRIORITIES_MAX = 8
CAREFUL_SECONDS = 5.0
"""How long claims with bounds also search for suspects after one was seen."""

_LOWEST, _HIGHEST = -(2**31), 2**31 - 1
_FIRST, _LAST = 0, 2**63 - 1


Range = tuple[tuple[int, int], tuple[int, int]]
"""A half-open range of keys: the first key, and the key after the last."""


RANGES = Columns("ranges", from_priority=INTEGER, from_seq=BIGINT, to_priority=INTEGER, to_seq=BIGINT)
"""Ranges of (priority, seq): the first key and the one after the last."""


def only(priority: int) -> Values:
    """Everything of one priority."""
    return _columns([((priority, _FIRST), (priority + 1, _FIRST))])


def at(priority: int, seq: int) -> Values:
    """One row."""
    return _columns([((priority, seq), (priority, seq + 1))])


class Bounds:
    """The bounds of all partitions in this process: domains, and what in them requires tags. A race
    between threads costs one walk, not a row."""

    def __init__(self) -> None:
        self._known: dict[str, dict[int, int]] = {}
        self._fresh_until: dict[str, float] = {}
        self._usual: dict[str, float] = {}
        """Seconds that a claim with bounds takes, on average."""
        self._walks: dict[str, deque[float]] = {}
        """Seconds that the last claims without bounds took longer than usual."""
        self._walk_from: dict[str, float] = {}
        """When the next claim without bounds may be made."""
        self._ended: dict[str, dict[int, int]] = {}
        self._careful_until: dict[str, float] = {}
        """Until when suspects, whose workers died, may wait in a domain, also above its bounds."""
        self.rescued_to: frozenset[str] = frozenset()
        """Domains to which a rescue returned commands a moment ago."""

    def ranges(self, partition: str, now: float) -> Values | None:
        """The ranges to search, or None for the whole index."""
        known = self.after(partition, now)
        return _columns(_rest(known)) if known else None

    def ranges_after(self, partition: str, now: float, aged: Sequence[tuple[int, int]]) -> Values:
        """The ranges to search, preceded by aged commands: of each of these priorities, up to a
        sequence. No row is in two of the ranges."""
        known = dict(self.after(partition, now) or {})
        first = [((p, known.get(p, _FIRST)), (p, seq)) for p, seq in aged if known.get(p, 0) < seq]
        return _columns(first + _rest(known | {p: seq for (p, _), (_, seq) in first}))

    def after(self, partition: str, now: float) -> dict[int, int] | None:
        """The bounds by priority, or None where none are known or fresh."""
        known = self._known.get(partition)
        return known if known and now < self._fresh_until.get(partition, 0.0) else None

    def looked(self, partition: str, now: float, seconds: float, *, everywhere: bool) -> None:
        """Record how long a claim took, without bounds (`everywhere`) or with them."""
        if not everywhere:
            self._usual[partition] = 0.9 * self._usual.get(partition, seconds) + 0.1 * seconds
            return
        walks = self._walks.setdefault(partition, deque(maxlen=WALKS))
        walks.append(seconds - self._usual.get(partition, 0.0))
        self._known[partition] = {}
        self._walk_from[partition] = now + self._pause(partition)
        self._fresh_until[partition] = max(self._walk_from[partition], now + FORGET_SECONDS)

    def _pause(self, partition: str) -> float:
        """Seconds without a walk for each one, so that walks take a share of the time."""
        walks = self._walks.get(partition, ())
        walk = min(walks) if len(walks) == WALKS else 0.0
        return min(WALK_SHARE * max(0.0, walk - WALK_NOISE_SECONDS), PAUSE_MAX_SECONDS)

    def took(self, partition: str, keys: Iterable[tuple[int, int]]) -> None:
        """Move the bounds behind these claimed keys, which are in order."""
        known = dict(self._known.get(partition, ()))
        for priority, seq in dict(keys).items():  # the last one of each priority
            known[priority] = seq + 1
        self._known[partition] = known if len(known) <= PRIORITIES_MAX else {}
        self._ended.pop(partition, None)  # what comes back may begin below those

    def lower(self, partition: str, priority: int, seq: int) -> None:
        """A command with this key returned to the queue: begin there again."""
        for bounds in (self._known, self._ended):
            known = bounds.get(partition)
            if known and known.get(priority, 0) > seq:
                bounds[partition] = known | {priority: seq}

    def emptied(self, partition: str) -> None:
        """A claim found nothing: the next one searches the whole index."""
        if known := self._known.pop(partition, None):
            self._ended[partition] = known

    def resume(self, partition: str, now: float) -> None:
        """There is new work: use the bounds from before the partition was empty. The time without work
        does not count for the share of walks: each burst would begin with one."""
        if known := self._ended.pop(partition, None):
            self._known[partition] = known
            pause = max(self._pause(partition), FORGET_SECONDS)
            self._fresh_until[partition] = max(self._fresh_until.get(partition, 0.0), now + pause)

    def returned(self, partition: str) -> None:
        """Commands with old keys may have returned: search the whole index as soon as that is due."""
        self._ended.pop(partition, None)
        if partition in self._fresh_until:
            self._fresh_until[partition] = self._walk_from.get(partition, 0.0)

    def forget(self, domain: str) -> None:
        """A command with an old key returned to a domain, or to one of its partitions: the next claim
        searches the whole index, also after one that is under way and began at the bounds."""
        for known in (self._known, self._ended, self._fresh_until):
            for partition in [one for one in list(known) if f"{one}#".startswith(f"{domain}#")]:
                known.pop(partition, None)

    def rescued(self, domains: Iterable[str], now: float) -> None:
        """This process has returned commands whose workers died."""
        self.rescued_to |= frozenset(domains)
        self.beware(domains, now)

    def rescued_elsewhere(self, swept: Iterable[str], domains: Iterable[str], now: float) -> None:
        """Of the domains that were swept, these got such commands from any process a moment ago."""
        for domain in domains:
            self.forget(domain)
        self.rescued_to = (self.rescued_to - frozenset(swept)) | frozenset(domains)
        self.beware(domains, now)

    def beware(self, domains: Iterable[str], now: float) -> None:
        """Suspects wait in these domains: for CAREFUL_SECONDS, claims with bounds include them."""
        for domain in domains:
            self._careful_until[domain] = now + CAREFUL_SECONDS

    def is_careful(self, domain: str, now: float) -> bool:
        return now < self._careful_until.get(domain, 0.0)


def _rest(known: Mapping[int, int]) -> list[Range]:
    """All keys except those below the bound of their priority."""
    keys = [(_LOWEST, _FIRST)]
    for priority in sorted(known):
        keys += [(priority, _FIRST), (priority, known[priority]), (priority + 1, _FIRST)]
    keys.append((_HIGHEST, _LAST))
    # The pairs are: below the priority; what it has after the bound; and so on, to the end.
    starts = [keys[0], *(key for i in range(len(known)) for key in keys[2 + 3 * i : 4 + 3 * i])]
    ends = [key for i in range(len(known)) for key in (keys[1 + 3 * i], keys[3 + 3 * i])]
    return list(zip(starts, [*ends, keys[-1]], strict=True))


def _columns(ranges: Sequence[Range]) -> Values:
    return RANGES(
        from_priority=[priority for (priority, _), _ in ranges],
        from_seq=[seq for (_, seq), _ in ranges],
        to_priority=[priority for _, (priority, _) in ranges],
        to_seq=[seq for _, (_, seq) in ranges],
    )


EVERYTHING = _columns([((_LOWEST, _FIRST), (_HIGHEST, _LAST))])
