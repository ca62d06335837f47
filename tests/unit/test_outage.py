"""That a store is away is logged once, and that it is back."""

import logging

import pytest

from commandbus.errors import PoolExhausted, StoreUnavailable
from commandbus.store.outage import Outage

logger = logging.getLogger("commandbus.worker")


def test_an_outage_is_two_lines_however_often_it_is_seen(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    outage = Outage()
    outage.answered()
    for _ in range(3):
        for what in ("claim", "settle"):
            outage.failed(what, StoreUnavailable("refused"), logger)
    for _ in range(2):
        outage.answered()
    went, back = [record.getMessage() for record in caplog.records]
    assert "is away, trying again until it is back: refused" in went
    assert back.startswith("the store is back after ")


def test_other_failures_are_logged_each_time(caplog: pytest.LogCaptureFixture) -> None:
    outage = Outage()
    for error in (ValueError("odd"), PoolExhausted("busy")):
        outage.failed("claim", error, logger)
    outage.answered()
    assert [record.getMessage() for record in caplog.records] == [
        "claim failed, trying again: odd",
        "claim failed, trying again: busy",
    ]


def test_an_outage_lasts_since_its_first_failure() -> None:
    outage = Outage()
    outage.failed("claim", StoreUnavailable("refused"), logger)
    since = outage.since
    outage.failed("claim", StoreUnavailable("refused"), logger)
    assert outage.since == since
