"""Workers as the fleet sees them."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

import msgspec

from commandbus.domain.process_identity import ProcessIdentity


class WorkerState(StrEnum):
    """What a worker does about commands that wait."""

    RUNNING = "RUNNING"
    QUIET = "QUIET"
    """It claims nothing, on an operator's request, and can be resumed."""
    STOPPING = "STOPPING"
    """It claims nothing, and ends with what it holds."""


class Asked(msgspec.Struct, frozen=True):
    """Who asked a worker for something, when and why."""

    actor: str
    at: datetime
    reason: str | None = None


class WorkerRequest(msgspec.Struct, frozen=True):
    """What operators asked of a worker, as long as it stands."""

    quiet: Asked | None = None
    stop: Asked | None = None
    concurrency: int | None = None
    """Instead of the configured one."""
    resized: Asked | None = None
    """Who asked for that concurrency."""

    @property
    def state(self) -> WorkerState:
        if self.stop is not None:
            return WorkerState.STOPPING
        return WorkerState.RUNNING if self.quiet is None else WorkerState.QUIET


class WorkerInfo(msgspec.Struct, frozen=True):
    """A worker or process router that reported itself recently."""

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
    isolated: tuple[tuple[str, str], ...] = ()
    """Those of its handlers that run in child processes."""
    children: int = 0
    """Its processes for handlers with isolation="process"."""
    child_restarts: int = 0
    child_kills: dict[str, int] = {}
    """By cause: timeout, memory, cancel, stop, lease."""
    session: str = ""
    """By which a server knows that its process lives; empty while there is none."""
    process: ProcessIdentity | None = None
    """Its process, as other processes of the machine see it."""
    state: WorkerState = WorkerState.RUNNING
    configured_concurrency: int = 0
    """What `concurrency` is without an operator's request; 0 for a router."""
    concurrency_max: int | None = None
    """What its pool of connections allows; None for no limit."""
    memory_bytes: int = 0
    """Of its process when it reported itself; 0 where the system does not say."""
    cpu_seconds: float = 0.0
    """Processor time of its process until it reported itself."""
    requested: WorkerRequest = WorkerRequest()
    """What operators asked of it; it may not have heard of it yet."""

    @property
    def claims(self) -> bool:
        """Whether it takes commands that wait: it is neither quiet nor stopping, nor asked to."""
        return self.state is self.requested.state is WorkerState.RUNNING


class WorkerRestart(msgspec.Struct, frozen=True):
    """A restart of a worker, because its watchdog found it CRITICAL."""

    worker: str
    host: str
    pid: int
    at: datetime
    reason: str


class FleetStart(msgspec.Struct, frozen=True):
    """Workers of one version that were started within a minute, as by a deploy."""

    at: datetime
    version: str
    workers: int
    domains: tuple[str, ...]


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
