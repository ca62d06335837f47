"""Errors as answers: which status each has, in words that say what to do next."""

from __future__ import annotations

import math

import msgspec

from commandbus.errors import (
    CommandBusError,
    DuplicateCommandError,
    InvalidOperationError,
    QueueFull,
    SchemaOutdated,
    StoreUnavailable,
)
from commandbus.interfaces.web.refusals import CHALLENGE, Refused
from commandbus.interfaces.web.schemas import Problem

HANDLED = (Refused, CommandBusError, msgspec.ValidationError, msgspec.DecodeError, RecursionError)


def status_of(error: Exception) -> int:
    match error:
        case Refused():
            return error.status
        case LookupError():
            return 404
        case DuplicateCommandError() | InvalidOperationError():
            return 409
        case QueueFull():
            return 429
        case StoreUnavailable() | SchemaOutdated():
            return 503
        case msgspec.ValidationError():
            return 422
        case msgspec.DecodeError() | RecursionError():
            return 400
        case _:
            return 422


def problem_of(error: Exception) -> Problem:
    name = "Refused" if isinstance(error, Refused) else type(error).__name__
    return Problem(name, text_of(error))


def text_of(error: Exception) -> str:
    return "The document is nested too deeply." if isinstance(error, RecursionError) else str(error)


def headers_of(error: Exception) -> dict[str, str]:
    match error:
        case Refused(status=401):
            return {"WWW-Authenticate": CHALLENGE}
        case QueueFull(retry_after=float(seconds)) | Refused(retry_after=float(seconds)):
            return {"Retry-After": str(max(1, math.ceil(seconds)))}
        case _:
            return {}
