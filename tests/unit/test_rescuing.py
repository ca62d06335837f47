"""Expired leases that cannot be taken back are tried again, sooner where only time was short."""

from __future__ import annotations

import pytest

from commandbus.errors import CommandBusError, StatementTimeout
from commandbus.store.rescuing import DELAY_SECONDS_MAX, PASSING_SECONDS_MAX, StuckLeases


@pytest.mark.parametrize(
    ("error", "longest"),
    [(CommandBusError("damaged"), DELAY_SECONDS_MAX), (StatementTimeout("slow"), PASSING_SECONDS_MAX)],
)
def test_a_lease_is_tried_again_after_a_growing_delay(error: Exception, longest: float) -> None:
    stuck = StuckLeases()
    delays = []
    for _ in range(10):
        stuck.failed(7, error, 100.0)
        delays.append(stuck._stuck[7].again_at - 100.0)
    assert delays[:2] == [0.0, 1.0]
    assert delays == sorted(delays)
    assert delays[-1] == longest


def test_a_lease_is_known_until_a_sweep_that_tries_it_does_not_find_it() -> None:
    stuck = StuckLeases()
    for _ in range(2):
        stuck.failed(7, CommandBusError("damaged"), 100.0)
    assert stuck.skipped(100.5) == [7]
    stuck.swept(skipped=[7], failed=[])
    assert len(stuck.report()) == 1
    stuck.swept(skipped=[], failed=[7])
    assert len(stuck.report()) == 1
    stuck.swept(skipped=[], failed=[])
    assert stuck.report() == ()
