"""Uniqueness: how long a unique key holds, in which states, and what a second send means."""

from __future__ import annotations

import msgspec

from commandbus.domain.lifecycle import PARKED, CommandStatus
from commandbus.domain.moment import Duration, as_seconds
from commandbus.errors import InvalidArgumentError

ALIVE = (CommandStatus.PENDING, CommandStatus.IN_PROGRESS, PARKED)
ANSWERS = ("return", "reject", "replace")


class Unique(msgspec.Struct, frozen=True):
    """More about a `unique_key`.

    `window`: it holds for so many seconds after the send, also when its command has ended before.
    `states`: it holds only while its command is in one of these; by default as long as it lives.
    `on_conflict`: what a send does that finds it held. "return" adds nothing and names the holder;
    "reject" raises UniqueKeyHeld; "replace" cancels a holder that waits and takes its place, which
    together with `delay` is a debounce. A holder that runs is never replaced: it is returned.
    """

    window: Duration | None = None
    states: tuple[CommandStatus | str, ...] = ALIVE
    on_conflict: str = "return"

    def checked(self, unique_key: str | None) -> Unique:
        """The same, with a window in seconds and known states."""
        if unique_key is None:
            raise InvalidArgumentError("unique= says more about a unique_key; give unique_key= too.")
        if self.on_conflict not in ANSWERS:
            raise InvalidArgumentError(
                f"on_conflict must be one of {', '.join(ANSWERS)}, not {self.on_conflict!r}."
            )
        states = (self.states,) if isinstance(self.states, str) else tuple(self.states)
        unknown = [state for state in states if state not in ALIVE]
        if unknown or not states:
            raise InvalidArgumentError(
                f"A key can hold in the states {', '.join(ALIVE)}, not {list(states)!r}; for longer "
                "than its command lives, use window=."
            )
        window = None if self.window is None else as_seconds(self.window, "window", minimum=0.001)
        return Unique(window, tuple(CommandStatus(state) for state in states), self.on_conflict)
