"""How many commands this process has sent, by domain and type."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from operator import attrgetter

from commandbus.store.records import Inserted, NewCommand

TYPES_MAX = 500
"""Further types are counted together, so that names from outside cannot grow a process."""
OTHER = "other"

_kind = attrgetter("domain", "command_type")


class SentFigures:
    """Counts what the store has taken, once for each send, however many commands it had."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, str], int] = {}

    def add(self, commands: Sequence[NewCommand], inserted: Sequence[Inserted]) -> None:
        """Those that were there already are not counted."""
        if len(commands) == 1:
            if not inserted[0].duplicate:
                command = commands[0]
                self._add((command.domain, command.command_type), 1)
            return
        added = Counter(map(_kind, commands))
        added.subtract(
            _kind(command) for command, row in zip(commands, inserted, strict=True) if row.duplicate
        )
        for kind, count in added.items():
            self._add(kind, count)

    def _add(self, kind: tuple[str, str], count: int) -> None:
        with self._lock:
            known = self._counts.get(kind)
            if known is None and len(self._counts) >= TYPES_MAX:
                kind = (OTHER, OTHER)
                known = self._counts.get(kind)
            self._counts[kind] = (known or 0) + count

    def counts(self) -> dict[tuple[str, str], int]:
        """By (domain, command type), in order."""
        with self._lock:
            return dict(sorted(self._counts.items()))
