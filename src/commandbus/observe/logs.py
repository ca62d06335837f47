"""Structured logs: one JSON document a line, with the command that was being carried out."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import replace
from datetime import UTC, datetime
from functools import wraps
from typing import Any

from commandbus.domain.command import Command
from commandbus.worker.context import HandlerContext, SyncHandlerContext
from commandbus.worker.handlers import Handler

_current: ContextVar[dict[str, Any] | None] = ContextVar("commandbus_command", default=None)
_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """Time, level, logger, message, what was given as `extra`, and the current command."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        entry |= _current.get() or {}
        entry |= {key: value for key, value in vars(record).items() if key not in _PLAIN}
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


def correlated(handler: Handler) -> Handler:
    """The same handler; whatever is logged while it runs names its command."""
    function = handler.function

    def facts(command: Command[Any], context: HandlerContext | SyncHandlerContext) -> dict[str, Any]:
        return {
            "command_id": str(command.command_id),
            "domain": command.domain,
            "command_type": command.command_type,
            "attempt": context.attempt,
            "correlation_id": str(command.correlation_id),
        }

    wrapped: Callable[..., Any]
    if handler.is_async:

        @wraps(function)
        async def run(command: Command[Any], context: HandlerContext | SyncHandlerContext) -> Any:
            _current.set(facts(command, context))
            return await function(command, context)

        wrapped = run
    else:

        @wraps(function)
        def call(command: Command[Any], context: HandlerContext | SyncHandlerContext) -> Any:
            _current.set(facts(command, context))
            return function(command, context)

        wrapped = call
    return replace(handler, function=wrapped)
