"""What is left of a command whose subject asked to be forgotten: the same for every engine.

Ids, times, attempts, workers, outcomes and error codes stay; what the command carried, and what people
or exceptions said about it, does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import msgspec

from commandbus.domain.failure import Failure

ERASED = "erased"
MARKER = '{"erased":true}'
"""In place of a payload or a result, as JSON text."""

_KEPT = frozenset(
    {
        "attempt",
        "worker",
        "received_at",
        "retry_in",
        "breaker",
        "actor",
        "assignee",
        "after",
        "sent_to",
    }
)
REASONS = frozenset(
    {
        "EXPIRED",
        "REPLACED",
        "PERMANENT",
        "EXHAUSTED",
        "BACKOFF_FAILED",
        "RETRY_WINDOW",
        "TOTAL_TIMEOUT",
        "HANDLER_NOT_FOUND",
        "WORKER_LOST",
        "UNDECODABLE",
        "BROKEN_OUTCOME",
        "NOT_ROUTED",
        "DECISION_FAILED",
        "NEVER_FINISHED",
    }
)
"""What the bus itself gives as a reason."""


def erased_failure(failure: Failure) -> Failure:
    """The kind, the code and the place of an error; never its words."""
    return Failure(
        failure.kind,
        failure.code,
        ERASED,
        exception=failure.exception,
        frame=failure.frame,
        place=failure.place,
    )


def erased_reason(reason: str | None) -> str | None:
    """A reason that the bus gives stays; what a person wrote does not, in capitals either."""
    return reason if reason is None or reason in REASONS else ERASED


def erased_details(details: Mapping[str, Any]) -> dict[str, Any]:
    """What the audit keeps of an event; an entry that says it was erased is left alone."""
    if details.get(ERASED) is True:
        return dict(details)
    kept = {key: value for key, value in details.items() if key in _KEPT}
    if "reason" in details:
        kept["reason"] = erased_reason(details["reason"])
    if details.get("error") is not None:
        with suppress(msgspec.ValidationError):  # what is no error is erased with the rest
            failure = msgspec.convert(details["error"], Failure)
            kept["error"] = msgspec.to_builtins(erased_failure(failure))
    return kept if kept == details else kept | {ERASED: True}
