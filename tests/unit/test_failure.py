"""Failures as values: whatever a handler raises becomes bounded, storable text of a known kind."""

from __future__ import annotations

from typing import Any

import pytest

from commandbus import BusinessRuleException, PermanentCommandError, RetryAfter, TransientCommandError
from commandbus.domain import payload
from commandbus.domain.failure import (
    ERROR_CHARACTERS_MAX,
    MESSAGE_CHARACTERS_MAX,
    FailureKind,
    classify,
)


def raised(error: BaseException) -> BaseException:
    """The error with a traceback, as a handler would leave it."""
    try:
        raise error
    except BaseException as caught:  # any kind is tested here
        return caught


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Forgetful(TransientCommandError):
    """A subclass that does not call __init__ of its base."""

    def __init__(self) -> None:
        pass


@pytest.mark.parametrize(
    ("error", "kind", "code", "message"),
    [
        (TransientCommandError("DOWN", "later"), FailureKind.TRANSIENT, "DOWN", "later"),
        (PermanentCommandError("WRONG", "never"), FailureKind.PERMANENT, "WRONG", "never"),
        (BusinessRuleException("NO"), FailureKind.BUSINESS_RULE, "NO", ""),
        (RetryAfter(5), FailureKind.TRANSIENT, "RETRY_AFTER", "asked to come back in 5 s"),
        (ValueError("bad"), FailureKind.TRANSIENT, "ValueError", "bad"),
        (KeyError("k"), FailureKind.TRANSIENT, "KeyError", "'k'"),
        (SystemExit(3), FailureKind.TRANSIENT, "SystemExit", "3"),
        (KeyboardInterrupt(), FailureKind.TRANSIENT, "KeyboardInterrupt", ""),
        (ExceptionGroup("two", [ValueError("a")]), FailureKind.TRANSIENT, "ExceptionGroup", None),
    ],
)
def test_every_exception_has_a_kind_a_code_and_a_message(
    error: BaseException, kind: FailureKind, code: str, message: str | None
) -> None:
    failure = classify(raised(error))
    assert (failure.kind, failure.code) == (kind, code)
    assert message is None or failure.message == message
    assert failure.exception == f"{type(error).__module__}.{type(error).__qualname__}"
    assert failure.traceback is not None
    assert type(error).__name__ in failure.traceback
    assert failure.frame is not None
    assert "in raised" in failure.frame


def test_an_exception_without_a_text_is_still_classified() -> None:
    failure = classify(raised(Unspeakable()))
    assert failure.code == "Unspeakable"
    assert failure.message == "<the text of Unspeakable cannot be read: RuntimeError>"
    assert failure.traceback is not None


def test_an_exception_whose_cause_has_no_text_is_still_classified() -> None:
    error = ValueError("outer")
    error.__cause__ = raised(Unspeakable())
    assert classify(raised(error)).message == "outer"


def test_a_handler_error_that_never_called_its_base_is_still_classified() -> None:
    failure = classify(raised(Forgetful()))
    assert (failure.kind, failure.code) == (FailureKind.TRANSIENT, "Forgetful")


def test_an_exception_that_was_never_raised_has_no_frame() -> None:
    assert classify(ValueError("x")).frame is None


def test_a_huge_message_is_cut_in_the_middle() -> None:
    failure = classify(raised(ValueError("begin" + "x" * 100_000 + "end")))
    assert len(failure.message) <= MESSAGE_CHARACTERS_MAX
    assert failure.message.startswith("begin")
    assert failure.message.endswith("end")
    assert "… cut …" in failure.message
    assert failure.traceback is not None
    assert len(failure.traceback) <= ERROR_CHARACTERS_MAX
    assert failure.traceback.startswith("Traceback")
    assert failure.traceback.rstrip().endswith("end")


def test_a_class_with_a_huge_name_is_bounded() -> None:
    failure = classify(type("E" * 10_000, (Exception,), {})("x"))
    assert len(failure.code) <= 100
    assert failure.exception is not None
    assert len(failure.exception) <= 400


@pytest.mark.parametrize(
    "error",
    [
        ValueError("a\0b"),
        ValueError("a\ud800b"),
        TransientCommandError("CO\0DE", "mess\udfffage", {"k": "v"}),
    ],
)
def test_what_is_kept_of_any_text_can_be_stored(error: BaseException) -> None:
    failure = classify(raised(error))
    texts = [failure.code, failure.message, failure.traceback, failure.exception, failure.frame]
    assert payload.decode(payload.encode(texts)) == texts


@pytest.mark.parametrize(
    ("details", "kept"),
    [
        ({"field": "x", "n": [1, 2.5]}, {"field": "x", "n": [1, 2.5]}),
        (None, None),
        ({"o": object()}, "is not JSON"),
        ({"n": float("nan")}, "is nan"),
        ({"big": "x" * 10_000}, "more than the limit"),
    ],
)
def test_details_are_kept_or_their_refusal_is(details: Any, kept: Any) -> None:
    found = classify(raised(PermanentCommandError("C", "m", details))).details
    if isinstance(kept, str):
        assert kept in found["refused"]
    else:
        assert found == kept
