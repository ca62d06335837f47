"""What must be true of processes, from what workers saw and what anyone can read.

The oracle knows the plans of the processes, hears of every run of a handler, and reads rows, audits and
counts. It knows nothing of routers: not how they decide, and not in which transaction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import msgspec

from commandbus.domain.command import CommandRecord
from commandbus.domain.lifecycle import FINAL, PARKED, CommandStatus
from commandbus.domain.process.values import ENDED, ProcessEventType, ProcessStatus
from commandbus.operations import batches
from commandbus.operations.process_writes import decode_progress
from commandbus.operations.scope import Scope
from commandbus.store.op import Op
from commandbus.store.processes import ProcessEventRow, ProcessFilter, ProcessRow
from commandbus.store.records import Claimed, CommandFilter
from tests.simulation.oracle import Violation
from tests.simulation.router_processes import DOMAIN, PLANS, REPLIES

E = ProcessEventType
CONSUMED = {
    E.STEP_COMPLETED,
    E.STEP_FAILED,
    E.STEP_CANCELED,
    E.COMPENSATION_COMPLETED,
    E.COMPENSATION_SKIPPED,
    E.COMPENSATION_FAILED,
    E.REPLY_IGNORED,
}
COUNTED = {ProcessStatus.COMPLETED: "completed", ProcessStatus.CANCELED: "canceled"}
COMPLETION = "batch_done"
REFUSED = "REFUSED"
"""The code of a mistake that a routing brings along."""


@dataclass
class Seen:
    """What the workers saw of one process."""

    ids: dict[str, UUID] = field(default_factory=dict[str, UUID])
    begun: list[str] = field(default_factory=list[str])
    """Names of commands, by their first begin."""
    done: set[str] = field(default_factory=set[str])


class RouterOracle:
    def __init__(self, scope: Scope, run: Callable[[Op[Any]], Any]) -> None:
        self._scope, self._run = scope, run
        self.commands: dict[UUID, str] = {}
        self.seen: dict[UUID, Seen] = {}
        self.started: dict[UUID, str] = {}
        self.batches: dict[UUID, list[UUID]] = {}
        self.signals: Counter[UUID] = Counter()
        self.canceled: set[UUID] = set()
        self.unanswered: dict[UUID, set[int]] = {}
        """The leases under which a command was taken, and of which no handler said how they ended."""
        self.refusals = 0

    # What the workers tell.

    def taken(self, claimed: Claimed) -> None:
        self.unanswered.setdefault(claimed.command_id, set()).add(claimed.lease_id)

    def answered(self, claimed: Claimed) -> None:
        self.unanswered[claimed.command_id].discard(claimed.lease_id)

    def begun(self, claimed: Claimed) -> None:
        """A handler begins."""
        name, key = claimed.command_type, claimed.correlation_id
        self.commands[claimed.command_id] = name
        if name == COMPLETION:
            return
        seen = self.seen.setdefault(key, Seen())
        known = seen.ids.setdefault(name, claimed.command_id)
        if known != claimed.command_id:
            raise Violation(f"step {name} of {key} was sent twice")
        row = self.row(key)
        plan, undoing = PLANS[row.process_type], [n for n in seen.begun if n.startswith("un")]
        if not name.startswith("un") and decode_progress(row).canceling:
            raise Violation(f"{name} of {key} begins after its process was canceled")
        if plan.undo.get(name) in undoing:
            raise Violation(f"{name} of {key} begins after its own {plan.undo[name]}")
        if name in seen.begun:
            return
        if name.startswith("un"):
            open_ones = [other for other in undoing if other not in seen.done]
            if open_ones:
                raise Violation(f"{name} of {key} begins while {open_ones} are not finished")
        else:
            missing = [n for n in plan.after[name] if n != "order" and n not in seen.done]
            if missing:
                raise Violation(f"{name} of {key} begins without {missing}")
            if undoing:
                raise Violation(f"{name} of {key} begins after {undoing}")
        seen.begun.append(name)

    def succeeded(self, claimed: Claimed) -> None:
        """The success of a handler is on record."""
        if claimed.command_type != COMPLETION:
            self.seen[claimed.correlation_id].done.add(claimed.command_type)

    # What anyone can read.

    def row(self, key: UUID) -> ProcessRow:
        row: ProcessRow | None = self._run(self._scope.store.get_process(key))
        if row is None:
            raise Violation(f"process {key} is unknown")
        return row

    def rows(self) -> list[ProcessRow]:
        found: list[ProcessRow] = self._run(
            self._scope.store.query_processes(ProcessFilter(limit=1_000))
        )
        return found

    def records(self, domain: str, status: CommandStatus | None = None) -> list[CommandRecord]:
        wanted = CommandFilter(domain=domain, status=status, limit=1_000)
        found: list[CommandRecord] = self._run(self._scope.store.query(wanted))
        return found

    def _by_process(self, domain: str) -> dict[UUID, list[CommandRecord]]:
        found: dict[UUID, list[CommandRecord]] = {}
        for record in self.records(domain):
            found.setdefault(record.correlation_id, []).append(record)
        return found

    def parked(self) -> list[CommandRecord]:
        return [r for domain in (DOMAIN, REPLIES) for r in self.records(domain, PARKED)]

    def unfinished(self) -> list[UUID]:
        return [row.process_id for row in self.rows() if row.status not in ENDED]

    def busy(self) -> list[UUID]:
        """What is not ended: processes, replies, batches."""
        waiting = [
            record.command_id
            for domain in (DOMAIN, REPLIES)
            for status in CommandStatus
            if status not in FINAL
            for record in self.records(domain, status)
        ]
        return self.unfinished() + waiting + self.open_batches()

    def open_batches(self) -> list[UUID]:
        known = {key: self._run(batches.get_batch(self._scope, key)) for key in self.batches}
        return [key for key, record in known.items() if record.completed_at is None]

    # What must hold at any moment.

    def check_always(self) -> None:
        rows = {row.process_id: row for row in self.rows()}
        for key in self.started:
            if key not in rows:
                raise Violation(f"process {key} was started and is not there")
        for batch_id, members in self.batches.items():
            self._check_batch(batch_id, [rows[key] for key in members])
        for key, sent in self._by_process(DOMAIN).items():
            names = Counter(record.command_type for record in sent)
            twice = [name for name, count in names.items() if count > 1 and name != COMPLETION]
            if twice:
                raise Violation(f"steps {twice} of {key} were sent twice")
        refused = 0
        for record in self.records(REPLIES, PARKED):
            # Routers that die, routers that lack a declaration, and mistakes bring an operator in.
            refused += record.error_code == REFUSED
            if record.error_code not in ("WORKER_LOST", "HANDLER_NOT_FOUND", REFUSED):
                raise Violation(f"a reply to {record.correlation_id} is parked: {record.error}")
        if refused > self.refusals:
            raise Violation(f"{refused} replies are parked for {self.refusals} mistakes")

    def _check_batch(self, batch_id: UUID, members: Sequence[ProcessRow]) -> None:
        batch = self._run(batches.get_batch(self._scope, batch_id))
        ended = [row for row in members if row.status in ENDED]
        counted = Counter(COUNTED.get(row.status, "failed") for row in ended)
        stored = {name: getattr(batch, name) for name in ("completed", "failed", "canceled")}
        if stored != {name: counted[name] for name in stored}:
            raise Violation(f"batch {batch_id} counts {stored}, its members are {dict(counted)}")
        if batch.completed_at is not None and len(ended) < len(members):
            raise Violation(f"batch {batch_id} is complete before its processes")

    def check_deadlines(self, now: int, seconds: float) -> None:
        for row in self.rows():
            due = row.due_in is not None and row.created_at + row.due_in + int(seconds * 1_000_000)
            if due and due < now and row.status not in ENDED:
                raise Violation(f"a deadline of {row.process_id} is missed by {(now - due) / 1e6} s")

    # What must hold in the end.

    def check_ended(self) -> None:
        self.check_always()
        replies = self._by_process(REPLIES)
        for row in self.rows():
            self._check_process(row, replies.get(row.process_id, []))
        completions = Counter(
            record.headers.get("batch_id")
            for record in self.records(DOMAIN)
            if record.command_type == COMPLETION
        )
        if completions != Counter({str(key): 1 for key in self.batches}):
            raise Violation(f"batches completed {dict(completions)}")

    def _check_process(self, row: ProcessRow, came: list[CommandRecord]) -> None:
        key = row.process_id
        events: list[ProcessEventRow] = self._run(self._scope.store.process_events(key))
        if row.status not in ENDED:
            raise Violation(f"process {key} never ended: {row.status}")
        self._check_replies(key, came, events)
        self._check_time(row, events)
        self._check_forward(row, events)
        self._check_backward(row, events)

    def _check_replies(
        self, key: UUID, came: list[CommandRecord], events: list[ProcessEventRow]
    ) -> None:
        """Everything that came to its queue is consumed once, and nothing is ignored without need."""
        left = [record.command_id for record in came if record.status is not CommandStatus.COMPLETED]
        if left:
            raise Violation(f"replies {left} to {key} were not consumed")
        signals = [record for record in came if record.command_type == "commandbus.signal"]
        controls = [record for record in came if record.command_type == "commandbus.control"]
        replied = Counter(
            record.causation_id for record in came if record not in signals and record not in controls
        )
        consumed = Counter(e.command_id for e in events if e.kind in CONSUMED and e.command_id)
        waits = {e.command_id for e in events if e.kind is E.STEP_WAITING}
        for command_id in waits:
            consumed.pop(command_id, None)
        if consumed != replied:
            raise Violation(f"replies to {key} were consumed {dict(consumed)}, came {dict(replied)}")
        if max(replied.values(), default=1) > 1:
            raise Violation(f"a command of {key} was replied to twice")
        ignored = [e for e in events if e.kind is E.REPLY_IGNORED]
        of_signals = [e for e in ignored if "signal" in msgspec.json.decode(e.details)]
        received = [e for e in events if e.kind is E.SIGNAL_RECEIVED]
        if not self.signals[key] == len(signals) == len(received) + len(of_signals):
            raise Violation(f"{self.signals[key]} signals to {key}, consumed {len(received)}")
        asked = [e for e in events if e.kind is E.CANCEL_REQUESTED]
        others = [e for e in ignored if e not in of_signals and e.command_id is None]
        if len(controls) != len(asked) + len(others):
            raise Violation(f"{len(controls)} controls of {key}, consumed {len(asked) + len(others)}")
        for event in ignored:
            before = events[: events.index(event)]
            late = any(e.kind is E.STEP_TIMED_OUT and e.command_id == event.command_id for e in before)
            ended = any(e.kind in tuple(E(status) for status in ENDED) for e in before)
            if event.command_id is not None and not late and not ended:
                raise Violation(f"a reply to {key} was ignored: {event.details}")

    def _check_time(self, row: ProcessRow, events: list[ProcessEventRow]) -> None:
        begun = {e.step: e.at for e in events if e.kind in (E.STEP_SENT, E.STEP_WAITING)}
        process_due = any(e.kind is E.TIMED_OUT for e in events)
        for event in events:
            if event.kind is E.STEP_TIMED_OUT and event.step is not None and not process_due:
                waited = (event.at - begun[event.step]) / 1_000_000
                if waited < PLANS[row.process_type].timeouts[event.step]:
                    raise Violation(f"{event.step} of {row.process_id} timed out after {waited} s")

    def _check_forward(self, row: ProcessRow, events: list[ProcessEventRow]) -> None:
        """The state has each success once, in the order of the audit, until it went back."""
        kinds = [e.kind for e in events]
        end = kinds.index(E.COMPENSATING) if E.COMPENSATING in kinds else len(kinds)
        succeeded = [e.step for e in events[:end] if e.kind is E.STEP_COMPLETED]
        log = msgspec.json.decode(row.state)["log"]
        if log != succeeded or len(set(log)) != len(log):
            raise Violation(f"the state of {row.process_id} has {log}, its audit {succeeded}")
        if (row.status is ProcessStatus.COMPLETED) != (PLANS[row.process_type].last in log):
            raise Violation(f"{row.process_id} is {row.status} after {log}")

    def _check_backward(self, row: ProcessRow, events: list[ProcessEventRow]) -> None:
        key, plan = row.process_id, PLANS[row.process_type]
        seen = self.seen.get(key, Seen())
        undone = [name for name in seen.begun if name.startswith("un")]
        if row.status is ProcessStatus.COMPLETED:
            if undone:
                raise Violation(f"{key} is completed and {undone} ran")
            return
        done = [
            e.step
            for e in events
            if e.step in plan.undo
            and (
                e.kind in (E.STEP_COMPLETED, E.STEP_TIMED_OUT)
                or (e.kind is E.STEP_CANCELED and e.command_id and self.unanswered.get(e.command_id))
            )
        ]
        wanted = [plan.undo[step] for step in reversed(done) if step is not None]
        if undone != wanted:
            raise Violation(f"{key} did {done} and undid {undone}")
        for name in sorted(seen.done):
            if name in plan.undo and plan.undo[name] not in seen.done:
                raise Violation(f"{name} of {key} took effect and was not undone")
        called_off = key in self.canceled or row.parent_id is not None
        if row.status is ProcessStatus.CANCELED and not called_off:
            raise Violation(f"{key} is canceled, which was not asked for")
        if row.status is ProcessStatus.FAILED and undone:
            raise Violation(f"{key} is FAILED, but undid {undone}")
