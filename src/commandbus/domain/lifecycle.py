"""All states of a command and all transitions between them.

Whatever decides about states lives here, as a table; engines ask it, and the diagram in
docs/architecture.md is generated from it (`python -m commandbus.domain.lifecycle`).
"""

from __future__ import annotations

from enum import StrEnum
from typing import NoReturn

from commandbus.errors import InvalidOperationError


class CommandStatus(StrEnum):
    """Where a command stands. COMPLETED, FAILED and CANCELED are final."""

    PENDING = "PENDING"
    IN_PROGRESS = "IN_PROGRESS"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELED = "CANCELED"
    IN_TROUBLESHOOTING_QUEUE = "IN_TROUBLESHOOTING_QUEUE"


class Transition(StrEnum):
    """What can happen to a command."""

    CLAIM = "claim"
    COMPLETE = "complete"
    REJECT = "reject"
    RETRY = "retry"
    RELEASE = "release"
    LOSE = "lose"
    PARK = "park"
    CANCEL = "cancel"
    EXPIRE = "expire"
    OPERATOR_RETRY = "operator_retry"
    OPERATOR_CANCEL = "operator_cancel"
    OPERATOR_COMPLETE = "operator_complete"


class ReplyOutcome(StrEnum):
    """The outcome that the sender of a command gets."""

    SUCCESS = "SUCCESS"
    FAILED = "FAILED"
    CANCELED = "CANCELED"


_S, _T = CommandStatus, Transition
PARKED = CommandStatus.IN_TROUBLESHOOTING_QUEUE
FINAL = frozenset({_S.COMPLETED, _S.FAILED, _S.CANCELED})

TRANSITIONS: dict[tuple[CommandStatus, Transition], CommandStatus] = {
    (_S.PENDING, _T.CLAIM): _S.IN_PROGRESS,
    (_S.PENDING, _T.CANCEL): _S.CANCELED,
    (_S.PENDING, _T.EXPIRE): _S.CANCELED,
    (_S.PENDING, _T.PARK): PARKED,
    (_S.IN_PROGRESS, _T.COMPLETE): _S.COMPLETED,
    (_S.IN_PROGRESS, _T.REJECT): _S.FAILED,
    (_S.IN_PROGRESS, _T.RETRY): _S.PENDING,
    (_S.IN_PROGRESS, _T.RELEASE): _S.PENDING,
    (_S.IN_PROGRESS, _T.LOSE): _S.PENDING,
    (_S.IN_PROGRESS, _T.PARK): PARKED,
    (_S.IN_PROGRESS, _T.CANCEL): _S.CANCELED,
    (PARKED, _T.CANCEL): _S.CANCELED,
    (PARKED, _T.OPERATOR_RETRY): _S.PENDING,
    (PARKED, _T.OPERATOR_CANCEL): _S.CANCELED,
    (PARKED, _T.OPERATOR_COMPLETE): _S.COMPLETED,
}


def after(status: CommandStatus, transition: Transition) -> CommandStatus:
    """The status that follows, or InvalidOperationError naming what is possible instead."""
    try:
        return TRANSITIONS[status, transition]
    except KeyError:
        possible = sorted(str(then) for (before, then) in TRANSITIONS if before is status)
        raise InvalidOperationError(
            f"Cannot {transition.removeprefix('operator_')} a command that is {status}; "
            + (f"possible now: {', '.join(possible)}." if possible else "its outcome is final.")
        ) from None


class Cancellation(StrEnum):
    """What `cancel` did."""

    CANCELED = "CANCELED"
    """The command waited, and has ended."""
    CANCELED_PARKED = "CANCELED_PARKED"
    """The command was parked for an operator, and has ended."""
    STOP_REQUESTED = "STOP_REQUESTED"
    """The command runs: its handler is asked to stop, and decides how it ends."""


def refuse_cancel(status: CommandStatus) -> NoReturn:
    """Why a command cannot be canceled as one that waits."""
    cure = "its outcome is final." if status in FINAL else "it does not wait."
    raise InvalidOperationError(f"Cannot cancel a command that is {status}: {cure}")


def refuse_edit(status: CommandStatus) -> NoReturn:
    """Why due time and priority of a command cannot be changed."""
    advice = {
        CommandStatus.IN_PROGRESS: "it runs already.",
        PARKED: "it is parked; operator_retry sends it back to work.",
    }
    cure = advice.get(status, "it has ended; resend sends it again.")
    raise InvalidOperationError(
        f"Only a waiting command can be edited, and this one is {status}: {cure}"
    )


def diagram() -> str:
    """The table as a Mermaid state diagram."""
    lines = ["stateDiagram-v2", f"    [*] --> {_S.PENDING}: send"]
    lines += [f"    {before} --> {then}: {what}" for (before, what), then in TRANSITIONS.items()]
    lines += [f"    {status} --> [*]" for status in CommandStatus if status in FINAL]
    return "\n".join(lines)


if __name__ == "__main__":
    print(diagram())
