"""Rounds through all commands, a piece at a time: some have lost their messages to other programs."""

from __future__ import annotations

INTERVAL_SECONDS = 5.0
PIECE, PIECE_MAX = 1_000, 20_000
"""Commands per interval, and at once: an idle process looks less often, and at more."""

WHOLE_EVERY = 100


class Rounds:
    """Where the next piece begins, and when. A round begins at the first open command of the one
    before, because those below have ended; now and then at the very first, for operators retry old
    ones."""

    def __init__(self) -> None:
        self._last_at: float | None = None
        self._after = 0
        self._first_open: int | None = None
        self._count = 0

    def piece(self, now: float) -> tuple[int, int] | None:
        """After which sequence to look now, and at how many; None when it is too early."""
        passed = INTERVAL_SECONDS if self._last_at is None else now - self._last_at
        if passed < INTERVAL_SECONDS:
            return None
        self._last_at = now
        return self._after, min(PIECE_MAX, int(PIECE * passed / INTERVAL_SECONDS))

    def looked(self, last: int | None, first_open: int | None) -> None:
        """The last command of the piece, if it has any, and the first open one."""
        if self._first_open is None:
            self._first_open = first_open
        if last is not None:
            self._after = last
            return
        self._count += 1
        if self._count % WHOLE_EVERY == 0:
            self._after = 0
        elif self._first_open is not None:
            self._after = self._first_open - 1
        self._first_open = None
