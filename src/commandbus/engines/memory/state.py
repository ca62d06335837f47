"""The state of the memory engine: the tables of the SQL engines, as dictionaries."""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heappop
from typing import Any
from uuid import UUID

from commandbus.domain.batch import BatchCounts
from commandbus.domain.command import Progress
from commandbus.domain.limits import Limit
from commandbus.domain.priority import rank
from commandbus.engines.memory.heaps import TwoHeaps
from commandbus.engines.memory.journal import Journal
from commandbus.store.documents import Document
from commandbus.store.processes import ProcessEventRow, ProcessRow
from commandbus.store.records import NewCommand
from commandbus.store.settling import Member, OutcomeRow
from commandbus.store.trail import Kept


@dataclass(slots=True)
class Entry:
    """A command's place in a queue. Taking it out of `Domain.waiting` makes its heap entry dead."""

    seq: int
    attempts: int
    crashes: int
    releases: int
    due_at: int

    def __lt__(self, other: Entry) -> bool:
        """In a heap, a dead entry may be equal to the live one of the same command."""
        return False


@dataclass(slots=True)
class Stored:
    """A command and everything that happened to it."""

    seq: int
    command: NewCommand
    created_at: int
    due_at: int
    data: str
    outcome: OutcomeRow | None = None
    finished_at: int = 0
    lease_id: int | None = None
    audit: list[Kept] = field(default_factory=list)
    progress: Progress | None = None


@dataclass(slots=True)
class Lease:
    domain: str
    worker: str
    claimed_at: int
    until: int
    members: dict[int, Member]


@dataclass(slots=True)
class Pause:
    reason: str | None
    at: int


@dataclass(slots=True)
class Domain:
    heaps: TwoHeaps[Entry] = field(default_factory=TwoHeaps)
    waiting: dict[int, Entry] = field(default_factory=dict)
    tally: dict[str, int] = field(default_factory=dict)
    pause: Pause | None = None
    limits: dict[str, Limit] = field(default_factory=dict)
    held: dict[str, list[tuple[int, int, Entry]]] = field(default_factory=dict)
    """What waits at gates, in order, by gate."""
    permits: dict[str, set[int]] = field(default_factory=dict)
    """Commands that passed a gate and have not ended."""
    passed: dict[int, list[str]] = field(default_factory=dict)
    """The same, by command."""
    touched: dict[str, int] = field(default_factory=dict)
    """When a gate is to be looked at."""
    full_at: dict[str, int] = field(default_factory=dict)
    """When the bucket of a gate is full."""
    partitions: dict[str, list[tuple[int, int, Entry]]] = field(default_factory=dict)
    """Ready work for workers with certain tags."""
    ageing: int | None = None
    """What the order in the heaps takes into account, beside the priority."""

    def item(self, stored: Stored, entry: Entry, *, grouped: bool = False) -> tuple[int, int, Entry]:
        """What a command is in a heap; in that of its group only its priority counts."""
        priority = stored.command.priority
        if self.ageing is not None and not grouped:
            priority = rank(priority, entry.due_at, self.ageing)
        return priority, stored.seq, entry

    def note_all(self, journal: Journal) -> None:
        """Anything here is about to change."""
        if journal.active:
            lists: list[list[Any]] = [
                *self.held.values(),
                *self.partitions.values(),
                *self.passed.values(),
            ]
            journal.contents(self.heaps.ready, self.heaps.scheduled, *lists, *self.permits.values())
            journal.contents(self.waiting, self.limits, self.held, self.permits, self.passed)
            journal.contents(self.touched, self.full_at, self.partitions)
            journal.fields(self.heaps, "ready")
            journal.fields(self, "ageing")

    def drop_canceled(self) -> None:
        """No worker need wake up for a command that was canceled before it was due."""
        scheduled = self.heaps.scheduled
        while scheduled and self.waiting.get(scheduled[0][3].seq) is not scheduled[0][3]:
            heappop(scheduled)


@dataclass(slots=True)
class State:
    commands: dict[int, Stored] = field(default_factory=dict)
    by_id: dict[UUID, dict[str, int]] = field(default_factory=dict)
    domains: dict[str, Domain] = field(default_factory=dict)
    leases: dict[int, Lease] = field(default_factory=dict)
    documents: dict[tuple[str, str], Document] = field(default_factory=dict)
    batches: dict[UUID, BatchCounts] = field(default_factory=dict)
    unique: dict[tuple[str, str], int] = field(default_factory=dict)
    processes: dict[UUID, ProcessRow] = field(default_factory=dict)
    process_events: dict[UUID, list[ProcessEventRow]] = field(default_factory=dict)
    recorded: dict[int, dict[str, str]] = field(default_factory=dict)
    journal: Journal = field(default_factory=Journal)
    last_process: int = 0
    last_seq: int = 0
    last_lease: int = 0

    def domain(self, name: str) -> Domain:
        """A domain to be changed: from now on it exists."""
        found = self.domains.get(name)
        if found is None:
            self.journal.entry(self.domains, name)
            found = self.domains[name] = Domain()
        return found

    def look_at(self, name: str) -> Domain:
        """A domain as it is: looking at one that was never sent to leaves no trace."""
        return self.domains.get(name) or Domain()
