"""Outcomes of a worker's commands by type: counts and distributions. Nothing is counted unless
a person or program requested it."""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import time
from typing import Any

from commandbus.domain.outcome import (
    Canceled,
    Parked,
    Rejected,
    Released,
    RetryLater,
    Succeeded,
)
from commandbus.observe.text import Exposition
from commandbus.store.records import Settlement
from commandbus.store.sent import OTHER, TYPES_MAX

BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)
MICROSECONDS = tuple(int(bound * 1_000_000) for bound in BOUNDS)
WORDS: dict[type, str] = {
    Succeeded: "completed",
    Rejected: "failed",
    Canceled: "canceled",
    Parked: "parked",
    RetryLater: "retried",
    Released: "released",
}
ENDS = frozenset({"completed", "failed", "canceled"})
NOTED_MAX = 1_024


class _Distribution:
    """Microseconds, counted in buckets. Many are added at once: most often all are in one bucket, and
    else, sorted, they need a look per bucket instead of one each."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.total = 0.0

    def add(self, values: list[Any]) -> None:
        least = min(values)
        # A clock that was set back makes no command end before it was sent.
        self.total += sum(values) if least >= 0 else sum(value for value in values if value > 0)
        lowest = bisect_left(MICROSECONDS, least)
        if lowest == bisect_left(MICROSECONDS, max(values)):
            self.counts[lowest] += len(values)
            return
        values.sort()
        below = 0
        for index, bound in enumerate(MICROSECONDS):
            up_to = bisect_right(values, bound)
            self.counts[index] += up_to - below
            below = up_to
        self.counts[-1] += len(values) - below

    @property
    def seconds(self) -> float:
        return self.total / 1_000_000


@dataclass(slots=True)
class _Kind:
    outcomes: Counter[str] = field(default_factory=Counter[str])
    reasons: Counter[str] = field(default_factory=Counter[str])
    ran: _Distribution = field(default_factory=_Distribution)
    waited: _Distribution = field(default_factory=_Distribution)
    lasted: _Distribution = field(default_factory=_Distribution)


class _Noted:
    """What runs of one type that ended in one way took, not yet added up. Plain numbers: commands that
    were kept here would be in the garbage collector's way."""

    __slots__ = ("ends", "kind", "lasted", "ran", "waited", "word")

    def __init__(self, kind: _Kind, word: str) -> None:
        self.kind, self.word, self.ends = kind, word, word in ENDS
        self.ran: list[int] = []
        self.waited: list[int] = []
        self.lasted: list[float] = []

    def add_up(self) -> None:
        # Others may note something meanwhile: exactly what was read is taken away.
        if ran := self.ran[:]:
            del self.ran[: len(ran)]
            self.kind.outcomes[self.word] += len(ran)
            self.kind.ran.add(ran)
        for noted, added in ((self.waited, self.kind.waited), (self.lasted, self.kind.lasted)):
            if taken := noted[:]:
                del noted[: len(taken)]
                added.add(taken)


class CommandFigures:
    """Counts runs that ended. It only notes them down, and adds up what was noted now and then, because
    a worker at full speed has no time for more."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._noted: dict[tuple[str, str, type], _Noted] = {}
        self._kinds: dict[tuple[str, str], _Kind] = {}

    def __call__(self, settlements: Sequence[Settlement]) -> None:
        now = time() * 1_000_000
        domain = command_type = outcome_type = noted = None
        for settlement in settlements:
            claimed, outcome = settlement.claimed, settlement.outcome
            if claimed is None:
                continue
            # Mostly like the one before, which is quicker to see than to look up.
            if (
                noted is None
                or outcome_type is not type(outcome)
                or command_type != claimed.command_type
                or domain != claimed.domain
            ):
                outcome_type, command_type, domain = type(outcome), claimed.command_type, claimed.domain
                noted = self._noted.get((domain, command_type, outcome_type))
                noted = noted or self._begin(domain, command_type, outcome_type)
            noted.ran.append(settlement.ran)
            if claimed.attempt == 1:
                noted.waited.append(claimed.age)
            if noted.ends:
                noted.lasted.append(now - claimed.created_at)
            elif isinstance(outcome, Parked):
                with self._lock:
                    noted.kind.reasons[outcome.reason] += 1
        for noted in self._noted.values():
            if len(noted.ran) >= NOTED_MAX:
                with self._lock:
                    noted.add_up()

    def _begin(self, domain: str, command_type: str, outcome_type: type) -> _Noted:
        with self._lock:
            kind = self._kinds.get((domain, command_type))
            if kind is None:
                kind = self._kind(domain, command_type)
                command_type = command_type if (domain, command_type) in self._kinds else OTHER
            key = (domain, command_type, outcome_type)
            return self._noted.setdefault(key, _Noted(kind, WORDS[outcome_type]))

    def _add_up(self) -> None:
        for noted in self._noted.values():
            noted.add_up()

    def _kind(self, domain: str, command_type: str) -> _Kind:
        known = len(self._kinds) < TYPES_MAX
        key = (domain, command_type if known else OTHER)
        return self._kinds.setdefault(key, _Kind())

    def write(self, exposition: Exposition) -> None:
        with self._lock:
            self._add_up()
            kinds = [
                ({"domain": domain, "type": command_type}, kind)
                for (domain, command_type), kind in sorted(self._kinds.items())
            ]
            final = ("completed", "failed", "canceled", "parked")
            exposition.add(
                "commands_finished_total",
                "counter",
                "Commands that ended or were parked here.",
                *(
                    ({**labels, "outcome": word}, kind.outcomes[word])
                    for labels, kind in kinds
                    for word in final
                ),
            )
            exposition.add(
                "attempts_total",
                "counter",
                "Runs of handlers, by how they ended.",
                *(
                    ({**labels, "outcome": word}, count)
                    for labels, kind in kinds
                    for word, count in kind.outcomes.items()
                ),
            )
            exposition.add(
                "retries_total",
                "counter",
                "Failed attempts that will be repeated.",
                *((labels, kind.outcomes["retried"]) for labels, kind in kinds),
            )
            exposition.add(
                "tsq_moves_total",
                "counter",
                "Commands parked for an operator, by the rule that decided so.",
                *(
                    ({"domain": labels["domain"], "type": labels["type"], "reason": reason}, count)
                    for labels, kind in kinds
                    for reason, count in kind.reasons.items()
                ),
            )
            exposition.histograms(
                "command_duration_seconds",
                "How long handlers ran.",
                BOUNDS,
                *((labels, kind.ran.counts, kind.ran.seconds) for labels, kind in kinds),
            )
            exposition.histograms(
                "command_queue_seconds",
                "From when it was due until it was first claimed.",
                BOUNDS,
                *((labels, kind.waited.counts, kind.waited.seconds) for labels, kind in kinds),
            )
            exposition.histograms(
                "command_end_to_end_seconds",
                "From the send to the end, waiting and retries included.",
                BOUNDS,
                *((labels, kind.lasted.counts, kind.lasted.seconds) for labels, kind in kinds),
            )
