"""What a worker's commands came to, by type: counts and distributions. Nothing is counted unless
somebody asked for it."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field

from commandbus.domain.outcome import (
    Canceled,
    Outcome,
    Parked,
    Rejected,
    Released,
    RetryLater,
    Succeeded,
)
from commandbus.observe.text import Exposition
from commandbus.store.records import Claimed

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
NOTED_MAX = 256
TYPES_MAX = 500
"""Further types are counted together, so that names from outside cannot grow a worker."""


@dataclass(slots=True)
class _Kind:
    outcomes: Counter[str] = field(default_factory=Counter[str])
    reasons: Counter[str] = field(default_factory=Counter[str])
    ran: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    ran_total: int = 0
    lasted: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    lasted_total: int = 0


class CommandFigures:
    """Called once for every run that ended: it only notes it down, and adds up what was noted now and
    then, for a worker at full speed has no time for more."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._noted: list[tuple[Claimed, Outcome, int, float]] = []
        self._kinds: dict[tuple[str, str], _Kind] = {}

    def __call__(self, claimed: Claimed, outcome: Outcome, ran: int) -> None:
        self._noted.append((claimed, outcome, ran, time.time()))
        if len(self._noted) >= NOTED_MAX:
            with self._lock:
                self._add_up()

    def _add_up(self) -> None:
        # Others may note something meanwhile: exactly what was read is taken away.
        noted = self._noted[:]
        del self._noted[: len(noted)]
        kinds, position = self._kinds, bisect_left
        for claimed, outcome, ran, now in noted:
            kind = kinds.get((claimed.domain, claimed.command_type)) or self._kind(claimed)
            word = WORDS[type(outcome)]
            kind.outcomes[word] += 1
            kind.ran[position(MICROSECONDS, ran)] += 1
            kind.ran_total += ran
            if word in ENDS:
                lasted = max(0, int(now * 1_000_000) - claimed.created_at)
                kind.lasted[position(MICROSECONDS, lasted)] += 1
                kind.lasted_total += lasted
            elif isinstance(outcome, Parked):
                kind.reasons[outcome.reason] += 1

    def _kind(self, claimed: Claimed) -> _Kind:
        known = len(self._kinds) < TYPES_MAX
        key = (claimed.domain, claimed.command_type if known else "other")
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
                *((labels, kind.ran, kind.ran_total / 1_000_000) for labels, kind in kinds),
            )
            exposition.histograms(
                "command_end_to_end_seconds",
                "From the send to the end, waiting and retries included.",
                BOUNDS,
                *((labels, kind.lasted, kind.lasted_total / 1_000_000) for labels, kind in kinds),
            )
