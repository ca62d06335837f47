"""The storage port: what every engine does, and what it promises.

All methods return ops. An op runs in one transaction: all of it happens or nothing. Time is the
store's clock; durations cross the port as seconds or microseconds, never as a client's moments.

Every command is in exactly one place: waiting (ready or scheduled), under one lease, or at an outcome.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol
from uuid import UUID

from commandbus.domain.adopted_messages import QueueMapping
from commandbus.domain.audit import AuditEvent, AuditEventType
from commandbus.domain.command import CommandRecord
from commandbus.domain.ids import IdPart
from commandbus.store.batching import BatchStore
from commandbus.store.capabilities import Capabilities
from commandbus.store.deaths import HeldCommand, Witness
from commandbus.store.documents import DocumentStore
from commandbus.store.limiting import LimitStore
from commandbus.store.op import Op
from commandbus.store.processes import ProcessStore, RecordedStore
from commandbus.store.records import (
    AuditEntry,
    AuditFilter,
    Capacity,
    ClaimReply,
    ClaimRequest,
    CommandFilter,
    Ended,
    Inserted,
    NewCommand,
    OperatorAction,
    Overdue,
    ParkedGroup,
    Place,
    Pruned,
    QueueStats,
    Run,
    Settlement,
    SettleReport,
    WaitingEdit,
)
from commandbus.store.searching import LookedUp, Noun
from commandbus.store.sessions import SessionStore


class CommandStore(Protocol):
    """The way of a command: in, claimed, settled."""

    def insert(self, commands: Sequence[NewCommand], capacity: Capacity) -> Op[list[Inserted]]:
        """Add commands, all or none, in order of sequence; wake those who wait for their domains.

        Raises DuplicateCommandError when an id is taken in its domain or given twice here, and
        QueueFull when a domain would exceed its capacity. A unique key that a live command holds
        adds nothing and reports that command instead.
        """
        ...

    def claim(self, request: ClaimRequest) -> Op[ClaimReply]:
        """Take up to `limit` commands under one new lease, atomically across processes.

        A command is eligible when it is due and not expired, its domain is not paused, it passed its
        gates (limits, group), and the worker has all tags that it requires. Order within a domain:
        priority, then sequence; several domains take turns. Attempts are counted here. Expired commands
        end CANCELED with reason EXPIRED instead of being returned. An empty reply means that nothing
        was eligible. With `sweep`, due work is promoted and expired leases are taken back first.

        With `followers`, members of a group that wait behind the one that may run are claimed with it;
        they follow the others in the reply, in their order. None are where a limit or a tag decides,
        too, and none from the first one on that has crashes. Until the last of such a chain has left
        its lease, no other command passes the gate of the group.
        """
        ...

    def settle(self, batch: Sequence[Settlement]) -> Op[SettleReport]:
        """Record the outcomes of runs, each valid only while its lease is.

        A settlement whose lease has expired, was taken back or never held the command changes
        nothing and is reported lost; one that repeats what was recorded under the same lease is
        accepted silently, so a settle whose commit is unknown can be repeated. A success is lost
        where the same lease recorded another outcome.
        """
        ...

    def renew(self, lease_ids: Sequence[int], seconds: float) -> Op[list[int]]:
        """Prolong leases to `seconds` from now; returns those that are gone."""
        ...

    def held_by(self, worker: str) -> Op[list[HeldCommand]]:
        """Everything under leases of one worker, which is known to be dead. The leases are locked and
        valid for the rest of the transaction, also those that have ended and were not taken back."""
        ...

    def consult(self, witness: Witness) -> None:
        """From now on, claims of this process ask the witness about the worker of each lease that has
        ended. What that worker had not begun counts no crash."""
        ...

    def report_progress(self, seq: int, lease_id: int, percent: float, message: str) -> Op[bool]:
        """Keep how far a running command is; False when its lease is gone."""
        ...

    def cancel(self, domain: str, command_id: UUID, reason: str, actor: str | None) -> Op[None]:
        """End a waiting command as CANCELED. Raises CommandNotFoundError, or InvalidOperationError
        when it runs or has ended."""
        ...

    def edit_waiting(self, domain: str, command_id: UUID, edit: WaitingEdit) -> Op[None]:
        """Give a waiting command another priority or due time. It keeps its attempts, its unique key
        and its batch, and goes back to the gates of its limits and its group, where its place may
        be another. Raises CommandNotFoundError, or InvalidOperationError when it does not wait."""
        ...

    def revoke(self, domain: str, command_id: UUID, reason: str) -> Op[None]:
        """Call off a command that waits or is parked, for the process that sent it. Raises
        CommandNotFoundError, or InvalidOperationError when it runs or has ended."""
        ...

    def announce(self, topic: str) -> Op[None]:
        """Wake the subscribers of a topic, in all processes that hear of commits; others learn of it
        when they look."""
        ...

    def resolve(self, domain: str, command_id: UUID, action: OperatorAction) -> Op[None]:
        """Carry out an operator's decision on a parked command. Raises CommandNotFoundError, or
        InvalidOperationError when it is not parked (any more)."""
        ...

    def note(
        self,
        domain: str,
        command_id: UUID,
        kind: AuditEventType,
        details: Mapping[str, Any],
        *,
        parked: bool = False,
    ) -> Op[bool]:
        """Add to a command's trail; with `parked`, only while it is. False when there is no such
        command."""
        ...


class ReadStore(Protocol):
    """Reads for people; none of them changes anything or takes a lock that workers feel."""

    def find(self, command_id: UUID, domain: str | None) -> Op[list[CommandRecord]]:
        """The command with this id, one per domain that has it, oldest first."""
        ...

    def endings(self, commands: Sequence[Place]) -> Op[dict[Place, Ended]]:
        """How commands ended, by id and domain; those that have not, or are parked, are left out."""
        ...

    def look_up(self, noun: Noun, wanted: IdPart, below: UUID, scan: int) -> Op[LookedUp]:
        """Ids of commands or processes with these digits, in descending order, along the index: no
        more than `scan` ids that are `below` or equal are looked at."""
        ...

    def query(self, wanted: CommandFilter) -> Op[list[CommandRecord]]:
        """Commands newest first, at most `limit`."""
        ...

    def count_parked(self, domain: str | None, command_type: str | None) -> Op[int]: ...

    def group_parked(self, domain: str | None, command_type: str | None) -> Op[list[ParkedGroup]]:
        """All parked commands, counted by domain, type, error code, exception and place."""
        ...

    def overdue(self, seconds: float, limit: int) -> Op[list[Overdue]]:
        """Commands that have been parked for longer and were not escalated since; oldest sequence
        first."""
        ...

    def audit_trail(self, command_id: UUID, domain: str | None) -> Op[list[AuditEvent]]:
        """Everything that happened to a command, in order."""
        ...

    def stats(self, domain: str, cap: int | None = None) -> Op[QueueStats]:
        """A domain at one moment; waiting commands are counted no further than `cap`."""
        ...

    def last_sequence(self) -> Op[int]:
        """The highest sequence that was given out; 0 when there is none."""
        ...

    def search_audit(self, wanted: AuditFilter) -> Op[list[AuditEntry]]:
        """What happened to commands besides the ordinary, newest first, at most `limit`."""
        ...

    def ledger_mark(self) -> Op[int | None]:
        """The number of the last link over what operators did, as the store itself counts them; None
        where a writer of the links could change that number, too."""
        ...

    def recent_runs(self, limit: int) -> Op[list[Run]]:
        """How the newest commands that ended fared, by sequence."""
        ...

    def count_ahead(self, domain: str, priority: int, seq: int, limit: int) -> Op[int]:
        """How many ready commands of the domain come before this one, counted no further than the
        limit."""
        ...

    def domains(self) -> Op[list[str]]:
        """Every domain that was ever sent to or paused, by name."""
        ...


class CheckStore(Protocol):
    def check(self) -> Op[None]:
        """Whether the store can be written and has the right schema; run as a write. Raises
        StoreUnavailable or SchemaOutdated."""
        ...


class QueueStore(Protocol):
    """Whole domains."""

    def set_paused(self, domain: str, paused: bool, reason: str | None, actor: str | None) -> Op[bool]:
        """Persisted; a paused domain accepts sends and gives out nothing. False when it was so before,
        for the same reason."""
        ...

    def purge(self, domain: str | None) -> Op[int]:
        """Forget everything about a domain, or all of them: for tests. Returns how many commands."""
        ...


class PruneStore(Protocol):
    def prune(
        self, cutoffs: Mapping[str, int], after: int, limit: int, *, preview: bool = False
    ) -> Op[Pruned]:
        """Forget ended commands of these statuses that ended before the status' moment; looks at no
        more than `limit` outcomes, in order of sequence, beginning after one. Names those
        whose trail had entries of operators. A preview forgets nothing."""
        ...


class EraseStore(Protocol):
    def erase(self, seqs: Sequence[int]) -> Op[list[int]]:
        """Replace what commands carried by a marker, wherever it is kept, as store/erasing.py says.
        Only of those that have ended: returns their sequences."""
        ...


class AdoptingStore(Protocol):
    """What a store with the capability `adopted_queues` does beside; the others need not have it."""

    def adopt_queue(self, domain: str, queue: str, mapping: QueueMapping, priority: int) -> Op[None]:
        """Bind a queue of another program to a domain: its messages become commands there. Raises
        InvalidArgumentError when there is no such queue, or another domain has it."""
        ...


class Store(
    PruneStore,
    EraseStore,
    CommandStore,
    ReadStore,
    QueueStore,
    DocumentStore,
    BatchStore,
    ProcessStore,
    RecordedStore,
    LimitStore,
    SessionStore,
    CheckStore,
    Protocol,
):
    capabilities: Capabilities
