"""A working copy of one process: what is decided about it, and what that leads to."""

from __future__ import annotations

from typing import Any, NoReturn
from uuid import UUID

import msgspec

from commandbus.domain.command import SendRequest
from commandbus.domain.failure import classify
from commandbus.domain.lifecycle import ReplyOutcome
from commandbus.domain.process.declaration import (
    Action,
    Process,
    StartProcess,
    Step,
    WaitFor,
    next_names,
)
from commandbus.domain.process.values import (
    ENDED,
    ProcessError,
    ProcessEventType,
    ProcessStatus,
    Progress,
    StepKind,
    StepRun,
    StepStatus,
    run_id,
)
from commandbus.domain.reply import Reply


class DecisionError(Exception):
    """A method of a declaration raised, or returned what cannot be carried out."""

    def __init__(self, step: str, code: str, message: str) -> None:
        super().__init__(f"{step}: [{code}] {message}")
        self.step, self.code, self.message = step, code, message


class Note(msgspec.Struct, frozen=True):
    """One event for the audit."""

    kind: ProcessEventType
    step: str | None = None
    command_id: UUID | None = None
    details: dict[str, Any] = {}


class WorkingCopy:
    """A process on its way from one moment to the next. `elapsed` is the time since its start, in
    microseconds."""

    def __init__(
        self,
        declaration: type[Process[Any]],
        process_id: UUID,
        status: ProcessStatus,
        state: Any,
        progress: Progress,
        error: ProcessError | None,
        elapsed: int,
    ) -> None:
        self.declaration = declaration
        self._methods = declaration()
        self.process_id = process_id
        self.status = status
        self.state = state
        self.progress = progress
        self.error = error
        self._elapsed = elapsed
        self._begun = 0
        self.cause: UUID | None = None
        """The command that led to this decision, and is the cause of what it sends."""
        self.sends: list[tuple[StepRun, SendRequest]] = []
        self.starts: list[tuple[StepRun, StartProcess]] = []
        self.cancels: list[StepRun] = []
        """Processes of this one that are to be called off, and then tell of their end."""
        self.revokes: list[StepRun] = []
        """Commands whose results are not needed any more, or that are better not begun."""
        self.notes: list[Note] = []

    def next_due(self) -> int | None:
        """When time matters next, in microseconds after the start."""
        progress = self.progress
        if self.status in ENDED or progress.halted:
            return None
        moments = [run.due for run in progress.pending() if run.due is not None]
        if progress.ending is None and progress.deadline is not None:
            moments.append(progress.deadline)
        return min(moments, default=None)

    def _run(
        self, name: str, step: str, action: Action, timeout: int | None, undoes: int | None = None
    ) -> StepRun | None:
        """Begin what a method wants to be done; None when it wants nothing."""
        if action is None:
            return None
        number = self.progress.next_number
        run = StepRun(
            number,
            name,
            StepKind.COMMAND,
            self._run_id(number),
            due=None if timeout is None else self._elapsed + timeout,
            timeout=timeout,
            undoes=undoes,
        )
        match action:
            case SendRequest():
                self._send(run, step, action)
            case WaitFor(signal):
                run.kind, run.target = StepKind.SIGNAL, signal
            case StartProcess(process):
                run.kind, run.target = StepKind.PROCESS, process.reply_to
                run.command_type = process.process_type
                self.starts.append((run, action))
            case _:
                refuse(step, "NO_ACTION", f"It returned {action!r}: return a SendRequest, a WaitFor, "
                        "a StartProcess or None.")  # fmt: skip
        self.progress.runs.append(run)
        sent = ProcessEventType.STEP_SENT if undoes is None else ProcessEventType.COMPENSATION_SENT
        waiting = run.kind is StepKind.SIGNAL
        self._note(ProcessEventType.STEP_WAITING if waiting else sent, run)
        return run

    def _run_id(self, number: int) -> UUID:
        return run_id(self.progress.seed or self.process_id, number)

    def _send(self, run: StepRun, step: str, action: SendRequest) -> None:
        hooked = self._ask(step, self.declaration.before_send, step, action)
        if not isinstance(hooked, SendRequest):
            refuse(step, "NO_ACTION", f"before_send returned {hooked!r}, not a SendRequest.")
        if hooked.batch_id is not None:
            refuse(step, "BATCH_ID", "A step's command cannot be in a batch; its process can.")
        for option in ("unique_key", "unique", "sender"):
            if getattr(hooked, option) is not None:
                refuse(
                    step,
                    option.upper(),
                    f"A step's command has no {option}: its process waits for the reply of this very "
                    f"command. Remove it with .options({option}=None).",
                )
        run.target, run.command_type = hooked.domain, hooked.command_type
        headers, trace = hooked.headers or {}, self.progress.flow.trace
        if trace and "traceparent" not in headers:
            headers = {**trace, **headers}
        request = msgspec.structs.replace(
            hooked,
            command_id=run.id,
            correlation_id=self.process_id,
            causation_id=self.cause if hooked.causation_id is None else hooked.causation_id,
            reply_to=self.declaration.reply_to,
            headers=headers | {"process_type": self.declaration.process_type},
        )
        self.sends.append((run, request))

    def _ask(self, step: str, method: Any, *arguments: Any) -> Any:
        """Call a method of the declaration with the state."""
        try:
            return method(self._methods, self.state, *arguments)
        except Exception as error:  # the user's own code; an operator is shown what it raised
            failure = classify(error)
            raise DecisionError(step, failure.code, failure.message) from error

    def _as_names(self, declared: Step, answer: Any) -> tuple[str, ...] | None:
        try:
            return next_names(answer)
        except ValueError as error:
            raise DecisionError(declared.name, "NO_STEP", str(error)) from error

    def _done(self, run: StepRun, status: StepStatus) -> None:
        run.status = status
        run.rank = max(other.rank for other in self.progress.runs) + 1

    def _signal_reply(self, run: StepRun, data: Any) -> Reply:
        return Reply(run.id, "", run.target, self.process_id, ReplyOutcome.SUCCESS, data)

    def _timeout_reply(self, run: StepRun) -> Reply:
        return Reply(
            run.id,
            run.target,
            run.command_type,
            self.process_id,
            ReplyOutcome.FAILED,
            error_code="STEP_TIMEOUT",
            error_message=f"{run.name} was not finished after {(run.timeout or 0) / 1_000_000:g} s.",
        )

    def _note(
        self,
        kind: ProcessEventType,
        run: StepRun | None = None,
        details: dict[str, Any] | None = None,
        *,
        step: str | None = None,
        command_id: UUID | None = None,
    ) -> None:
        name = run.name if run else step
        self.notes.append(Note(kind, name, run.id if run else command_id, details or {}))


def refuse(step: str, code: str, message: str) -> NoReturn:
    raise DecisionError(step, code, message)
