"""The state of a process, and its events."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID, uuid5

import msgspec


class ProcessStatus(StrEnum):
    """Where a process stands. COMPLETED, COMPENSATED, FAILED and CANCELED are final.

    FAILED means that it failed before anything was done that has to be undone, COMPENSATED that
    everything done was undone, CANCELED that it was called off, and what was done is undone.
    """

    RUNNING = "RUNNING"
    COMPENSATING = "COMPENSATING"
    WAITING_FOR_TROUBLESHOOTING = "WAITING_FOR_TROUBLESHOOTING"
    COMPLETED = "COMPLETED"
    COMPENSATED = "COMPENSATED"
    FAILED = "FAILED"
    CANCELED = "CANCELED"


ENDED = frozenset(
    {
        ProcessStatus.COMPLETED,
        ProcessStatus.COMPENSATED,
        ProcessStatus.FAILED,
        ProcessStatus.CANCELED,
    }
)


class StepStatus(StrEnum):
    """How far one run of a step is."""

    PENDING = "PENDING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELED = "CANCELED"
    TIMED_OUT = "TIMED_OUT"
    SKIPPED = "SKIPPED"


class StepKind(StrEnum):
    """What a step waits for: the reply to a command, the end of another process, or a signal."""

    COMMAND = "command"
    PROCESS = "process"
    SIGNAL = "signal"


class ProcessEventType(StrEnum):
    STARTED = "STARTED"
    STEP_SENT = "STEP_SENT"
    STEP_WAITING = "STEP_WAITING"
    STEP_COMPLETED = "STEP_COMPLETED"
    STEP_FAILED = "STEP_FAILED"
    STEP_CANCELED = "STEP_CANCELED"
    STEP_TIMED_OUT = "STEP_TIMED_OUT"
    STEP_SKIPPED = "STEP_SKIPPED"
    STEP_PARKED = "STEP_PARKED"
    STEP_RESUMED = "STEP_RESUMED"
    COMPENSATING = "COMPENSATING"
    COMPENSATION_SENT = "COMPENSATION_SENT"
    COMPENSATION_COMPLETED = "COMPENSATION_COMPLETED"
    COMPENSATION_FAILED = "COMPENSATION_FAILED"
    COMPENSATION_SKIPPED = "COMPENSATION_SKIPPED"
    SIGNAL_RECEIVED = "SIGNAL_RECEIVED"
    REPLY_IGNORED = "REPLY_IGNORED"
    DECISION_FAILED = "DECISION_FAILED"
    TIMED_OUT = "TIMED_OUT"
    CANCEL_REQUESTED = "CANCEL_REQUESTED"
    OPERATOR_RETRY = "OPERATOR_RETRY"
    OPERATOR_SKIP = "OPERATOR_SKIP"
    COMPLETED = "COMPLETED"
    COMPENSATED = "COMPENSATED"
    FAILED = "FAILED"
    CANCELED = "CANCELED"


class ProcessError(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a process did not go on as planned."""

    code: str
    message: str = ""
    step: str | None = None
    details: Any = None


class StepRun(msgspec.Struct, omit_defaults=True):
    """One run of a step. `due` is its deadline and `undoes` the number of the run that it
    compensates; `rank` counts completions, so that they can be undone in reverse."""

    number: int
    name: str
    kind: StepKind
    id: UUID
    status: StepStatus = StepStatus.PENDING
    target: str = ""
    """Domain of the command, reply queue of the process, or name of the signal."""
    command_type: str = ""
    due: int | None = None
    """Microseconds after the start of the process."""
    timeout: int | None = None
    undoes: int | None = None
    rank: int = 0
    called_off: bool = False
    """Whether the process that the step runs was asked to end: it looks here before it does."""


class Parent(msgspec.Struct, frozen=True):
    """The process that started another one as a step, and gets a reply at its end."""

    process_id: UUID
    reply_to: str
    run_id: UUID


class Flow(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a process continues that a handler or another process started."""

    correlation_id: UUID | None = None
    causation_id: UUID | None = None
    """The command whose handler started it, or the process of which it is a step."""
    trace: dict[str, str] = {}
    """The trace headers of its commands."""


class Progress(msgspec.Struct, omit_defaults=True):
    """How far a process is; everything that its next decision needs beside its state."""

    runs: list[StepRun] = []
    arrived: dict[str, list[str]] = {}
    """Steps that have led to a join that still waits for others."""
    signals: list[tuple[str, Any]] = []
    """Signals that came before a step waited for them."""
    ending: ProcessStatus | None = None
    """How it will end, once it does not go forward any more."""
    stuck: int | None = None
    """The run of a compensation that failed and waits for an operator."""
    halted: bool = False
    """A decision could not be made; nothing happens by itself until an operator retries."""
    parent: Parent | None = None
    deadline: int | None = None
    """Microseconds after the start."""
    canceling: bool = False
    seed: UUID | None = None
    """What the ids of its commands are made from; senders know the id of the process, not this."""
    flow: Flow = Flow()

    @property
    def next_number(self) -> int:
        """The number of the next run. The newest one is never forgotten."""
        return self.runs[-1].number + 1 if self.runs else 1

    def pending(self) -> Iterator[StepRun]:
        return (run for run in self.runs if run.status is StepStatus.PENDING)


class ProcessStep(msgspec.Struct, frozen=True):
    """One run of a step, for readers. `command_id` is that of its command or its own process."""

    name: str
    kind: StepKind
    status: StepStatus
    command_id: UUID
    domain: str
    command_type: str
    due_at: datetime | None
    compensates: str | None
    parked: bool = False


class ProcessRecord(msgspec.Struct, frozen=True):
    """Everything the bus knows about a process at one moment. `state` is plain JSON values."""

    process_id: UUID
    process_type: str
    status: ProcessStatus
    state: Any
    steps: list[ProcessStep]
    error: ProcessError | None
    reply_to: str
    created_at: datetime
    updated_at: datetime
    """When a step last began or ended. That the command of a step was parked or retried is in the trail
    of the process, at its own time."""
    finished_at: datetime | None
    due_at: datetime | None
    batch_id: UUID | None
    parent_id: UUID | None
    version: int
    sequence: int
    compensation_failed: bool = False
    """Whether it waits because a compensation failed: then `skip_compensation` lets it go on."""
    correlation_id: UUID | None = None
    """Of the command whose handler started it; its own id where a program did. The commands of its
    steps have the id of the process as theirs."""
    causation_id: UUID | None = None
    """The command whose handler started it, or the process of which it is a step."""

    @property
    def current_steps(self) -> list[str]:
        """The names of the steps that it waits for."""
        return [step.name for step in self.steps if step.status is StepStatus.PENDING]


class ProcessCount(msgspec.Struct, frozen=True):
    """How many processes of a type are in a status."""

    process_type: str
    status: ProcessStatus
    count: int


class ProcessEvent(msgspec.Struct, frozen=True):
    """One thing that happened to a process. Times are the store's clock."""

    process_id: UUID
    event_type: ProcessEventType
    timestamp: datetime
    step: str | None
    command_id: UUID | None
    details: dict[str, Any]


def run_id(seed: UUID, number: int) -> UUID:
    """The id of a run's command: the same however often it is decided, so it cannot be sent twice. A
    program that could compute it would send a command of its own with it, and the step could not be
    sent."""
    return uuid5(seed, str(number))
