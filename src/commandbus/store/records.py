"""The values that cross the store port, the same for every engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

import msgspec

from commandbus.domain import payload
from commandbus.domain.audit import AuditEvent
from commandbus.domain.failure import Failure
from commandbus.domain.ids import as_id
from commandbus.domain.lifecycle import CommandStatus
from commandbus.domain.names import as_name, as_text
from commandbus.domain.outcome import Outcome
from commandbus.store.columns import Column, among, columns_of
from commandbus.store.suspects import SuspectLimit


class NewCommand(msgspec.Struct, frozen=True, gc=False):
    """A checked and encoded command on its way into the store. `data`, `tags` and `headers` are JSON
    text; `delay` is in microseconds of the store's clock, absolute times in microseconds. Its optional
    columns are the list from which engines and readers make theirs (see store/columns.py)."""

    domain: str
    command_type: str
    command_id: UUID
    data: str
    correlation_id: UUID
    priority: int
    delay: int = 0
    due_at: int | None = None
    causation_id: Annotated[UUID | None, Column("uuid")] = None
    max_attempts: Annotated[int | None, Column("smallint")] = None
    expires_at: Annotated[int | None, Column("bigint", "moment")] = None
    tags: Annotated[str | None, Column("text", "list")] = None
    headers: Annotated[str | None, Column("text", "object")] = None
    requires: Annotated[str | None, Column("text", "words", erased=False)] = None
    """Tags that a worker must have, sorted and joined by commas."""
    reply_to: Annotated[
        str | None,
        Column("text", check=as_name, erased=False, meaning="The domain that gets the reply."),
    ] = None
    unique_key: Annotated[
        str | None,
        Column("text", check=as_text, meaning="At most one live command of the domain has this key."),
    ] = None
    batch_id: Annotated[UUID | None, Column("uuid", check=as_id)] = None
    group_key: Annotated[
        str | None,
        Column("text", check=as_text, meaning="Commands with one key run one at a time, in order."),
    ] = None


class Capacity(msgspec.Struct, frozen=True):
    """How many commands of a domain may wait; `None` means any number."""

    pending_max: int | None = None


class Inserted(msgspec.Struct, frozen=True, gc=False):
    """The command that stands after a send: the new one, or the one that holds the unique key."""

    command_id: UUID
    duplicate: bool
    pending: int | None = None
    """How many were waiting in its domain after the send, where a capacity made it be counted."""


def with_pending(
    results: list[Inserted], commands: Sequence[NewCommand], pending: Mapping[str, int]
) -> list[Inserted]:
    """The results of an insert with the depths that were counted for it, by domain."""
    if not pending:
        return results
    return [
        Inserted(result.command_id, result.duplicate, pending.get(command.domain))
        for result, command in zip(results, commands, strict=True)
    ]


class ClaimRequest(msgspec.Struct, frozen=True):
    """`sweep` asks to promote due work and to take back expired leases before claiming; `idle` says
    that nothing was found the last time and no wake-up has come since, so a cheap check may do;
    `skip_sweep` that ready work was announced, so it may be taken before the sweep, and instead of
    it."""

    domains: tuple[str, ...]
    limit: int
    worker: str
    lease_seconds: float
    sweep: bool = True
    tags: tuple[str, ...] = ()
    """What the worker has; it may take what requires some of them, and what requires nothing."""
    ageing: int | None = None
    """So many microseconds of waiting count as one step of priority; None means that they do not."""
    idle: bool = False
    skip_sweep: bool = False
    lease_per_command: bool = False
    """Each command under a lease of its own where transactions that end commands would wait for each
    other to change the one they share."""
    followers: int = 0
    """So many members of groups may come along in all, each behind one of its group that was claimed
    (see `Claimed.chain`); divided evenly among these groups."""
    chain: int = 0
    """Of one group, so many at most."""
    suspects: SuspectLimit | None = None
    """Which commands whose workers died may be taken; None means all."""
    priority: int | None = None
    """Only commands of this priority; None means any, the most urgent first."""

    def wanted(self, claimed: Sequence[Claimed]) -> int:
        """How many more may be claimed, after these; those that came along do not count."""
        return self.limit + followers(claimed) - len(claimed)

    def spare(self, claimed: Sequence[Claimed]) -> int:
        """How many more may come along, after these."""
        return self.followers - followers(claimed)

    def suspects_beside(self, claimed: Sequence[Claimed]) -> SuspectLimit | None:
        """Which commands whose workers died may be taken, after these."""
        if self.suspects is None:
            return None
        return self.suspects.beside([one.crashes for one in claimed if one.crashes])


class Claimed(msgspec.Struct, frozen=True, gc=False):
    """A command under lease, still encoded. Times are microseconds of the store's clock. The optional
    columns that a claim returns come after `chain`, in the order that they have in `NewCommand`."""

    seq: int
    lease_id: int
    domain: str
    command_type: str
    command_id: UUID
    data: str
    correlation_id: UUID
    priority: int
    created_at: int
    attempt: int
    crashes: int
    releases: int
    age: int = 0
    """Microseconds since it was first due."""
    keyed: bool = False
    """Whether it may hold a unique key or a permit. Others may wait for these, so it is not delayed
    without need."""
    chain: int = 0
    """Members of a group that were claimed together name the first of them, itself included; they
    are to be run one after another, in the order of the reply. 0 stands for one by itself."""
    causation_id: UUID | None = None
    max_attempts: int | None = None
    tags: str | None = None
    headers: str | None = None
    reply_to: str | None = None
    batch_id: UUID | None = None
    cancel: CancelRequest | None = None
    """A request to cancel it that stood before this claim: its handler is not to begin."""

    @property
    def follows(self) -> bool:
        """Whether it came along behind another of its group."""
        return self.chain not in (0, self.seq)


OPTIONAL = columns_of(NewCommand)
"""The optional columns of a command, in the order in which `NewCommand` has them."""
CLAIMED = among(OPTIONAL, Claimed)
"""Those that a claim returns, in the order in which `Claimed` has them."""


def followers(claimed: Sequence[Claimed]) -> int:
    """How many came along behind others of their groups."""
    return len([one for one in claimed if one.chain and one.chain != one.seq])


class ClaimReply(msgspec.Struct, frozen=True):
    """An empty `claimed` means that nothing is eligible. `next_due_in` is then the time in seconds
    until something may be: a due time, or the end of another worker's lease. Beside commands it is the
    time until more is due, if a sweep has found that."""

    claimed: list[Claimed]
    next_due_in: float | None = None
    rescued: int = 0
    """Commands taken back from expired leases by this claim."""
    stuck: tuple[str, ...] | None = None
    """Expired leases that cannot be taken back, in words; None if this claim did not look for any."""
    hears: bool = False
    """Of an empty one: all that may become eligible before is announced to this process, whose session
    proves that it hears announcements."""


class ParkedGroup(msgspec.Struct, frozen=True):
    """Parked commands that failed alike; `error` and `command_id` are those of the newest."""

    domain: str
    command_type: str
    count: int
    oldest: int
    newest: int
    command_id: UUID
    error: Failure | None


Place = tuple[UUID, str]
"""The id of a command and its domain."""


class Ended(msgspec.Struct, frozen=True):
    """How a command ended, as far as its reply says it. `result` is JSON text."""

    status: CommandStatus
    result: str | None
    error: Failure | None
    reason: str | None


class Settlement(msgspec.Struct, frozen=True, gc=False):
    """The outcome of a run, and the lease that proves the right to record it."""

    seq: int
    lease_id: int
    attempt: int
    outcome: Outcome
    ran: int = 0
    """Microseconds between the start and the end of the handler."""
    sends: tuple[NewCommand, ...] = ()
    """Commands that follow from it, such as its reply: sent if, and only if, this is recorded."""
    batch_id: UUID | None = None
    """The batch of the command, whose counts change with it."""
    recorded: bool = False
    """It is in the store already, written in the handler's own transaction."""
    claimed: Claimed | None = None
    """What ran, for those who count it; a command that was never begun has none."""


class SettleReport(msgspec.Struct, frozen=True):
    lost: tuple[int, ...] = ()
    """Sequences that were refused, because their lease is gone: nothing was written for them."""
    batches: tuple[UUID, ...] = ()
    """Batches whose counts changed: one of them may be complete now."""


class CancelRequest(msgspec.Struct, frozen=True):
    """A request to cancel a command that runs."""

    reason: str
    actor: str | None = None
    terminate: bool = False
    """End a handler in a process of its own hard, instead of asking it."""
    given_up: bool = False
    """The process that sent it undoes it: it must not begin again, whatever an operator decides."""
    awaited: bool = False
    """The process waits for the run that goes on, which is not interrupted."""


class CommandFilter(msgspec.Struct, frozen=True):
    """All given conditions hold; `before` is the sequence after which the next page begins."""

    domain: str | None = None
    command_type: str | None = None
    status: CommandStatus | None = None
    tag: str | None = None
    correlation_id: UUID | None = None
    batch_id: UUID | None = None
    created_after: int | None = None
    created_before: int | None = None
    error: str | None = None
    """The code, or the exception's name, with which the command ended or is parked."""
    data: tuple[tuple[str, str], ...] = ()
    """(path, text): the payload has this value there; paths are keys with dots between."""
    headers: tuple[tuple[str, str], ...] = ()
    """The same for the headers."""
    before: int | None = None
    lowest: int | None = None
    """The lowest sequence to look at, so that a rare condition does not read a whole table."""
    limit: int = 100


class AuditFilter(msgspec.Struct, frozen=True):
    """All given conditions hold; `before` and `lowest` bound the ids that are looked at."""

    domain: str | None = None
    kind: str | None = None
    actor: str | None = None
    before: int | None = None
    span: int = 50_000
    """How many of the newest ids are looked at."""
    limit: int = 100


class AuditEntry(msgspec.Struct, frozen=True):
    """A kept event, with the id by which events are ordered."""

    id: int
    command_type: str
    event: AuditEvent


class Run(msgspec.Struct, frozen=True):
    """When a command was due (or sent back by an operator), began and ended, in microseconds;
    `started_at` is None for one that never ran."""

    domain: str
    status: CommandStatus
    attempts: int
    due_at: int
    started_at: int | None
    finished_at: int


class Overdue(msgspec.Struct, frozen=True):
    """A command without an operator's decision since it was parked, in microseconds."""

    domain: str
    command_id: UUID
    command_type: str
    parked_at: int
    error_code: str | None


class Pruned(msgspec.Struct, frozen=True):
    """One step of a pruning pass: what was looked at up to `last`, and how many are gone."""

    gone: int
    last: int | None
    """The sequence after which the next step begins; None at the end of the pass."""
    linked: list[str] = []
    """Those gone whose trail had entries of operators, each as its domain and id."""


class QueueStats(msgspec.Struct, frozen=True):
    """A domain at one moment."""

    domain: str
    ready: int
    scheduled: int
    running: int
    parked: int
    completed: int
    failed: int
    canceled: int
    oldest_ready_age: float | None
    """Seconds that the first ready command has been waiting; the figure to alert on."""
    paused: bool
    paused_reason: str | None = None
    paused_at: datetime | None = None
    held: int = 0
    """How many of the ready ones wait for their group, a limit, or to be let through to the queue."""
    operator_actions: dict[str, int] = {}
    """How often operators decided about a parked command, by what they did: retry, cancel, complete."""

    @property
    def depth(self) -> int:
        return self.ready + self.scheduled


def operator_actions(tally: Mapping[str, int]) -> dict[str, int]:
    """What operators did, out of a tally in which it is counted beside the statuses."""
    kinds = ("retry", "cancel", "complete")
    return {kind: tally.get(f"OPERATOR_{kind.upper()}", 0) for kind in kinds}


class WaitingEdit(msgspec.Struct, frozen=True):
    """What changes of a waiting command; microseconds. At most one of the two times is given."""

    priority: int | None = None
    due_at: int | None = None
    delay: int | None = None

    def moment(self, present: int, now: int) -> int:
        """When it is due after the edit; now, if that has passed."""
        if self.delay is not None:
            return now + self.delay
        return max(now, present if self.due_at is None else self.due_at)

    @property
    def moves(self) -> bool:
        """Whether it changes the due time."""
        return self.delay is not None or self.due_at is not None


class OperatorAction(msgspec.Struct, frozen=True):
    """What an operator does to a parked command; exactly one of the three."""

    kind: str
    """retry, cancel or complete"""
    actor: str | None = None
    reason: str | None = None
    data: str | None = None
    """retry: the edited payload as JSON text, or None to keep the original."""
    result: str | None = None

    def details(self, original: str) -> dict[str, Any]:
        """What the audit keeps of it; an edited payload keeps the original beside it."""
        kept: dict[str, Any] = {"actor": self.actor}
        if self.reason is not None:
            kept["reason"] = self.reason
        if self.data is not None:
            kept["original_data"] = payload.read(original)
            kept["edited_data"] = payload.decode(self.data)
        if self.result is not None:
            kept["result"] = payload.decode(self.result)
        return kept
