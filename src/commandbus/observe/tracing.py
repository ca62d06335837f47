"""Traces by OpenTelemetry's conventions for messaging: a span for each send, one for each run of a
handler, and the W3C context carried from one to the other in the command's headers.

Only the API is needed; without an SDK its spans are empty. Imported when tracing is switched on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, wraps
from typing import Any

from opentelemetry import propagate, trace
from opentelemetry.trace import (
    Link,
    NoOpTracerProvider,
    ProxyTracerProvider,
    SpanKind,
    Status,
    StatusCode,
)

from commandbus.domain.command import SendRequest
from commandbus.settings import VERSION
from commandbus.worker.handlers import Handler

CARRIED = ("traceparent", "tracestate", "baggage")


@cache
def _tracer() -> trace.Tracer:
    """Made once: an SDK takes longer for it than for a span, and one that is set up later is found."""
    return trace.get_tracer("commandbus", VERSION)


def _nobody_listens() -> bool:
    """Whether no SDK is set up, so that spans would be empty."""
    return isinstance(trace.get_tracer_provider(), ProxyTracerProvider | NoOpTracerProvider)


def carry(request: SendRequest) -> dict[str, Any]:
    """The headers of a request with the context of a new span `send …`."""
    headers = dict(request.headers or {})
    if _nobody_listens():
        propagate.inject(headers)
        return headers
    attributes = {
        "messaging.system": "commandbus",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": str(request.domain),
        "commandbus.command.type": str(request.command_type),
    }
    with _tracer().start_as_current_span(
        f"send {request.domain}", kind=SpanKind.PRODUCER, attributes=attributes
    ):
        carrier: dict[str, str] = {}
        propagate.inject(carrier)
    return headers | carrier


def traced(mode: str) -> Callable[[Handler], Handler]:
    """Wraps handlers in spans `process …`: linked to the span of the send, or with mode "child" below
    it. Each attempt has a span of its own."""

    def wrap(handler: Handler) -> Handler:
        function = handler.function
        wrapped: Callable[..., Any]
        if handler.is_async:

            @wraps(function)
            async def run(command: Any, context: Any) -> Any:
                if _nobody_listens():
                    return await function(command, context)
                with _processing(command, context, mode):
                    return await function(command, context)

            wrapped = run
        else:

            @wraps(function)
            def call(command: Any, context: Any) -> Any:
                if _nobody_listens():
                    return function(command, context)
                with _processing(command, context, mode):
                    return function(command, context)

            wrapped = call
        return replace(handler, function=wrapped)

    return wrap


@contextmanager
def _processing(command: Any, context: Any, mode: str) -> Iterator[None]:
    carrier = {key: str(command.headers[key]) for key in CARRIED if key in command.headers}
    parent = propagate.extract(carrier) if carrier else None
    created = trace.get_current_span(parent).get_span_context() if parent is not None else None
    is_child = mode == "child"
    links = [Link(created)] if created is not None and created.is_valid and not is_child else []
    attributes = {
        "messaging.system": "commandbus",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": command.domain,
        "messaging.message.id": str(command.command_id),
        "messaging.message.conversation_id": str(command.correlation_id),
        "commandbus.command.type": command.command_type,
        "commandbus.attempt": context.attempt,
    }
    with _tracer().start_as_current_span(
        f"process {command.domain}",
        context=parent if is_child else None,
        kind=SpanKind.CONSUMER,
        attributes=attributes,
        links=links,
        record_exception=True,
        set_status_on_exception=False,
    ) as span:
        try:
            yield
        except BaseException as error:
            span.set_attribute("error.type", getattr(error, "code", None) or type(error).__name__)
            span.set_status(Status(StatusCode.ERROR, str(error)))
            raise
