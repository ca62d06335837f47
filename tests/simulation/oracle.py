"""What must be true, from the history alone.

The oracle hears what was asked of the store and what it answered, keeps its own books, and compares.
It never looks inside the engine: it reads records, statistics and trails as anyone can. The rules in
it are written down from PROMISES and the port's contract, not from the engine's code.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from commandbus.domain.audit import AuditEvent, AuditEventType
from commandbus.domain.command import CommandRecord
from commandbus.domain.lifecycle import CommandStatus
from commandbus.domain.moment import as_microseconds
from commandbus.domain.outcome import Canceled, Parked, Rejected, Released, RetryLater, Succeeded
from commandbus.store.records import Claimed, ClaimReply, ClaimRequest, QueueStats, Settlement
from commandbus.store.suspects import SuspectLimit

PENDING, RUNNING = CommandStatus.PENDING, CommandStatus.IN_PROGRESS
PARKED = CommandStatus.IN_TROUBLESHOOTING_QUEUE
ENDED = (CommandStatus.COMPLETED, CommandStatus.FAILED, CommandStatus.CANCELED)
CRASHES_ALLOWED = 3
APART, LAST_APART = 300_000, 800_000
"""So long a suspect may be kept apart from one on its last chance; and one on its last chance from
another one."""
GIVEN_BACK_MAX = 3
AGAIN = 1_000_000
"""After the end of the lease of a dead worker, or when a suspect is ready, it begins within this."""


class Violation(AssertionError):
    """A promise is broken."""


@dataclass(slots=True)
class Tracked:
    """One acknowledged command, as the history tells it."""

    number: int
    command_id: UUID
    domain: str
    priority: int
    key: str | None
    group: str | None
    max_attempts: int
    expires_at: int | None
    due_at: int
    status: CommandStatus = PENDING
    attempts: int = 0
    crashes: int = 0
    releases: int = 0
    lease_id: int | None = None
    ended_by: int | None = None
    """The lease under which its outcome was recorded."""
    deliveries: int = 0
    """Since it was sent, or since an operator gave it fresh attempts."""
    refunds: int = 0
    given_back: int = 0
    """Without having begun."""
    received: int = 0
    seq: int | None = None
    """Its number in the store, known since its first claim."""

    @property
    def rank(self) -> tuple[int, int]:
        return self.priority, self.number


@dataclass(slots=True)
class Held:
    """A lease, as the history tells it."""

    until: int
    worker: str
    members: dict[int, Tracked] = field(default_factory=dict)


class Apart:
    """The suspects of one claim: commands whose workers died."""

    def __init__(self, limit: SuspectLimit | None, now: int) -> None:
        assert limit is not None
        self._limit, self._now = limit, now
        self._taken: list[Tracked] = []

    def take(self, command: Tracked) -> None:
        if not command.crashes:
            return
        waited, last = self._now - command.due_at, _is_last(command)
        beside_last = self._limit.last_chance or any(map(_is_last, self._taken))
        beside = not self._limit.alone or bool(self._taken)
        if len(self._taken) >= self._limit.room:
            raise Violation(f"#{command.number} is one suspect too many for its worker")
        if last and beside_last and waited < LAST_APART:
            raise Violation(f"#{command.number} and another on its last chance were given out together")
        if ((last and beside) or beside_last) and waited < APART:
            raise Violation(f"#{command.number} was given out beside a suspect on its last chance")
        self._taken.append(command)

    def may_stay(self, command: Tracked) -> bool:
        """Whether a suspect is left in the queue with a reason."""
        if not command.crashes:
            return False
        beside = not self._limit.alone or bool(self._taken)
        waits = beside and self._now - command.due_at < LAST_APART
        return len(self._taken) >= self._limit.room or waits


def _groups_of(commands: Iterable[Tracked]) -> set[tuple[str, str | None]]:
    return {(command.domain, command.group) for command in commands if command.group is not None}


def _is_last(command: Tracked) -> bool:
    return command.crashes == CRASHES_ALLOWED - 1


class Oracle:
    def __init__(
        self,
        read_record: Callable[[UUID, str], CommandRecord | None],
        read_trail: Callable[[UUID, str], list[AuditEvent]],
        read_stats: Callable[[str], QueueStats],
    ) -> None:
        self._read_record = read_record
        self._read_trail = read_trail
        self._read_stats = read_stats
        self.commands: dict[UUID, Tracked] = {}
        self.leases: dict[int, Held] = {}
        self.lease_ids: set[int] = set()
        self.paused: set[str] = set()
        self.keys: dict[tuple[str, str], Tracked] = {}

    # What happened.

    def sent(self, command: Tracked, answered: UUID, duplicate: bool) -> None:
        holder = self.keys.get((command.domain, command.key)) if command.key else None
        if holder is not None:
            if not duplicate or answered != holder.command_id:
                raise Violation(f"P11: key {command.key} has a second live command")
            return
        if duplicate or answered != command.command_id:
            raise Violation("P3: a send was called a duplicate although its key was free")
        self.commands[command.command_id] = command
        if command.key is not None:
            self.keys[command.domain, command.key] = command
        self.check_record(command)

    def claimed(self, request: ClaimRequest, reply: ClaimReply, now: int) -> None:
        domains, limit, followers = request.domains, request.limit, request.followers
        rescued = self._take_back(now)
        if reply.rescued != rescued:
            raise Violation(f"P5: {rescued} leased commands were lost, {reply.rescued} were rescued")
        rows = sum(not taken.follows for taken in reply.claimed)
        if rows > limit or len(reply.claimed) - rows > followers:
            raise Violation(f"a claim of {limit} and {followers} returned {len(reply.claimed)}")
        expired = self._expire(domains, now, must=rows < limit)
        waiting = [
            command
            for command in self.commands.values()
            if command.status is PENDING
            and command.domain in domains
            and command.domain not in self.paused
            and command.due_at <= now
            and command not in expired
        ]
        until = now + int(request.lease_seconds * 1_000_000)
        apart = Apart(request.suspects, now)
        last: dict[str, tuple[int, int]] = {}
        for taken in reply.claimed:
            command = self.commands.get(taken.command_id)
            if command is None:
                raise Violation(f"{taken.command_id} was claimed but never sent")
            if command.status is not PENDING:
                raise Violation(f"P6: #{command.number} was claimed while {command.status}")
            if command.due_at > now:
                raise Violation(f"P9: #{command.number} came {command.due_at - now} us early")
            if command not in waiting:
                raise Violation(f"#{command.number} was claimed although paused, expired or foreign")
            if taken.follows:
                self._check_follower(command, taken.lease_id, waiting)
            elif self.is_held_back(command):
                raise Violation(f"#{command.number} was claimed while one of its group runs")
            elif command.rank < last.get(command.domain, command.rank):
                raise Violation(f"P10: #{command.number} came after a later one")
            else:
                last[command.domain] = command.rank
            apart.take(command)
            if command.seq not in (None, taken.seq):
                raise Violation(f"#{command.number} changed its sequence")
            command.seq = taken.seq
            self._deliver(command, taken.attempt, taken.crashes, taken.lease_id)
            held = self.leases.get(taken.lease_id)
            if held is None:
                if taken.lease_id in self.lease_ids:
                    raise Violation(f"P6: lease {taken.lease_id} was given out twice")
                self.lease_ids.add(taken.lease_id)
                held = self.leases[taken.lease_id] = Held(until, request.worker)
            held.members[taken.seq] = command
            waiting.remove(command)
        # The place of one that expired is free from the next claim on.
        freed = {(command.domain, command.group) for command in expired if command.group is not None}
        # A suspect that stays may have passed the gate of its group.
        freed |= _groups_of(command for command in waiting if apart.may_stay(command))
        for command in waiting:
            if self.is_held_back(command) or (command.domain, command.group) in freed:
                continue
            if apart.may_stay(command):
                continue
            if rows < limit:
                raise Violation(f"P1: #{command.number} was eligible, and the claim left room")
            # Another of its group may have passed before it came.
            first = command.group is None and command.domain in last
            if first and command.rank < last[command.domain]:
                raise Violation(f"P10: #{command.number} was passed over")

    def is_held_back(self, command: Tracked) -> bool:
        """Whether another of its group is under a lease."""
        return command.group is not None and any(
            (other.domain, other.group, other.status) == (command.domain, command.group, RUNNING)
            for other in self.commands.values()
        )

    def _check_follower(self, command: Tracked, lease_id: int, waiting: Sequence[Tracked]) -> None:
        """Who comes along is the first of its group, and comes with all that run of it."""
        for other in self.commands.values():
            if (other.domain, other.group) != (command.domain, command.group):
                continue
            if other.status is RUNNING and other.lease_id != lease_id:
                raise Violation(f"#{command.number} came along while #{other.number} runs elsewhere")
            if other in waiting and other.rank < command.rank:
                raise Violation(f"P10: #{command.number} came along before #{other.number}")

    def begun(self, claimed: Claimed, running: Sequence[Claimed], now: int) -> None:
        command = self.commands[claimed.command_id]
        for run in running:
            other = self.commands[run.command_id]
            same = (other.domain, other.group) == (command.domain, command.group)
            if command.group is None or not same or other is command:
                continue
            leases = [self.leases.get(claimed.lease_id), self.leases.get(run.lease_id)]
            if all(held is not None and held.until > now for held in leases):
                raise Violation(f"#{command.number} and #{other.number} of a group run at once")

    def _deliver(self, command: Tracked, attempt: int, crashes: int, lease_id: int) -> None:
        command.status, command.lease_id = RUNNING, lease_id
        command.attempts += 1
        command.deliveries += 1
        command.received += 1
        if (attempt, crashes) != (command.attempts, command.crashes):
            raise Violation(
                f"#{command.number} is attempt {command.attempts} after {command.crashes} crashes, "
                f"but was given out as {attempt} after {crashes}"
            )
        if command.deliveries - command.refunds > command.max_attempts + CRASHES_ALLOWED:
            raise Violation(f"P5: #{command.number} was delivered {command.deliveries} times")
        self.check_record(command)

    def _expire(self, domains: Sequence[str], now: int, must: bool) -> list[Tracked]:
        """Expired commands that a claim met ended; one with room left met all of them."""
        met: list[Tracked] = []
        for command in self.commands.values():
            if (
                command.expires_at is None
                or command.expires_at > now
                or command.due_at > now
                or command.status is not PENDING
                or command.domain not in domains
                or command.domain in self.paused
            ):
                continue
            met.append(command)
            record = self._read_record(command.command_id, command.domain)
            if record is not None and record.status is CommandStatus.CANCELED:
                self._end(command, CommandStatus.CANCELED)
            elif must and command.group is None:
                raise Violation(f"#{command.number} expired, but still waits")
        return met

    def _take_back(self, now: int) -> int:
        """Leases that ran out return their commands: once each, counted as a crash."""
        count = 0
        for lease_id, held in list(self.leases.items()):
            if held.until > now:
                continue
            del self.leases[lease_id]
            for command in held.members.values():
                count += 1
                command.crashes += 1
                command.lease_id = None
                command.status, command.due_at = PENDING, now
                if command.crashes >= CRASHES_ALLOWED:
                    command.status = PARKED
                    command.ended_by = None
        return count

    def settled(self, batch: Sequence[Settlement], lost: Sequence[int], now: int) -> None:
        refused = [s.seq for s in batch if not self._settle_one(s, now)]
        if sorted(refused) != sorted(lost):
            raise Violation(f"P6: {refused} had no right to be recorded, {list(lost)} were refused")

    def _settle_one(self, settlement: Settlement, now: int) -> bool:
        held = self.leases.get(settlement.lease_id)
        command = held.members.get(settlement.seq) if held and held.until > now else None
        if held is None or command is None or command.attempts != settlement.attempt:
            # Repeating what this very lease recorded is harmless; anything else is too late.
            return any(
                c.ended_by == settlement.lease_id and c.seq == settlement.seq
                for c in self.commands.values()
            )
        del held.members[settlement.seq]
        if not held.members:
            del self.leases[settlement.lease_id]
        command.lease_id = None
        match settlement.outcome:
            case Succeeded():
                self._end(command, CommandStatus.COMPLETED, settlement.lease_id)
            case Rejected():
                self._end(command, CommandStatus.FAILED, settlement.lease_id)
            case Canceled():
                self._end(command, CommandStatus.CANCELED, settlement.lease_id)
            case Parked():
                command.status, command.ended_by = PARKED, settlement.lease_id
            case RetryLater(_, delay):
                if command.attempts - command.crashes >= command.max_attempts:
                    raise Violation(f"P7: #{command.number} is retried after its last attempt")
                command.status, command.due_at = PENDING, now + int(delay * 1_000_000)
            case Released(_, delay):
                command.status, command.due_at = PENDING, now + int(delay * 1_000_000)
                command.attempts -= 1
                command.releases += 1
                command.refunds += 1
                if not settlement.ran:
                    self._given_back(command)
        self.check_record(command)
        return True

    def _given_back(self, command: Tracked) -> None:
        """A claim that is given back without a run is no delivery, and must be rare: a worker stops, or
        a slow command came before it."""
        command.given_back += 1
        if command.given_back > GIVEN_BACK_MAX:
            raise Violation(f"P5: #{command.number} was given back {command.given_back} times unbegun")

    def renewed(self, lease_ids: Sequence[int], seconds: float, gone: Sequence[int], now: int) -> None:
        for lease_id in lease_ids:
            held = self.leases.get(lease_id)
            valid = held is not None and held.until > now
            if valid == (lease_id in gone):
                raise Violation(f"P6: lease {lease_id} valid={valid} was renewed the other way")
            if held is not None and valid:
                held.until = max(held.until, now + int(seconds * 1_000_000))

    def canceled(self, command: Tracked, accepted: bool) -> None:
        if accepted is not (command.status is PENDING):
            raise Violation(f"#{command.number} was {command.status}; cancel accepted={accepted}")
        if accepted:
            self._end(command, CommandStatus.CANCELED)
        self.check_record(command)

    def resolved(self, command: Tracked, kind: str, accepted: bool, now: int) -> None:
        if accepted is not (command.status is PARKED):
            raise Violation(f"#{command.number} was {command.status}; {kind} accepted={accepted}")
        if accepted and kind == "retry":
            command.status, command.due_at, command.ended_by = PENDING, now, None
            command.attempts = command.crashes = command.releases = 0
            command.deliveries = command.refunds = 0
        elif accepted:
            ended = CommandStatus.COMPLETED if kind == "complete" else CommandStatus.CANCELED
            self._end(command, ended)
        self.check_record(command)

    def _end(self, command: Tracked, status: CommandStatus, lease_id: int | None = None) -> None:
        if command.status in ENDED:
            raise Violation(f"P1: #{command.number} has a second outcome")
        command.status, command.ended_by, command.lease_id = status, lease_id, None
        if command.key is not None and self.keys.get((command.domain, command.key)) is command:
            del self.keys[command.domain, command.key]

    # What is true now.

    def ready(self, domains: Sequence[str], now: int) -> list[Tracked]:
        """What a worker of these domains could run at this moment."""
        return [
            command
            for command in self.commands.values()
            if command.status is PENDING
            and command.domain in domains
            and command.domain not in self.paused
            and command.due_at <= now
            and not self.is_held_back(command)
        ]

    def startable(self, domain: str, alive: Container[str], now: int) -> list[Tracked]:
        """What a free worker of a domain must be about to run at this moment."""
        ready = self.ready((domain,), now)
        staying = [c for c in ready if c.crashes and c.due_at + AGAIN >= now]
        groups = _groups_of(staying)
        found = [c for c in ready if c not in staying and (c.domain, c.group) not in groups]
        if domain not in self.paused:
            for held in self.leases.values():
                if held.worker not in alive and held.until + AGAIN < now:
                    found += [c for c in held.members.values() if c.domain == domain]
        return found

    def unfinished(self) -> list[Tracked]:
        return [c for c in self.commands.values() if c.status is PENDING or c.status is RUNNING]

    def check_record(self, command: Tracked) -> None:
        record = self._read_record(command.command_id, command.domain)
        if record is None:
            raise Violation(f"P1: #{command.number} is lost")
        if record.status is not command.status:
            raise Violation(f"P1: #{command.number} is {record.status}, should be {command.status}")
        if record.attempts != command.attempts or record.crashes != command.crashes:
            raise Violation(
                f"#{command.number} shows {record.attempts} attempts and {record.crashes} crashes "
                f"instead of {command.attempts} and {command.crashes}"
            )
        if command.status is PENDING and as_microseconds(record.due_at, "due_at") != command.due_at:
            raise Violation(f"#{command.number} shows another due time")

    def check_all(self, domains: Sequence[str], now: int) -> None:
        for command in self.commands.values():
            self.check_record(command)
            self.check_trail(command)
        for domain in domains:
            self._check_stats(domain, now)

    def _check_stats(self, domain: str, now: int) -> None:
        members = [c for c in self.commands.values() if c.domain == domain]

        def count(status: CommandStatus) -> int:
            return sum(1 for command in members if command.status is status)

        stats = self._read_stats(domain)
        ready = sum(1 for c in members if c.status is PENDING and c.due_at <= now)
        shown: list[Any] = [stats.ready, stats.scheduled, stats.running, stats.parked]
        shown += [stats.completed, stats.failed, stats.canceled, stats.paused]
        counted: list[Any] = [ready, count(PENDING) - ready, count(RUNNING), count(PARKED)]
        counted += [*map(count, ENDED), domain in self.paused]
        if shown != counted:
            raise Violation(f"the statistics of {domain} say {shown}, the history says {counted}")

    def check_trail(self, command: Tracked) -> None:
        """P14: whoever replays the trail arrives at the stored state."""
        trail = self._read_trail(command.command_id, command.domain)
        folded = fold(trail)
        if folded != (command.status, command.attempts, command.crashes, command.received):
            raise Violation(
                f"P14: the trail of #{command.number} folds to {folded}, the history says "
                f"{(command.status, command.attempts, command.crashes, command.received)}: "
                f"{[event.event_type.value for event in trail]}"
            )


def fold(trail: Sequence[AuditEvent]) -> tuple[CommandStatus, int, int, int]:
    """Status, attempts, crashes and deliveries, from nothing but the audit trail."""
    status, attempts, crashes, received = PENDING, 0, 0, 0
    if not trail or trail[0].event_type is not AuditEventType.SENT:
        raise Violation("P14: a trail does not begin with SENT")
    for event in trail[1:]:
        match event.event_type:
            case AuditEventType.RECEIVED:
                if status is not PENDING:
                    raise Violation(f"P14: received while {status}")
                status, attempts, received = RUNNING, attempts + 1, received + 1
            case AuditEventType.FAILED | AuditEventType.RETRY_SCHEDULED:
                status = PENDING
            case AuditEventType.RELEASED:
                status, attempts = PENDING, attempts - 1
            case AuditEventType.WORKER_LOST:
                status, crashes = PENDING, crashes + 1
            case AuditEventType.MOVED_TO_TSQ:
                status = PARKED
            case AuditEventType.COMPLETED | AuditEventType.OPERATOR_COMPLETE:
                status = CommandStatus.COMPLETED
            case AuditEventType.BUSINESS_RULE_FAILED:
                status = CommandStatus.FAILED
            case AuditEventType.CANCELED | AuditEventType.EXPIRED | AuditEventType.OPERATOR_CANCEL:
                status = CommandStatus.CANCELED
            case AuditEventType.OPERATOR_RETRY:
                status, attempts, crashes = PENDING, 0, 0
            case AuditEventType.CANCEL_REQUESTED:
                pass  # what becomes of it is an event of its own
            case _:
                raise Violation(f"P14: an unexpected {event.event_type}")
    return status, attempts, crashes, received
