"""Searching and pruning: the parts that all engines share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple
from uuid import UUID

from commandbus.store.records import Pruned

NEVER = 2**63 - 1
"""The moment at which an outcome ended that is not to be pruned yet: a process may still ask for it."""


def escaped_like(text: str) -> str:
    """Text for LIKE with a backslash as its escape character, meaning itself."""
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


def matches_error(wanted: str, code: str | None, exception: str | None) -> bool:
    """Whether an error's code, its exception's full name or the name's last part is the one wanted."""
    return wanted in (code, exception) or (exception or "").endswith("." + wanted)


def value_at(data: Any, path: str) -> str | None:
    """The value at a path of keys as text, as SQL would give it; None where there is none."""
    for key in path.split("."):
        if not isinstance(data, dict) or key not in data:
            return None
        data = data[key]
    match data:
        case None | dict() | list():
            return None
        case bool():
            return "true" if data else "false"
        case _:
            return str(data)


Noun = Literal["command", "process"]
"""What the store keeps by ids of their own, besides documents."""


class LookedUp(NamedTuple):
    """Ids that have certain digits, and the last id looked at; None when there are no more."""

    found: list[UUID]
    next: UUID | None


class Prunable(NamedTuple):
    """An outcome that a pruning pass looks at."""

    seq: int
    status: str
    finished_at: int
    created_at: int
    subject: str | None
    """Domain and id, where the trail has entries of operators."""

    def is_due(self, cutoffs: Mapping[str, int]) -> bool:
        return self.finished_at < cutoffs.get(self.status, 0)


def pruned(seen: Sequence[Prunable], cutoffs: Mapping[str, int], limit: int) -> Pruned:
    """The report on outcomes in order of sequence. What was created after the last cutoff cannot have
    ended before it, nor can anything behind it."""
    gone = [one for one in seen if one.is_due(cutoffs)]
    linked = [one.subject for one in gone if one.subject is not None]
    if len(seen) < limit or seen[-1].created_at >= max(cutoffs.values()):
        return Pruned(len(gone), None, linked)
    return Pruned(len(gone), seen[-1].seq, linked)
