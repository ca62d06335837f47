"""Whether a command that was canceled may have taken effect, by its audit trail.

A run of a handler that ends by itself says how: it returns, or raises. An exception means that it did
not take effect. A run that was ended from outside says nothing: its worker died, was stopped, or took
too long, or the handler was canceled while it ran. What such a run did is not known.
"""

from __future__ import annotations

from collections.abc import Iterable

from commandbus.domain.audit import AuditEvent, AuditEventType
from commandbus.domain.failure import Failure
from commandbus.domain.outcome import LEASE_GONE, NOT_RECORDED, STOPPED

_CUT_SHORT = frozenset({"HANDLER_TIMEOUT", "THREAD_TIMEOUT", "TOTAL_TIMEOUT", "NEVER_FINISHED"})
"""The codes of failures that a worker records for a handler that did not end in time."""


def may_have_taken_effect(trail: Iterable[AuditEvent]) -> bool:
    """Whether a run of a command is in its trail that ended without an answer of its handler."""
    return any(map(_is_unknown, trail))


def _is_unknown(event: AuditEvent) -> bool:
    details = event.details
    ran = bool(details.get("ran"))
    match event.event_type:
        case AuditEventType.WORKER_LOST:
            return True
        case AuditEventType.RELEASED:
            reason = details.get("reason")
            return reason == NOT_RECORDED or (ran and reason in (STOPPED, LEASE_GONE))
        case AuditEventType.CANCELED:
            # Without an actor, its handler decided so: it raised CommandCanceled.
            return ran and details.get("actor") is not None
        case AuditEventType.FAILED | AuditEventType.MOVED_TO_TSQ:
            return ran and _code(details.get("error")) in _CUT_SHORT
        case _:
            return False


def _code(error: object) -> object:
    if isinstance(error, Failure):
        return error.code
    return error.get("code") if isinstance(error, dict) else None
