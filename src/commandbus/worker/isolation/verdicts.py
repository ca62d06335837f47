"""When the call of a child process is over, and what its end means for the command."""

from __future__ import annotations

import signal
from enum import StrEnum
from math import inf

import msgspec

from commandbus.domain.failure import Origin
from commandbus.errors import TransientCommandError

KILL_GRACE = 0.25
"""Seconds between the exception at the timeout and the kill, when no soft_timeout is declared."""
_MEGABYTE = 1024**2


class End(StrEnum):
    """Why the worker ended a call."""

    TIMEOUT = "timeout"
    CANCELED = "cancel"
    STOPPED = "stop"
    LEASE_GONE = "lease"


class ChildEnded(Exception):  # noqa: N818 - a signal between the pool of children and the execution
    """The worker ended the call, or the handler gave way to its end."""

    def __init__(self, end: End, origin: Origin | None = None, ran: float | None = None) -> None:
        super().__init__(f"The worker ended the handler in its child process: {end}.")
        self.end = end
        self.origin = origin
        """Where the handler was, if it was asked first."""
        self.ran = ran
        """Seconds that the handler had, without the start of its child."""


class Encoded(msgspec.Struct, frozen=True):
    """The result of a handler in a child, as JSON text."""

    text: str | None


class Watch:
    """The clock of one call: an exception in the handler first, then the kill. Times are those of the
    monotonic clock."""

    __slots__ = ("_began", "_kill_at", "_warn_at")

    def __init__(self, timeout: float | None, soft_timeout: float | None, now: float) -> None:
        self._began = now
        hard = inf if timeout is None else now + timeout
        self._warn_at = hard if soft_timeout is None else min(hard, now + soft_timeout)
        self._kill_at = hard if self._warn_at < hard else hard + KILL_GRACE

    def ran(self, now: float) -> float:
        return now - self._began

    def wait(self, now: float) -> float | None:
        """Seconds until something is due; None for ever."""
        due = min(self._warn_at, self._kill_at)
        return None if due == inf else max(0.0, due - now)

    def left(self, now: float) -> float | None:
        """Seconds until the kill; None for ever."""
        return None if self._kill_at == inf else max(0.0, self._kill_at - now)

    def overdue(self, now: float) -> str | None:
        """What to do now, once: "warn", "kill" or nothing."""
        if now >= self._kill_at:
            return "kill"
        if now >= self._warn_at:
            self._warn_at = inf
            return "warn"
        return None


class Death(msgspec.Struct, frozen=True):
    """How a child process ended."""

    status: int | None
    """Its exit code; negative for a signal, None when something else has taken its status."""
    peak: int | None = None
    """The most memory that it had, in bytes."""
    out_of_memory: bool = False
    """Whether the kernel killed it for its cgroup's limit."""


def died(death: Death, memory: int | None) -> TransientCommandError:
    """The error of a command whose child ended by itself."""
    if death.out_of_memory and memory is not None:
        return over_memory(memory, death.peak)
    peak = "" if death.peak is None else f" It had {death.peak / _MEGABYTE:.0f} MB at its peak"
    peak += f", of memory={memory // _MEGABYTE} MB." if peak and memory else "." if peak else ""
    status = death.status
    if status is None:
        return TransientCommandError("CHILD_LOST", f"The child process of the handler is gone.{peak}")
    if status >= 0:
        return TransientCommandError(
            "CHILD_EXITED",
            f"The child process of the handler exited with code {status} before the handler returned.",
            {"exit_code": status},
        )
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    hint = " The kernel kills so when memory runs out." if name == "SIGKILL" else ""
    return TransientCommandError(
        "CHILD_KILLED",
        f"The child process of the handler was ended by {name} ({-status}).{peak}{hint}",
        {"signal": -status, "name": name},
    )


def over_memory(memory: int, peak: int | None = None) -> TransientCommandError:
    """The error of a handler that needed more than its memory."""
    return TransientCommandError(
        "MEMORY_LIMIT",
        f"The handler needed more than memory={memory // _MEGABYTE} MB; raise it, or split the "
        "command into smaller ones.",
        {"memory": memory, **({} if peak is None else {"peak": peak})},
    )
