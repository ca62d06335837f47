"""Traces by OpenTelemetry's conventions for messaging: a span for each send, one for each run of a
handler, and the W3C context carried from one to the other in the command's headers.

A span of an SDK takes longer than a small command, so the decision comes first, once for a whole flow:
a trace that is not sampled is not carried, and a run whose command carries no trace makes no span, nor
do its sends. Only the API is needed. Imported when tracing is switched on.
"""

from __future__ import annotations

import re
import time
from dataclasses import replace
from functools import cache
from random import getrandbits
from typing import Any

from opentelemetry import propagate, trace
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.context import Context, attach
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    NoOpTracerProvider,
    ProxyTracerProvider,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
)

from commandbus.domain.command import Command, SendRequest
from commandbus.settings import VERSION
from commandbus.worker.context import HandlerContext, SyncHandlerContext
from commandbus.worker.handlers import Handler

PARENT = "traceparent"
LOOK_SECONDS = 1.0
"""How long it may take until an SDK is noticed that was set up late."""

_plain_parent = re.compile(
    r"00-((?!0{32})[0-9a-f]{32})-((?!0{16})[0-9a-f]{16})-([0-9a-f]{2})"
).fullmatch


class _Listeners:
    """Whether an SDK is set up. Asked for every command, so one that is missing is looked for now and
    then; one that was found stays."""

    def __init__(self) -> None:
        self._found = False
        self._look_at = 0.0

    def __bool__(self) -> bool:
        if not self._found and (now := time.monotonic()) >= self._look_at:
            unset = (ProxyTracerProvider, NoOpTracerProvider)
            self._found = not isinstance(trace.get_tracer_provider(), unset)
            self._look_at = now + LOOK_SECONDS
        return self._found


_listeners = _Listeners()
_baggage = W3CBaggagePropagator()


@cache
def _tracer() -> trace.Tracer:
    """Made once: an SDK takes longer for it than for a span, and one that is set up later is found."""
    return trace.get_tracer("commandbus", VERSION)


class _Dropped(NonRecordingSpan):
    """The span of everything outside a sampled trace. There is one for all, and it compares as another
    for each caller: it is never recorded, so it needs no name, and must not look like one trace."""

    def __init__(self) -> None:
        super().__init__(trace.INVALID_SPAN_CONTEXT)

    def get_span_context(self) -> SpanContext:
        return SpanContext(getrandbits(128) or 1, getrandbits(64) or 1, is_remote=True)


NOWHERE = Context()
DROPPED = _Dropped()
DROPPED_NOWHERE = trace.set_span_in_context(DROPPED, NOWHERE)


def carry(request: SendRequest) -> dict[str, Any]:
    """The headers of a request; with the context of a new span `send …`, if its trace is sampled."""
    headers, carrier = dict(request.headers or {}), dict[str, str]()
    current = trace.get_current_span().get_span_context()
    # A router has no span of its own: the steps of a process continue the trace of its start.
    parent = _extract(headers) if PARENT in headers and not current.is_valid else None
    if current.is_valid and not current.trace_flags.sampled:
        _baggage.inject(carrier)
        return headers | carrier
    if not _listeners:
        propagate.inject(carrier)
        return headers | carrier
    attributes = {
        "messaging.system": "commandbus",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": str(request.domain),
        "commandbus.command.type": str(request.command_type),
    }
    span = _tracer().start_span(
        f"send {request.domain}", context=parent, kind=SpanKind.PRODUCER, attributes=attributes
    )
    if span.get_span_context().trace_flags.sampled:
        propagate.inject(carrier, trace.set_span_in_context(span))
    else:
        _baggage.inject(carrier)
    span.end()
    return headers | carrier


class Traced:
    """Wraps handlers in spans `process …`: linked to the span of the send, or with mode "child" below
    it. Each attempt has a span of its own. A command without headers carries no trace, so its handler
    needs no wrapper: what slots enter says so to all of them at once."""

    def __init__(self, mode: str) -> None:
        self._is_child = mode == "child"

    def enter(self) -> None:
        attach(DROPPED_NOWHERE)

    def wrap(self, handler: Handler) -> Handler:
        runs = _Runs(handler, self._is_child)
        spanned = runs.awaited if handler.is_async else runs.called
        return replace(handler, function=spanned)


class _Runs:
    """One handler's runs. Each has a context of its own, so what is attached ends with it."""

    def __init__(self, handler: Handler, is_child: bool) -> None:
        self._function = handler.function
        self._is_child = is_child
        self._name = f"process {handler.domain}"
        self._attributes = {
            "messaging.system": "commandbus",
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.destination.name": handler.domain,
            "commandbus.command.type": handler.command_type,
        }

    async def awaited(self, command: Command[Any], context: HandlerContext | SyncHandlerContext) -> Any:
        span = self._begin(command, context)
        try:
            return await self._function(command, context)
        except BaseException as error:
            _failed(span, error)
            raise
        finally:
            span.end()

    def called(self, command: Command[Any], context: HandlerContext | SyncHandlerContext) -> Any:
        span = self._begin(command, context)
        try:
            return self._function(command, context)
        except BaseException as error:
            _failed(span, error)
            raise
        finally:
            span.end()

    def _begin(self, command: Command[Any], context: HandlerContext | SyncHandlerContext) -> Span:
        """The span of a run, now the current one; an empty one where the trace is not sampled."""
        sent = _extract(command.headers)
        sender = trace.get_current_span(sent).get_span_context()
        if not sender.is_valid or not sender.trace_flags.sampled:
            attach(trace.set_span_in_context(DROPPED, sent))
            return DROPPED
        if not _listeners:
            attach(sent)
            return DROPPED
        span = _tracer().start_span(
            self._name,
            context=sent if self._is_child else NOWHERE,
            kind=SpanKind.CONSUMER,
            attributes={
                **self._attributes,
                "messaging.message.id": str(command.command_id),
                "messaging.message.conversation_id": str(command.correlation_id),
                "commandbus.attempt": context.attempt,
            },
            links=() if self._is_child else (Link(sender),),
        )
        attach(trace.set_span_in_context(span, sent))
        return span


def _extract(headers: dict[str, Any]) -> Context:
    """The context that a sender has sent along."""
    found = _plain_parent(str(headers.get(PARENT)))
    if found is not None and "tracestate" not in headers and "baggage" not in headers:
        # By far the most frequent; propagators take four times as long.
        trace_id, span_id, flags = found.groups()
        sender = SpanContext(int(trace_id, 16), int(span_id, 16), True, TraceFlags(int(flags, 16)))
        return trace.set_span_in_context(NonRecordingSpan(sender), NOWHERE)
    fields = propagate.get_global_textmap().fields
    carried = {key: str(headers[key]) for key in fields if key in headers}
    return propagate.extract(carried, NOWHERE) if carried else NOWHERE


def _failed(span: Span, error: BaseException) -> None:
    span.record_exception(error)
    span.set_attribute("error.type", getattr(error, "code", None) or type(error).__name__)
    span.set_status(Status(StatusCode.ERROR, str(error)))
