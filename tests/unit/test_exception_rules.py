"""Which rule judges an exception: the nearest class, and no catch-all for verdicts of the bus."""

import pytest

from commandbus.errors import (
    BreakerOpen,
    BusinessRuleException,
    CommandCanceled,
    HandlerError,
    LeaseLost,
    PayloadError,
    PermanentCommandError,
    RetryAfter,
    Snooze,
    TransientCommandError,
)
from commandbus.worker.exception_rules import ErrorMap, translate

ONLY_NETWORK: ErrorMap = {Exception: PermanentCommandError, ConnectionError: TransientCommandError}


@pytest.mark.parametrize(
    ("error", "meant"),
    [
        (ConnectionResetError("cut"), TransientCommandError),
        (KeyError("article"), PermanentCommandError),
        (PayloadError("does not fit"), PermanentCommandError),
    ],
)
def test_a_catch_all_and_a_nearer_class_retry_only_some_errors(
    error: Exception, meant: type[HandlerError]
) -> None:
    judged = translate(error, ONLY_NETWORK)
    assert type(judged) is meant
    assert judged.__cause__ is error


@pytest.mark.parametrize(
    "verdict",
    [
        TransientCommandError("BUSY", "later"),
        RetryAfter(30),
        BusinessRuleException("NO_FUNDS", "not covered"),
        Snooze(60),
        BreakerOpen("bank", 30),
        CommandCanceled("an operator said so"),
        LeaseLost("gone"),
    ],
)
def test_a_catch_all_leaves_verdicts_of_the_bus_alone(verdict: Exception) -> None:
    assert translate(verdict, ONLY_NETWORK) is verdict


def test_a_rule_that_names_a_verdict_counts() -> None:
    rules: ErrorMap = {TransientCommandError: PermanentCommandError}
    assert type(translate(RetryAfter(30), rules)) is PermanentCommandError
