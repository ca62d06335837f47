"""The memory engine's reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from uuid import UUID

import msgspec

from commandbus.domain.audit import AuditEvent, AuditEventType, is_of_operator
from commandbus.domain.command import CommandRecord
from commandbus.domain.failure import Failure
from commandbus.domain.ids import IdPart
from commandbus.domain.lifecycle import FINAL, PARKED, CommandStatus
from commandbus.domain.moment import SECOND, Clock, as_datetime, as_optional_datetime
from commandbus.engines.memory.state import State, Stored
from commandbus.store.columns import erased as erased_columns
from commandbus.store.erasing import MARKER, erased_details, erased_failure, erased_reason
from commandbus.store.op import Op
from commandbus.store.reading import make_record, read_json
from commandbus.store.records import (
    OPTIONAL,
    AuditEntry,
    AuditFilter,
    CommandFilter,
    Ended,
    NewCommand,
    Overdue,
    ParkedGroup,
    Place,
    Pruned,
    QueueStats,
    Run,
    operator_actions,
)
from commandbus.store.searching import (
    NEVER,
    LookedUp,
    Noun,
    Prunable,
    matches_error,
    pruned,
    value_at,
)
from commandbus.store.sessions import ForeignLeases, Sessionless
from commandbus.store.trail import Facts, compose, shown

_ERASED = erased_columns(OPTIONAL)


class MemoryReads(Sessionless):
    def __init__(self, state: State, clock: Clock) -> None:
        self._state = state
        self._clock = clock

    def find(self, command_id: UUID, domain: str | None) -> Op[list[CommandRecord]]:
        yield from ()
        return [self._record(stored) for stored in self._stored(command_id, domain)]

    def look_up(self, noun: Noun, wanted: IdPart, below: UUID, scan: int) -> Op[LookedUp]:
        yield from ()
        known = self._state.by_id if noun == "command" else self._state.processes
        looked = sorted((one for one in known if wanted.lowest <= one <= below), reverse=True)[:scan]
        found = [one for one in looked if wanted.fits(one)]
        return LookedUp(found, looked[-1] if len(looked) == scan else None)

    def endings(self, commands: Sequence[Place]) -> Op[dict[Place, Ended]]:
        yield from ()
        found: dict[Place, Ended] = {}
        for place in commands:
            for stored in self._stored(*place):
                outcome = stored.outcome
                if outcome is not None and outcome.status in FINAL:
                    found[place] = Ended(outcome.status, outcome.result, outcome.error, outcome.reason)
        return found

    def query(self, wanted: CommandFilter) -> Op[list[CommandRecord]]:
        yield from ()
        found: list[CommandRecord] = []
        for seq in reversed(self._state.commands):
            if len(found) >= wanted.limit:
                break
            stored = self._state.commands[seq]
            if wanted.lowest is not None and seq < wanted.lowest:
                break
            if (wanted.before is None or seq < wanted.before) and self._matches(stored, wanted):
                found.append(self._record(stored))
        return found

    def _matches(self, stored: Stored, wanted: CommandFilter) -> bool:
        command = stored.command
        return (
            (wanted.domain is None or command.domain == wanted.domain)
            and (wanted.command_type is None or command.command_type == wanted.command_type)
            and (wanted.batch_id is None or command.batch_id == wanted.batch_id)
            and (wanted.correlation_id is None or command.correlation_id == wanted.correlation_id)
            and (wanted.created_after is None or stored.created_at >= wanted.created_after)
            and (wanted.created_before is None or stored.created_at < wanted.created_before)
            and (wanted.tag is None or wanted.tag in (read_json("tags", command.tags, []) or ()))
            and (wanted.status is None or self._status(stored) is wanted.status)
            and (wanted.error is None or self._failed_with(stored, wanted.error))
            and _has(stored.data, wanted.data)
            and _has(command.headers, wanted.headers)
        )

    def _failed_with(self, stored: Stored, wanted: str) -> bool:
        error = stored.outcome.error if stored.outcome else None
        return error is not None and matches_error(wanted, error.code, error.exception)

    def last_sequence(self) -> Op[int]:
        yield from ()
        return self._state.last_seq

    def search_audit(self, wanted: AuditFilter) -> Op[list[AuditEntry]]:
        yield from ()
        everything = sorted(
            (kept.at, seq, place)
            for seq, stored in self._state.commands.items()
            for place, kept in enumerate(stored.audit)
        )
        highest = len(everything) + 1 if wanted.before is None else wanted.before
        found: list[AuditEntry] = []
        for number in range(min(highest - 1, len(everything)), max(0, highest - wanted.span), -1):
            _, seq, place = everything[number - 1]
            stored = self._state.commands[seq]
            kept, command = stored.audit[place], stored.command
            if (
                wanted.kind in (None, kept.kind)
                and wanted.domain in (None, command.domain)
                and wanted.actor in (None, kept.details.get("actor"))
                and len(found) < wanted.limit
            ):
                moment, details = as_datetime(kept.at), shown(kept.details)
                event = AuditEvent(command.domain, command.command_id, kept.kind, moment, details)
                found.append(AuditEntry(number, command.command_type, event))
        return found

    def recent_runs(self, limit: int) -> Op[list[Run]]:
        yield from ()
        ended = (s for s in reversed(self._state.commands.values()) if s.outcome is not None)
        return [
            Run(
                stored.command.domain,
                outcome.status,
                outcome.attempts,
                stored.due_at,
                None if outcome.lease_id is None else stored.finished_at - outcome.ran,
                stored.finished_at,
            )
            for stored in islice(ended, limit)
            if (outcome := stored.outcome) is not None
        ]

    def prune(
        self, cutoffs: Mapping[str, int], after: int, limit: int, *, preview: bool = False
    ) -> Op[Pruned]:
        yield from ()
        seen = [
            Prunable(
                seq,
                str(stored.outcome.status),
                self._ended_at(stored),
                stored.created_at,
                self._linked(stored),
            )
            for seq, stored in self._state.commands.items()
            if seq > after and stored.outcome is not None
        ][:limit]
        if preview:
            return pruned(seen, cutoffs, limit)
        journal = self._state.journal
        journal.contents(self._state.commands)  # also its order: lists are the newest first
        for one in seen:
            if one.is_due(cutoffs):
                command = self._state.commands.pop(one.seq).command
                known = self._state.by_id[command.command_id]
                journal.entry(self._state.by_id, command.command_id)
                journal.contents(known)
                del known[command.domain]
                if not known:
                    del self._state.by_id[command.command_id]
        return pruned(seen, cutoffs, limit)

    def _linked(self, stored: Stored) -> str | None:
        """Its domain and id where its trail has entries of operators."""
        command = stored.command
        has_links = any(is_of_operator(kept.kind, kept.details) for kept in stored.audit)
        return f"{command.domain} {command.command_id}" if has_links else None

    def _ended_at(self, stored: Stored) -> int:
        """The moment from which retention counts. Members of a batch ended with the batch."""
        if self._is_awaited(stored.command):
            return NEVER
        batch = self._state.documents.get(("batch", str(stored.command.batch_id)))
        if batch is None:
            return stored.finished_at
        if batch.status == "open":
            return NEVER
        completed_at: int = msgspec.json.decode(batch.body)["completed_at"]
        return max(stored.finished_at, completed_at)

    def _is_awaited(self, command: NewCommand) -> bool:
        """Whether a process that has not ended may still ask how it ended."""
        process = (
            None if command.reply_to is None else self._state.processes.get(command.correlation_id)
        )
        return process is not None and not process.ended

    def erase(self, seqs: Sequence[int]) -> Op[list[int]]:
        yield from ()
        erased: list[int] = []
        for seq in seqs:
            stored = self._state.commands.get(seq)
            outcome = stored.outcome if stored else None
            if stored is None or outcome is None or outcome.status not in FINAL:
                continue
            self._state.journal.fields(stored, "command", "data", "progress", "outcome", "audit")
            self._state.journal.entry(self._state.recorded, seq)
            nothing = dict.fromkeys(_ERASED)
            stored.command = msgspec.structs.replace(stored.command, data=MARKER, **nothing)
            stored.data, stored.progress = MARKER, None
            stored.outcome = msgspec.structs.replace(
                outcome,
                result=None if outcome.result is None else MARKER,
                error=None if outcome.error is None else erased_failure(outcome.error),
                reason=erased_reason(outcome.reason),
            )
            stored.audit = [
                msgspec.structs.replace(kept, details=erased_details(kept.details))
                for kept in stored.audit
            ]
            self._state.recorded.pop(seq, None)
            erased.append(seq)
        return erased

    def count_parked(self, domain: str | None, command_type: str | None) -> Op[int]:
        yield from ()
        return sum(
            1
            for stored in self._state.commands.values()
            if stored.outcome is not None
            and stored.outcome.status is PARKED
            and domain in (None, stored.command.domain)
            and command_type in (None, stored.command.command_type)
        )

    def group_parked(self, domain: str | None, command_type: str | None) -> Op[list[ParkedGroup]]:
        yield from ()
        groups: dict[tuple[str | None, ...], list[tuple[Stored, Failure | None]]] = {}
        for stored in self._state.commands.values():
            command, outcome = stored.command, stored.outcome
            if (
                outcome is not None
                and outcome.status is PARKED
                and domain in (None, command.domain)
                and command_type in (None, command.command_type)
            ):
                error = self._record(stored).error
                failed = (error.code, error.exception, error.place) if error else ()
                key = (command.domain, command.command_type, *failed)
                groups.setdefault(key, []).append((stored, error))
        return [_as_group(members) for members in groups.values()]

    def overdue(self, seconds: float, limit: int) -> Op[list[Overdue]]:
        yield from ()
        cutoff = self._clock() - int(seconds * SECOND)
        return [
            Overdue(
                stored.command.domain,
                stored.command.command_id,
                stored.command.command_type,
                stored.finished_at,
                stored.outcome.error.code if stored.outcome.error else None,
            )
            for stored in self._state.commands.values()
            if stored.outcome is not None
            and stored.outcome.status is PARKED
            and stored.finished_at <= cutoff
            and not any(
                kept.kind is AuditEventType.ESCALATED and kept.at >= stored.finished_at
                for kept in stored.audit
            )
        ][:limit]

    def audit_trail(self, command_id: UUID, domain: str | None) -> Op[list[AuditEvent]]:
        yield from ()
        events: list[AuditEvent] = []
        for stored in self._stored(command_id, domain):
            events += compose(self._facts(stored), stored.audit)
        return events

    def stats(self, domain: str, cap: int | None = None) -> Op[QueueStats]:
        yield from ()
        now, state = self._clock(), self._state.look_at(domain)
        ready = [entry for entry in state.waiting.values() if entry.due_at <= now]
        tally = state.tally
        oldest = min((entry.due_at for entry in ready), default=None)
        return QueueStats(
            domain=domain,
            ready=len(ready),
            scheduled=len(state.waiting) - len(ready),
            running=sum(
                len(lease.members) for lease in self._state.leases.values() if lease.domain == domain
            ),
            parked=tally.get(PARKED, 0),
            completed=tally.get(CommandStatus.COMPLETED, 0),
            failed=tally.get(CommandStatus.FAILED, 0),
            canceled=tally.get(CommandStatus.CANCELED, 0),
            oldest_ready_age=None if oldest is None else (now - oldest) / SECOND,
            paused=state.pause is not None,
            paused_reason=state.pause.reason if state.pause else None,
            paused_at=as_datetime(state.pause.at) if state.pause else None,
            held=sum(item[1] in state.waiting for heap in state.held.values() for item in heap),
            operator_actions=operator_actions(tally),
        )

    def foreign_leases(self, worker: str) -> Op[ForeignLeases]:
        yield from ()
        leases = self._state.leases.values()
        first = min((lease.until for lease in leases if lease.worker != worker), default=None)
        return ForeignLeases(None if first is None else (first - self._clock()) / SECOND)

    def count_ahead(self, domain: str, priority: int, seq: int, limit: int) -> Op[int]:
        yield from ()
        now, found = self._clock(), self._state.look_at(domain)
        held = {item[1] for heap in found.held.values() for item in heap}
        ready = (e.seq for e in found.waiting.values() if e.due_at <= now and e.seq not in held)
        places = ((self._state.commands[one].command.priority, one) for one in ready)
        return min(limit, sum(1 for place in places if place < (priority, seq)))

    def domains(self) -> Op[list[str]]:
        yield from ()
        return sorted(self._state.domains)

    def _stored(self, command_id: UUID, domain: str | None) -> list[Stored]:
        known = self._state.by_id.get(command_id, {})
        return [
            self._state.commands[seq]
            for name, seq in sorted(known.items(), key=lambda pair: pair[1])
            if domain in (None, name)
        ]

    def _status(self, stored: Stored) -> CommandStatus:
        if stored.outcome is not None:
            return stored.outcome.status
        return CommandStatus.PENDING if stored.lease_id is None else CommandStatus.IN_PROGRESS

    def _facts(self, stored: Stored) -> Facts:
        command, outcome = stored.command, stored.outcome
        completed = running = None
        if outcome and outcome.status is CommandStatus.COMPLETED and outcome.lease_id is not None:
            started_at = stored.finished_at - outcome.ran
            completed = (started_at, stored.finished_at, outcome.worker or "", outcome.attempts)
        if stored.lease_id is not None:
            lease = self._state.leases[stored.lease_id]
            running = (lease.claimed_at, lease.worker, lease.members[stored.seq].attempt)
        return Facts(command, stored.created_at, completed, running)

    def _record(self, stored: Stored) -> CommandRecord:
        command, outcome = stored.command, stored.outcome
        entry = self._state.look_at(command.domain).waiting.get(stored.seq)
        lease = self._state.leases[stored.lease_id] if stored.lease_id is not None else None
        member = lease.members[stored.seq] if lease else None
        error = outcome.error if outcome else None
        if outcome is None:
            noted = (k.details["error"] for k in reversed(stored.audit) if "error" in k.details)
            error = next((msgspec.convert(last, Failure) for last in noted), None)
        attempts = crashes = 0
        if outcome is not None:
            attempts, crashes = outcome.attempts, outcome.crashes
        elif member is not None:
            attempts, crashes = member.attempt, member.crashes
        elif entry is not None:
            attempts, crashes = entry.attempts, entry.crashes
        started = lease.claimed_at if lease else None
        if outcome is not None and outcome.lease_id is not None:
            started = stored.finished_at - outcome.ran
        if command.data is not stored.data:
            command = msgspec.structs.replace(command, data=stored.data)
        return make_record(
            command,
            outcome.result if outcome else None,
            status=self._status(stored),
            attempts=attempts,
            crashes=crashes,
            created_at=as_datetime(stored.created_at),
            due_at=as_datetime(entry.due_at if entry else stored.due_at),
            started_at=as_optional_datetime(started),
            finished_at=as_datetime(stored.finished_at) if outcome else None,
            worker=outcome.worker if outcome else (lease.worker if lease else None),
            error=error,
            reason=outcome.reason if outcome else None,
            progress=stored.progress,
            sequence=stored.seq,
        )


def _has(text: str | None, wanted: Sequence[tuple[str, str]]) -> bool:
    """Whether a JSON text has these values at these paths."""
    if not wanted:
        return True
    value = read_json("", text, [])
    return all(value_at(value, path) == found for path, found in wanted)


def _as_group(members: Sequence[tuple[Stored, Failure | None]]) -> ParkedGroup:
    newest, error = max(members, key=lambda member: member[0].seq)
    ended = [stored.finished_at or stored.created_at for stored, _ in members]
    command = newest.command
    return ParkedGroup(
        command.domain,
        command.command_type,
        len(members),
        min(ended),
        max(ended),
        command.command_id,
        error,
    )
