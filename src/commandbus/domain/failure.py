"""Failures as values: what is kept of an exception, bounded in size, and what kind it is."""

from __future__ import annotations

import re
import traceback
from enum import StrEnum
from types import TracebackType
from typing import Any

import msgspec

from commandbus.domain import payload
from commandbus.errors import (
    BusinessRuleException,
    HandlerError,
    PayloadError,
    PermanentCommandError,
    PoolExhausted,
    StatementTimeout,
)

ERROR_CHARACTERS_MAX = 16 * 1024
MESSAGE_CHARACTERS_MAX = 2_000
STATEMENT_TIMEOUT = "STATEMENT_TIMEOUT"
POOL_TIMEOUT = "POOL_TIMEOUT"
CANCELED = (
    "The handler was ended by a cancellation, not by the worker: the handler, a task that it awaited "
    "or a library that it calls canceled it. Catch CancelledError there if the handler is to go on."
)
"""What an unexpected CancelledError says, which has no text of its own."""
_OURS = re.compile(r"commandbus\.(runtimes|worker)\.")


class FailureKind(StrEnum):
    TRANSIENT = "TRANSIENT"
    PERMANENT = "PERMANENT"
    BUSINESS_RULE = "BUSINESS_RULE"


class Failure(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why an attempt failed: the kind decides what follows, the rest is for people."""

    kind: FailureKind
    code: str
    message: str = ""
    details: Any = None
    exception: str | None = None
    traceback: str | None = None
    frame: str | None = None
    """File and line of the innermost frame, for a person."""
    place: str | None = None
    """Module and function of the innermost frame, which stay the same when a line moves or another
    folder is installed into."""


class Origin(msgspec.Struct, frozen=True):
    """Where an exception of another process was raised."""

    traceback: str | None
    frame: str | None
    place: str | None = None


_ORIGIN = "__commandbus_origin__"


def set_origin(error: BaseException, origin: Origin | None) -> None:
    """The traceback of an exception is that of another process."""
    setattr(error, _ORIGIN, origin)


def _origin_of(error: BaseException) -> Origin | None:
    """That of the exception, or of what it was translated from."""
    found: Origin | None = getattr(error, _ORIGIN, None) or getattr(error.__cause__, _ORIGIN, None)
    return found


def classify(error: BaseException) -> Failure:
    """An exception as a value. Whatever is not declared otherwise may work later: transient.

    Never raises, whatever the exception does in its `__str__` or carries in its details.
    """
    kind = FailureKind.TRANSIENT
    code = _clean(type(error).__name__, 100)
    details: Any = None
    message = _text_of(error)
    if isinstance(error, HandlerError):
        # A subclass may have forgotten to call __init__ of its base.
        code = _text_of(getattr(error, "code", code), 100)
        message = _text_of(getattr(error, "message", message))
        details = _details_of(error)
        if isinstance(error, BusinessRuleException):
            kind = FailureKind.BUSINESS_RULE
        elif isinstance(error, PermanentCommandError):
            kind = FailureKind.PERMANENT
    elif isinstance(error, StatementTimeout) or _state_of(error) == "57014":
        code = STATEMENT_TIMEOUT
    elif isinstance(error, PoolExhausted) or type(error).__name__ == "PoolTimeout":
        code = POOL_TIMEOUT
    elif type(error).__name__ == "CancelledError":
        message = message or CANCELED
    origin = _origin_of(error)
    innermost = None if origin else _innermost(error.__traceback__)
    return Failure(
        kind=kind,
        code=code,
        message=message,
        details=details,
        exception=_clean(f"{type(error).__module__}.{type(error).__qualname__}", 400),
        traceback=origin.traceback if origin else _traceback_of(error),
        frame=origin.frame if origin else _frame_of(innermost),
        place=origin.place if origin else _place_of(innermost),
    )


def _state_of(error: BaseException) -> object:
    """The SQLSTATE of a database error, of whichever driver; a handler may use a connection of its
    own, and a statement that was canceled there is the same to it."""
    try:
        return getattr(error, "sqlstate", None)
    except Exception:  # the exception's own code, whatever it does
        return "unreadable"


def _text_of(value: object, longest: int = MESSAGE_CHARACTERS_MAX) -> str:
    try:
        return _clean(str(value), longest)
    except Exception as broken:  # a handler's exception class may be broken; its command must not be
        return _clean(
            f"<the text of {type(value).__name__} cannot be read: {type(broken).__name__}>", longest
        )


def _traceback_of(error: BaseException) -> str:
    try:
        trace = _from_handler(error.__traceback__)
        lines = traceback.format_exception(type(error), error, trace)
        return _clean("".join(lines), ERROR_CHARACTERS_MAX)
    except Exception:  # formatting calls __str__ of the exception and of its causes
        frames = "".join(traceback.format_tb(error.__traceback__))
        return _clean(f"{frames}{type(error).__name__}", ERROR_CHARACTERS_MAX)


def _from_handler(trace: TracebackType | None) -> TracebackType | None:
    """Without the frames of the worker that called the handler, unless there are no others."""
    entry = trace
    while entry is not None and _OURS.match(entry.tb_frame.f_globals.get("__name__") or ""):
        entry = entry.tb_next
    return entry or trace


def _innermost(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace


def _frame_of(trace: TracebackType | None) -> str | None:
    if trace is None:
        return None
    code = trace.tb_frame.f_code
    return _clean(f"{code.co_filename}:{trace.tb_lineno} in {code.co_qualname}", 400)


def _place_of(trace: TracebackType | None) -> str | None:
    """A part of the fingerprint by which equal failures are grouped."""
    if trace is None:
        return None
    module = trace.tb_frame.f_globals.get("__name__")
    return _clean(f"{module}.{trace.tb_frame.f_code.co_qualname}", 400)


def _details_of(error: HandlerError) -> Any:
    try:
        details = getattr(error, "details", None)
        return payload.decode(payload.encode(details, what="details", bytes_max=8_192))
    except PayloadError as refused:
        return {"refused": str(refused)}


def _clean(text: str, longest: int = MESSAGE_CHARACTERS_MAX) -> str:
    """Text that every database keeps: no NUL, no lone surrogates, bounded with both ends kept."""
    text = text.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()
    if len(text) <= longest:
        return text
    half = longest // 2 - 10
    return f"{text[:half]}\n… cut …\n{text[-half:]}"
