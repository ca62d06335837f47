"""Answers for people: why a command is not running."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from difflib import get_close_matches

from commandbus.domain.audit import AuditEventType
from commandbus.domain.batch import BatchRecord
from commandbus.domain.breaker import BreakerState
from commandbus.domain.command import CommandRecord, CommandRef
from commandbus.domain.lifecycle import FINAL, PARKED, CommandStatus
from commandbus.domain.limits import KEY_PREFIX, limit_at
from commandbus.domain.moment import as_datetime
from commandbus.domain.presence import Reason, Why, WorkerInfo, WorkerState
from commandbus.domain.process.values import ENDED as PROCESS_ENDED
from commandbus.domain.process.values import (
    ProcessRecord,
    ProcessStatus,
    ProcessStep,
    StepKind,
    StepStatus,
)
from commandbus.errors import CommandNotFoundError
from commandbus.operations.batches import get_batch
from commandbus.operations.breakers import get_breaker
from commandbus.operations.canceling import requested
from commandbus.operations.commands import only_one, place_of, query_commands
from commandbus.operations.presence import list_workers
from commandbus.operations.processes import ProcessRef, StartProcessResult, get_process
from commandbus.operations.scope import Scope
from commandbus.store.limiting import BlockedAt
from commandbus.store.op import Op

AHEAD_MAX = 10_000
RECENT = 100
"""Commands of a domain among which a type is looked for that is much like another."""
JUST_NOW = timedelta(seconds=10)
"""A worker that has just begun need not have reported itself yet."""
UNCLAIMED_AFTER = timedelta(seconds=30)
"""Live workers take what is ready sooner, unless something is wrong with them."""


def why(scope: Scope, command_id: CommandRef | ProcessRef, *, domain: str | None = None) -> Op[Why]:
    """Why a command is not running: paused, scheduled, a breaker open, no worker that knows its type,
    its group or a limit in the way, others ahead of it, running, parked or ended; in words and as data.
    Of a process, by its id: what it waits for, and whether a router drives it on; of a batch, what
    keeps it open. Raises CommandNotFoundError."""
    if isinstance(command_id, StartProcessResult | ProcessRecord):
        command_id = command_id.process_id
    wanted, domain = place_of(command_id, domain)
    found = yield from scope.store.find(wanted, domain)
    if not found and (process := (yield from get_process(scope, wanted))) is not None:
        return (yield from _why_process(scope, process))
    if not found and (batch := (yield from get_batch(scope, wanted))) is not None:
        return _why_batch(batch)
    record = only_one(found, wanted, domain)
    if record.status is CommandStatus.PENDING:
        reasons = yield from _why_waiting(scope, record)
    else:
        reasons = [_why_not_waiting(record)]
        if record.status is CommandStatus.IN_PROGRESS:
            reasons += yield from _why_still_running(scope, record)
    summary = "; ".join(reason.text for reason in reasons)
    return Why(str(record.command_id), record.domain, record.status, summary, tuple(reasons))


def _why_still_running(scope: Scope, record: CommandRecord) -> Op[list[Reason]]:
    """What is about to end a run: a request, or the end of a lease that is no longer renewed."""
    reasons: list[Reason] = []
    live = yield from list_workers(scope)
    now = as_datetime((yield from scope.store.now()))
    since = record.started_at or now
    if record.worker not in [worker.name for worker in live] and now - since > JUST_NOW:
        text = (
            f"its worker {record.worker} does not report itself: it is dead, frozen or cut off, and "
            "another worker takes the command over when the lease has ended"
        )
        reasons.append(Reason("WORKER_SILENT", text))
    reasons += [one for w in live if w.name == record.worker for one in _why_in_child(record, w)]
    asked = yield from requested(scope, record)
    if asked is not None:
        by = f" by {asked.actor}" if asked.actor else ""
        what = (
            "its process waits for it, and undoes it" if asked.awaited else f"it was asked to stop{by}"
        )
        reasons.append(Reason("CANCEL_REQUESTED", f"{what}: {asked.reason}"))
    return reasons


def _why_in_child(record: CommandRecord, worker: WorkerInfo) -> list[Reason]:
    """Its handler needs a child process, and those of its worker are not well."""
    if (record.domain, record.command_type) not in worker.isolated:
        return []
    kills = [f"{count} killed by {cause}" for cause, count in worker.child_kills.items()]
    ends = ", ".join([f"{worker.child_restarts} restarted", *kills])
    if not worker.children:
        text = f"its handler needs a child process, and its worker has none yet ({ends})"
        return [Reason("CHILD_STARTS", text)]
    if worker.child_restarts:
        text = f"its handler needs a child process, and those of its worker ended before: {ends}"
        return [Reason("CHILDREN_END", text)]
    return []


def _why_batch(batch: BatchRecord) -> Why:
    """What keeps a batch open."""
    if batch.completed_at is not None:
        reason = Reason("ENDED", f"{batch.status} at {_moment(batch.completed_at)}")
    elif batch.in_troubleshooting:
        parked = f"{batch.in_troubleshooting} of its commands are parked and wait for an operator"
        reason = Reason("BATCH_OPEN", f"{batch.remaining} of {batch.total} have not ended; {parked}")
    else:
        reason = Reason("BATCH_OPEN", f"{batch.remaining} of its {batch.total} commands have not ended")
    domain = ", ".join(batch.domains)
    return Why(str(batch.batch_id), domain, str(batch.status), reason.text, (reason,))


def _why_process(scope: Scope, process: ProcessRecord) -> Op[Why]:
    """What a process waits for."""
    reasons: list[Reason] = []
    if process.status in PROCESS_ENDED:
        because = f": {process.error.code}: {process.error.message}" if process.error else ""
        ended = _moment(process.finished_at) if process.finished_at else "an unknown time"
        reasons.append(Reason("ENDED", f"{process.status} at {ended}{because}"))
    else:
        workers = yield from list_workers(scope)
        if not any(process.process_type in worker.processes for worker in workers):
            text = (
                f"no live router drives processes of type {process.process_type!r} on: register it "
                "with registry.process in a worker, or run `commandbus process route`"
            )
            reasons.append(Reason("NO_ROUTER", text))
        for step in process.steps:
            if step.status is StepStatus.PENDING:
                reasons += [(yield from _why_step(scope, step))]
        if process.status is ProcessStatus.WAITING_FOR_TROUBLESHOOTING:
            because = f": {process.error.code}: {process.error.message}" if process.error else ""
            reasons.append(Reason("PARKED", f"it waits for an operator{because}"))
    summary = "; ".join(reason.text for reason in reasons) or "its next step is about to begin"
    return Why(str(process.process_id), process.reply_to, str(process.status), summary, tuple(reasons))


def _why_step(scope: Scope, step: ProcessStep) -> Op[Reason]:
    if step.kind is StepKind.SIGNAL:
        return Reason("STEP", f"its step {step.name!r} waits for the signal {step.domain!r}")
    answer = f"process {step.command_id}"
    if step.kind is StepKind.COMMAND:
        answer = f"command {step.command_id}"
        try:
            explained = yield from why(scope, step.command_id, domain=step.domain)
        except CommandNotFoundError:  # purged, or erased
            return Reason("STEP", f"its step {step.name!r} waits for {answer}, which does not exist")
        answer += f" ({explained.status}: {explained.summary})"
    return Reason("STEP", f"its step {step.name!r} waits for {answer}")


def _why_waiting(scope: Scope, record: CommandRecord) -> Op[list[Reason]]:
    reasons: list[Reason] = []
    now = as_datetime((yield from scope.store.now()))
    stats = yield from scope.store.stats(record.domain, 1)
    if stats.paused:
        because = f": {stats.paused_reason}" if stats.paused_reason else ""
        reasons.append(Reason("PAUSED", f"domain {record.domain!r} is paused{because}"))
    if record.due_at > now:
        reasons.append((yield from _why_later(scope, record)))
    serving = yield from _who_can(scope, record)
    if isinstance(serving, Reason):
        reasons.append(serving)
    if record.expires_at is not None and record.expires_at <= now:
        ends = f"it expired at {_moment(record.expires_at)}, and ends when a worker comes to it"
        reasons.append(Reason("EXPIRED", ends))
    elif record.due_at <= now:
        behind = yield from _why_behind(scope, record)
        # That its turn comes with a claim is true only where a worker claims it.
        reasons += [one for one in behind if one.code != "HELD" or not isinstance(serving, Reason)]
    if not reasons and not isinstance(serving, Reason):
        reasons.append(_why_unclaimed(record, serving, now, stats.running))
    return reasons


def _why_unclaimed(
    record: CommandRecord, serving: list[WorkerInfo], now: datetime, running: int
) -> Reason:
    """Nothing blocks it, and workers are there."""
    slots = sum(worker.concurrency for worker in serving)
    who = "the live worker" if len(serving) == 1 else f"{len(serving)} live workers"
    if running >= slots:
        return Reason("BUSY", f"it is next, and all {slots} slots of {who} are taken")
    if now - record.due_at > UNCLAIMED_AFTER:
        seconds = int((now - record.due_at).total_seconds())
        text = (
            f"it has been ready for {seconds} s, and {who} did not take it: a handler may block the "
            "event loop, or the worker drains; look at its log and its probe /readyz"
        )
        return Reason("UNCLAIMED", text)
    return Reason("NEXT", "nothing is in its way: it is next")


def _why_later(scope: Scope, record: CommandRecord) -> Op[Reason]:
    """It is not due: as was asked for, or because of what happened the last time."""
    due = _moment(record.due_at)
    trail = yield from scope.store.audit_trail(record.command_id, record.domain)
    last = trail[-1] if trail else None
    if last is not None and last.event_type is AuditEventType.RELEASED:
        reason = str(last.details.get("reason"))
        target = last.details.get("breaker")
        if isinstance(target, str):
            breaker = yield from get_breaker(scope, target)
            if breaker is None or breaker.state is not BreakerState.CLOSED:
                return Reason("BREAKER_OPEN", f"the breaker of {target!r} is open until {due}")
            reason = f"the breaker of {target!r} was open"
        return Reason("SCHEDULED", f"it was put off until {due}: {reason}")
    if record.attempts and record.error is not None:
        failed = f"attempt {record.attempts} failed with {record.error_code}"
        return Reason("SCHEDULED", f"{failed}, the next one is due at {due}")
    return Reason("SCHEDULED", f"it is due at {due}")


def _who_can(scope: Scope, record: CommandRecord) -> Op[list[WorkerInfo] | Reason]:
    """The live workers that may take it, or what they lack."""
    workers = yield from list_workers(scope)
    serving = [worker for worker in workers if record.domain in worker.domains]
    if not serving:
        return Reason("NO_WORKER", f"no live worker serves domain {record.domain!r}")
    tagged = [worker for worker in serving if set(record.requires) <= set(worker.tags)]
    if not tagged:
        tags = ", ".join(record.requires)
        return Reason("NO_TAGS", f"{_none_of(serving)} has the tags it requires: {tags}")
    wanted = (record.domain, record.command_type)
    able = [w for w in tagged if w.processes or wanted in w.command_types]
    if not able:
        who = f"{_none_of(tagged)} with the tags it requires" if record.requires else _none_of(tagged)
        hint = yield from _similar(scope, record, tagged)
        return Reason("NO_HANDLER", f"{who} has a handler for {record.command_type!r}{hint}")
    return [worker for worker in able if worker.claims] or _why_quiet(able)


def _similar(scope: Scope, record: CommandRecord, serving: list[WorkerInfo]) -> Op[str]:
    """A type that is much like the one without a handler: it may be misspelt."""
    handled = {
        name for worker in serving for domain, name in worker.command_types if domain == record.domain
    }
    near = get_close_matches(record.command_type, sorted(handled), 1)
    if near:
        return f"; is it {near[0]!r}, which has one?"
    recent = yield from query_commands(scope, domain=record.domain, limit=RECENT)
    sent = {one.command_type for one in recent} - {record.command_type}
    near = get_close_matches(record.command_type, sorted(sent), 1)
    return f"; is it {near[0]!r}, which was sent recently?" if near else ""


def _why_quiet(able: list[WorkerInfo]) -> Reason:
    """All that could take it are quiet or stop."""
    states = {worker.requested.state for worker in able} | {worker.state for worker in able}
    is_quiet = WorkerState.QUIET in states
    word = "quiet" if is_quiet else "stopping"
    word += " or stopping" if is_quiet and WorkerState.STOPPING in states else ""
    asked = [one for w in able for one in (w.requested.quiet, w.requested.stop) if one is not None]
    last = max(asked, key=lambda one: one.at, default=None)
    by = f" (asked by {last.actor} at {_moment(last.at)})" if last else ""
    many = f"all {len(able)} workers that could run it are"
    who = "the worker that could run it is" if len(able) == 1 else many
    return Reason("QUIET" if is_quiet else "STOPPING", f"{who} {word}{by}")


def _none_of(serving: list[WorkerInfo]) -> str:
    """The beginning of what all the workers lack."""
    return f"none of {len(serving)} live workers" if len(serving) > 1 else "no live worker"


def _why_behind(scope: Scope, record: CommandRecord) -> Op[list[Reason]]:
    """It is due, and others come first."""
    held = yield from scope.store.held_at(record.domain, record.sequence)
    if held is not None:
        return [(yield from _why_held(scope, record, held))]
    ahead = yield from scope.store.count_ahead(
        record.domain, record.priority, record.sequence, AHEAD_MAX
    )
    if not ahead:
        return []
    more = "at least " if ahead >= AHEAD_MAX else ""
    are = "command is" if ahead == 1 else "commands are"
    return [Reason("AHEAD", f"{more}{ahead} {are} ahead of it")]


def _why_held(scope: Scope, record: CommandRecord, held: BlockedAt) -> Op[Reason]:
    limits = yield from scope.store.limits(record.domain)
    limit = limit_at({limit.gate: limit for limit in limits}, record.domain, held.gate)
    full = limit.concurrency is not None and held.running >= limit.concurrency
    if held.gate.startswith(KEY_PREFIX) and full and limit.concurrency == 1:
        return Reason("GROUP_BLOCKED", f"its group {record.group_key!r} is blocked by {held.holder}")
    if full or limit.rate is not None:
        return Reason("LIMIT_REACHED", f"a limit is reached: {limit}")
    return Reason("HELD", "its turn comes with one of the next claims")


def _why_not_waiting(record: CommandRecord) -> Reason:
    error = f"{record.error_code}: {record.error_message}" if record.error else None
    if record.status is CommandStatus.IN_PROGRESS:
        since = _moment(record.started_at) if record.started_at else "just now"
        text = f"it has been running since {since} on {record.worker}, attempt {record.attempts}"
        return Reason("RUNNING", text)
    ended = _moment(record.finished_at) if record.finished_at else "an unknown time"
    because = error or record.reason
    if record.status is PARKED:
        tries = f"{record.attempts} attempt{'' if record.attempts == 1 else 's'}"
        return Reason("PARKED", f"parked for an operator at {ended} after {tries}: {because}")
    assert record.status in FINAL
    return Reason("ENDED", f"{record.status} at {ended}" + (f": {because}" if because else ""))


def _moment(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
