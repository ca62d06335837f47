"""The audit, replayed: from the first event to the last it must lead to what is stored."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tests.chaos.case import Case, Final, Trace, Violation

PARKED = "IN_TROUBLESHOOTING_QUEUE"


@dataclass
class State:
    """A command as its trail tells it."""

    status: str = "nothing"
    attempts: int = 0
    crashes: int = 0
    lost: bool = False
    """Its worker was lost just now."""


MOVES: dict[str, tuple[set[str], str]] = {
    "SENT": ({"nothing"}, "PENDING"),
    "RECEIVED": ({"PENDING"}, "IN_PROGRESS"),
    "FAILED": ({"IN_PROGRESS"}, "PENDING"),
    "RETRY_SCHEDULED": ({"PENDING"}, "PENDING"),
    "RELEASED": ({"IN_PROGRESS"}, "PENDING"),
    "WORKER_LOST": ({"IN_PROGRESS"}, "PENDING"),
    "COMPLETED": ({"IN_PROGRESS"}, "COMPLETED"),
    "BUSINESS_RULE_FAILED": ({"IN_PROGRESS"}, "FAILED"),
    "MOVED_TO_TSQ": ({"IN_PROGRESS"}, PARKED),
    "CANCELED": ({"PENDING", "IN_PROGRESS", PARKED}, "CANCELED"),
    "EXPIRED": ({"PENDING"}, "CANCELED"),
    "OPERATOR_RETRY": ({PARKED}, "PENDING"),
    "OPERATOR_CANCEL": ({PARKED}, "CANCELED"),
    "OPERATOR_COMPLETE": ({PARKED}, "COMPLETED"),
}
"""From which states an event may happen, and what it leads to."""
REQUEST = "CANCEL_REQUESTED"
"""Changes no state. Its row is written during a run, the row of the run when it has ended: the order
of rows says nothing about the two."""


def replay(trail: tuple[Trace, ...]) -> tuple[State, list[str]]:
    """What a trail leads to, and what in it cannot be."""
    state, problems = State(), []
    for event in trail:
        if event.kind == REQUEST:
            continue
        before, after = MOVES.get(event.kind, (set[str](), state.status))
        parked_for_crashes = event.kind == "MOVED_TO_TSQ" and state.lost
        if state.status not in before and not parked_for_crashes:
            problems.append(f"{event.kind} of a command that was {state.status}")
        state.attempts += {"RECEIVED": 1, "RELEASED": -1}.get(event.kind, 0)
        if event.kind == "OPERATOR_RETRY":
            state.attempts = state.crashes = 0
        state.lost = event.kind == "WORKER_LOST"
        state.crashes += state.lost
        state.status = after
    return state, problems


def the_audit_tells_the_state(case: Case) -> Iterator[Violation]:
    for final, *_ in case.finals.values():
        state, problems = replay(final.trail)
        told = (state.status, state.attempts, state.crashes)
        stored = (final.status, final.attempts, final.crashes)
        if told != stored:
            problems.append(f"the audit leads to {told}, and {stored} is stored")
        claims = sum(not case.forgotten(claim) for claim in case.claims[final.id])
        received = sum(trace.kind == "RECEIVED" for trace in final.trail)
        if received < claims:
            problems.append(f"claimed {claims} times, but received {received} times")
        for problem in problems:
            yield Violation("P14", problem, (*case.story(final.id), *trail_of(final)))


def trail_of(final: Final) -> tuple[str, ...]:
    return tuple(f"{trace.at:.6f} {trace.kind} {_brief(trace.details)}" for trace in final.trail[-12:])


def _brief(details: dict[str, object]) -> dict[str, object]:
    wanted = ("attempt", "worker", "lease_id", "crashes", "reason", "retry_in")
    return {name: details[name] for name in wanted if name in details}
