"""What the engines share about searching and pruning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

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


def pruned(rows: Sequence[Any], cutoffs: Mapping[str, int], limit: int) -> Pruned:
    """The report on outcomes (seq, status, finished_at, created_at, subject) in order of sequence, with
    a subject where the trail has entries of operators. What was created after the last cutoff cannot
    have ended before it, nor can anything behind it."""
    gone = [row for row in rows if row[2] < cutoffs.get(row[1], 0)]
    ended = len(rows) < limit or rows[-1][3] >= max(cutoffs.values())
    linked = [row[4] for row in gone if row[4] is not None]
    return Pruned(len(gone), None if ended else rows[-1][0], linked)
