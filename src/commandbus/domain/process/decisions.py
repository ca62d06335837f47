"""The decisions of a process: pure, without waiting, clock or store.

A `Decision` is a working copy of one process. An event is applied to it, and it collects what has to be
done: commands to send, processes to start, commands to call off, notes for the audit. When a method of
the declaration cannot decide, DecisionError is raised and the working copy is thrown away.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any
from uuid import UUID

from commandbus.domain.lifecycle import ReplyOutcome
from commandbus.domain.process.declaration import (
    END,
    Action,
    Step,
)
from commandbus.domain.process.values import (
    ENDED,
    ProcessError,
    ProcessEventType,
    ProcessStatus,
    StepKind,
    StepRun,
    StepStatus,
)
from commandbus.domain.process.work import WorkingCopy, refuse
from commandbus.domain.reply import Reply

BEGINS_MAX = 100
"""Steps begun by one event: more means that steps without anything to do follow each other for ever."""
SIGNALS_KEPT_MAX = 100
RUNS_KEPT_MAX = 100
"""Runs of steps that a process remembers; more only where they may have to be undone."""
RUNS_MAX = 10_000
"""Runs that may have to be undone: a process that has more of them begins no further step."""

UNDONE = frozenset({StepStatus.COMPLETED, StepStatus.SKIPPED, StepStatus.CANCELED})
DONE = frozenset({StepStatus.COMPLETED, StepStatus.TIMED_OUT, StepStatus.CANCELED})
"""What is undone, if it has a rank: of canceled steps those that may have taken effect."""


class Decision(WorkingCopy):
    """The events of a process; each is applied to a working copy of it."""

    def start(self) -> None:
        """It begins with its first step."""
        self.cause = self.progress.flow.causation_id
        self.progress.deadline = self.declaration.deadline_us
        self._note(ProcessEventType.STARTED)
        self._begin(self.declaration.first_step)
        self._go_on()

    def replied(self, reply: Reply, *, in_doubt: bool = False) -> None:
        """A command or a process that a step waits for has ended. With `in_doubt` its command was
        canceled after it had begun, and may have taken effect: it is undone like one that did."""
        run = next((run for run in self.progress.runs if run.id == reply.command_id), None)
        ignored = self._why_ignored(run)
        if ignored or run is None:
            details = {"reason": ignored, "outcome": str(reply.outcome)}
            self._note(ProcessEventType.REPLY_IGNORED, run, details, command_id=reply.command_id)
            return
        self.cause = run.id
        self._resume()
        if run.undoes is not None:
            self._compensation_replied(run, reply)
        elif reply.outcome is ReplyOutcome.SUCCESS:
            self._succeeded(run, reply)
        else:
            failed = reply.outcome is ReplyOutcome.FAILED
            run.status = StepStatus.FAILED if failed else StepStatus.CANCELED
            kind = ProcessEventType.STEP_FAILED if failed else ProcessEventType.STEP_CANCELED
            doubt = {"may_have_taken_effect": True} if in_doubt else {}
            if in_doubt:
                self._done(run, run.status)
            self._note(kind, run, _told(reply) | doubt)
            self._refused(run, reply)
        self._go_on()

    def ignored(self, reason: str, said: dict[str, Any], command_id: UUID | None) -> None:
        """Something came that nothing in the store confirms."""
        details = {"reason": reason} | said
        self._note(ProcessEventType.REPLY_IGNORED, details=details, command_id=command_id)

    def signaled(self, name: str, data: Any) -> None:
        """A signal arrives; one that no step waits for yet is kept."""
        if self.status in ENDED or self.progress.ending is not None:
            details = {"reason": "it does not go forward any more", "signal": name}
            self._note(ProcessEventType.REPLY_IGNORED, details=details)
            return
        self._note(ProcessEventType.SIGNAL_RECEIVED, details={"signal": name})
        for run in self.progress.pending():
            if run.kind is StepKind.SIGNAL and run.target == name:
                self._resume()
                self._succeeded(run, self._signal_reply(run, data))
                self._go_on()
                return
        if len(self.progress.signals) >= SIGNALS_KEPT_MAX:
            refuse(name, "TOO_MANY_SIGNALS", f"{SIGNALS_KEPT_MAX} signals wait for a step already.")
        self.progress.signals.append((name, data))

    def time_passed(self, restarted: Mapping[UUID, int] = MappingProxyType({})) -> None:
        """Deadlines may have passed. `restarted` says of steps when their time began once more."""
        progress = self.progress
        if self.status in ENDED or progress.halted:
            return
        if progress.ending is None and _passed(progress.deadline, self._elapsed):
            self._note(ProcessEventType.TIMED_OUT)
            for run in list(progress.pending()):
                self._give_up(run)
            self._fail(ProcessError("PROCESS_TIMEOUT", "The process was not finished in time."))
        for run in list(progress.pending()):
            if not _passed(run.due, self._elapsed):
                continue
            due = None if run.id not in restarted else restarted[run.id] + (run.timeout or 0)
            if due is not None and not _passed(due, self._elapsed):
                run.due = due
            elif run.kind is StepKind.PROCESS:
                # It undoes what it did and tells of its end, which is then the end of the step.
                run.due = None
                self._note(ProcessEventType.STEP_TIMED_OUT, run)
                self._call_off(run)
            else:
                self._give_up(run)
                self._refused(run, self._timeout_reply(run))
        self._go_on()

    def cancel(self, reason: str, actor: str | None = None) -> None:
        """The process is canceled: no new step begins, and completed steps are compensated."""
        if self.status in ENDED:
            self._note(ProcessEventType.REPLY_IGNORED, details={"reason": "it has ended"})
            return
        details = {"reason": reason} | ({"actor": actor} if actor else {})
        self._note(ProcessEventType.CANCEL_REQUESTED, details=details)
        self._resume()
        if self.progress.ending is None:
            self.progress.canceling = True
            pending = [r for r in self.progress.pending() if r.kind is StepKind.COMMAND]
            self.revokes += pending
            self._fail(ProcessError("CANCELED", reason))
        self._go_on()

    def retry(self, actor: str | None = None) -> None:
        """An operator lets it try again what it could not do."""
        self._note(ProcessEventType.OPERATOR_RETRY, details={"actor": actor})
        self.progress.stuck = None
        self._resume()
        self.time_passed()

    def skip(self, reason: str, actor: str | None = None) -> None:
        """An operator vouches for a compensation that failed; it goes on with the next."""
        self._note(ProcessEventType.OPERATOR_SKIP, details={"actor": actor, "reason": reason})
        for run in self.progress.runs:
            if run.number == self.progress.stuck:
                run.status = StepStatus.SKIPPED
        self.progress.stuck = None
        self._resume()
        self._go_on()

    def outcome(self) -> Any:
        """The result that a parent process receives when this one succeeds."""
        return self._ask("result", self.declaration.result)

    # Forward.

    def _why_ignored(self, run: StepRun | None) -> str | None:
        if self.status in ENDED:
            return "the process has ended"
        if run is None:
            return "no step sent this command"
        if run.status is StepStatus.TIMED_OUT:
            return "it came too late"
        return None if run.status is StepStatus.PENDING else "the step has ended"

    def _resume(self) -> None:
        """Something happens again to a process that waited for an operator."""
        self.progress.halted = False
        if self.progress.stuck is None and self.status is ProcessStatus.WAITING_FOR_TROUBLESHOOTING:
            forward = self.progress.ending is None
            self.status = ProcessStatus.RUNNING if forward else ProcessStatus.COMPENSATING

    def _succeeded(self, run: StepRun, reply: Reply) -> None:
        self._done(run, StepStatus.COMPLETED)
        self._note(ProcessEventType.STEP_COMPLETED, run)
        if self.progress.ending is None:
            declared = self.declaration.steps.get(run.name)
            if declared is None:
                refuse(run.name, "STEP_UNKNOWN", "The declaration has no such step (any more).")
            answer = self._ask(run.name, declared.on_reply, reply) if declared.on_reply else None
            self._follow(declared, answer)

    def _refused(self, run: StepRun, reply: Reply) -> None:
        """A step failed, was canceled or was not in time."""
        if self.progress.ending is not None:
            return
        declared = self.declaration.steps.get(run.name)
        if declared is not None and declared.on_failure is not None:
            names = self._as_names(declared, self._ask(run.name, declared.on_failure, reply))
            if names is not None:
                self._lead_to(declared, names, (*declared.or_else, *declared.then))
                return
        code = reply.error_code or ("CANCELED" if reply.outcome is ReplyOutcome.CANCELED else "FAILED")
        message = reply.error_message or reply.reason or ""
        self._fail(ProcessError(code, message, run.name, reply.error_details))

    def _follow(self, declared: Step, answer: Any) -> None:
        names = self._as_names(declared, answer)
        if names is None:
            names = declared.fork or declared.then
            choices = declared.declared_then or ()
            if len(choices) > 1:
                wanted = ", ".join(choices)
                refuse(declared.name, "NO_CHOICE", f"Its reply method must return one of {wanted}.")
        self._lead_to(declared, names, (*declared.fork, *declared.then))

    def _lead_to(self, declared: Step, names: tuple[str, ...], allowed: tuple[str, ...]) -> None:
        for name in names:
            if name == END:
                continue
            if name not in allowed:
                refuse(
                    declared.name,
                    "UNDECLARED_STEP",
                    f"It leads to {name!r}, which its declaration does not name.",
                )
            self._arrive(declared.name, name)

    def _arrive(self, source: str, name: str) -> None:
        joins = self.declaration.steps[name].joins
        if joins:
            arrived = self.progress.arrived.setdefault(name, [])
            arrived.append(source)
            if not set(joins) <= set(arrived):
                return
            del self.progress.arrived[name]
        self._begin(name)

    def _begin(self, name: str) -> None:
        self._begun += 1
        if self._begun > BEGINS_MAX:
            refuse(name, "ENDLESS", f"More than {BEGINS_MAX} steps would begin at once.")
        if len(self.progress.runs) >= RUNS_MAX:
            refuse(
                name,
                "TOO_MANY_STEPS",
                f"It has {RUNS_MAX} runs of steps that may have to be undone. Cancel the process, "
                "which undoes them, and start several shorter ones.",
            )
        declared = self.declaration.steps[name]
        action: Action = self._ask(name, declared.build)
        run = self._run(name, name, action, declared.timeout)
        if run is None:
            self._note(ProcessEventType.STEP_SKIPPED, step=name)
            self._follow(declared, None)
        elif run.kind is StepKind.SIGNAL:
            self._take_signal(run)

    def _take_signal(self, run: StepRun) -> None:
        """A signal may have come before its step."""
        for position, (name, data) in enumerate(self.progress.signals):
            if name == run.target:
                del self.progress.signals[position]
                self._succeeded(run, self._signal_reply(run, data))
                return

    # Backward.

    def _fail(self, error: ProcessError) -> None:
        """It does not go forward any more. What runs is awaited, since only then it is known what
        has to be undone."""
        self.error = error
        self.progress.ending = ProcessStatus.FAILED
        self.progress.arrived = {}
        self.status = ProcessStatus.COMPENSATING
        for run in self.progress.pending():
            if run.kind is StepKind.SIGNAL:
                run.status = StepStatus.CANCELED
            elif run.kind is StepKind.PROCESS:
                self._call_off(run)
        details = {"code": error.code, "message": error.message}
        self._note(ProcessEventType.COMPENSATING, step=error.step, details=details)

    def _call_off(self, run: StepRun) -> None:
        run.called_off = True
        self.cancels.append(run)

    def _give_up(self, run: StepRun) -> None:
        """A step is no longer awaited. Whether its command took effect is not known, so it is
        undone like one that did."""
        match run.kind:
            case StepKind.COMMAND:
                self._done(run, StepStatus.TIMED_OUT)
                self._note(ProcessEventType.STEP_TIMED_OUT, run)
                self.revokes.append(run)
            case StepKind.SIGNAL:
                run.status = StepStatus.TIMED_OUT
                self._note(ProcessEventType.STEP_TIMED_OUT, run)
            case StepKind.PROCESS:
                # Asked to end, and awaited: see `_fail`.
                return

    def _go_on(self) -> None:
        """After every event: end, wait, or undo the next."""
        self._forget_old_runs()
        progress = self.progress
        if self.status in ENDED:
            return
        if progress.ending is None:
            if any(progress.pending()):
                return
            if progress.arrived:
                name, arrived = next(iter(progress.arrived.items()))
                missing = set(self.declaration.steps[name].joins) - set(arrived)
                refuse(name, "JOIN_NOT_MET", f"Nothing runs that could lead from {missing} to it.")
            self._end(ProcessStatus.COMPLETED)
            return
        while progress.stuck is None and not any(progress.pending()):
            following = self._next_to_undo()
            if following is None:
                self._end(self._final_status())
                return
            run, declared = following
            assert declared.undo is not None
            name = declared.undo.__name__
            action: Action = self._ask(name, declared.undo)
            if self._run(name, name, action, None, run.number) is None:
                self._skip_undoing(run, name)

    def _forget_old_runs(self) -> None:
        """A process that loops must not grow with each turn: of the runs that have ended and are never
        to be undone, the oldest are forgotten. The audit keeps what happened."""
        runs = self.progress.runs
        excess = len(runs) - RUNS_KEPT_MAX
        if excess <= 0:
            return
        kept: list[StepRun] = []
        for run in runs[:-1]:
            if excess > 0 and run.status is not StepStatus.PENDING and not self._may_be_undone(run):
                excess -= 1
            else:
                kept.append(run)
        self.progress.runs = [*kept, runs[-1]]

    def _may_be_undone(self, run: StepRun) -> bool:
        declared = self.declaration.steps.get(run.name)
        return run.undoes is not None or declared is None or declared.undo is not None

    def _next_to_undo(self) -> tuple[StepRun, Step] | None:
        """The last step that was done, has a compensation, and is not undone yet."""
        runs = self.progress.runs
        undone = {run.undoes for run in runs if run.undoes and run.status in UNDONE}
        done = [run for run in runs if run.undoes is None and run.rank and run.status in DONE]
        for run in sorted(done, key=lambda run: -run.rank):
            declared = self.declaration.steps.get(run.name)
            if declared is not None and declared.undo is not None and run.number not in undone:
                return run, declared
        return None

    def _skip_undoing(self, run: StepRun, name: str) -> None:
        number = self.progress.next_number
        skipped = StepRun(
            number,
            name,
            StepKind.COMMAND,
            self._run_id(number),
            StepStatus.SKIPPED,
            undoes=run.number,
        )
        self.progress.runs.append(skipped)
        self._note(ProcessEventType.COMPENSATION_SKIPPED, skipped)

    def _compensation_replied(self, run: StepRun, reply: Reply) -> None:
        match reply.outcome:
            case ReplyOutcome.SUCCESS:
                run.status = StepStatus.COMPLETED
                self._note(ProcessEventType.COMPENSATION_COMPLETED, run)
            case ReplyOutcome.CANCELED:
                # A person has looked at it and decided that it is not needed.
                run.status = StepStatus.CANCELED
                self._note(ProcessEventType.COMPENSATION_SKIPPED, run, _told(reply))
            case ReplyOutcome.FAILED:
                run.status = StepStatus.FAILED
                self.progress.stuck = run.number
                self.status = ProcessStatus.WAITING_FOR_TROUBLESHOOTING
                self._note(ProcessEventType.COMPENSATION_FAILED, run, _told(reply))

    def _final_status(self) -> ProcessStatus:
        if self.progress.canceling:
            return ProcessStatus.CANCELED
        undone = any(run.undoes for run in self.progress.runs)
        return ProcessStatus.COMPENSATED if undone else ProcessStatus.FAILED

    def _end(self, status: ProcessStatus) -> None:
        self.status = status
        self._note(ProcessEventType(status))


def _passed(moment: int | None, elapsed: int) -> bool:
    return moment is not None and moment <= elapsed


def _told(reply: Reply) -> dict[str, Any]:
    """What the audit keeps of a reply that is no success."""
    details = {
        "code": reply.error_code,
        "message": reply.error_message,
        "details": reply.error_details,
        "reason": reply.reason,
    }
    return {key: value for key, value in details.items() if value is not None}
