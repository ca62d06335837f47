"""Workers as the fleet sees them."""

from __future__ import annotations

from datetime import datetime

import msgspec

from commandbus.domain.process_identity import ProcessIdentity


class WorkerInfo(msgspec.Struct, frozen=True):
    """A worker or process router that reported itself lately."""

    name: str
    host: str
    pid: int
    runtime: str
    domains: tuple[str, ...]
    command_types: tuple[tuple[str, str], ...]
    """(domain, command type) of its handlers; none for a router."""
    concurrency: int
    started_at: datetime
    seen_at: datetime
    version: str
    tags: tuple[str, ...] = ()
    processes: tuple[str, ...] = ()
    """The process types that a router drives on; its domains are the queues of their replies."""
    children: int = 0
    """Its processes for handlers with isolation="process"."""
    child_restarts: int = 0
    child_kills: dict[str, int] = {}
    """By cause: timeout, memory, cancel, stop, lease."""
    session: str = ""
    """By which a server knows that its process lives; empty while there is none."""
    process: ProcessIdentity | None = None
    """Its process, as other processes of the machine see it."""


class WorkerRestart(msgspec.Struct, frozen=True):
    """A restart of a worker, because its watchdog found it CRITICAL."""

    worker: str
    host: str
    pid: int
    at: datetime
    reason: str


class Reason(msgspec.Struct, frozen=True):
    """One reason why a command is not running (any more, or yet)."""

    code: str
    text: str


class Why(msgspec.Struct, frozen=True):
    """The answer to "why is this not running": in words, and as data."""

    command_id: str
    domain: str
    status: str
    summary: str
    reasons: tuple[Reason, ...]

    def __str__(self) -> str:
        return self.summary
