"""The command whose handler runs: the cause of what is sent meanwhile.

Workers set it, once for each run of a handler and in a context of its own; operations that send read
it in the caller's thread, before their op begins. An op itself must not: another thread may run it.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

from commandbus.domain.command import Command

TRACE_HEADERS = ("traceparent", "tracestate", "baggage")
"""The headers of W3C Trace Context and Baggage."""

running: ContextVar[Command[Any] | None] = ContextVar("commandbus_running", default=None)


def trace_of(cause: Command[Any], headers: dict[str, Any] | None) -> dict[str, Any] | None:
    """The headers of a send with the trace of its cause, unless they name one of their own."""
    sent: Mapping[str, Any] = headers or {}
    if "traceparent" in sent:
        return headers
    carried = {name: cause.headers[name] for name in TRACE_HEADERS if name in cause.headers}
    return {**carried, **sent} if carried else headers
