"""What the keeper of leases is certain of."""

from __future__ import annotations

import time
from typing import Any

from commandbus.errors import StoreUnavailable
from commandbus.store.outage import Outage
from commandbus.testing.waiting import eventually
from commandbus.worker.keeper import LeaseKeeper


def keeper_of(seconds: float) -> LeaseKeeper:
    nothing: Any = None
    return LeaseKeeper(nothing, nothing, seconds, nothing, nothing, Outage())


def test_a_lease_is_certain_until_its_length_after_it_was_asked_for() -> None:
    keeper, now = keeper_of(60), time.monotonic()
    keeper.keep([1], now)
    assert keeper.holds(1)
    keeper.keep([2], now - 61)
    assert not keeper.holds(2)
    assert keeper.holds(1)


def test_a_lease_that_was_let_go_is_not_held() -> None:
    keeper = keeper_of(60)
    keeper.keep([1], time.monotonic())
    keeper.forget([1])
    assert not keeper.holds(1)


def test_a_renewal_makes_it_certain_for_longer() -> None:
    class Renewing:
        def renew(self, lease_ids: list[int], seconds: float) -> list[int]:
            return lease_ids

        def run(self, lease_ids: list[int]) -> list[int]:
            return []

    store: Any = Renewing()
    keeper = LeaseKeeper(store, store, 60, lambda gone: None, lambda: None, Outage())
    keeper.keep([1], time.monotonic() - 61)
    assert not keeper.holds(1)
    keeper.start()
    try:
        eventually(lambda: keeper.holds(1))
    finally:
        keeper.stop()


def test_a_lease_that_was_long_in_coming_is_renewed_before_it_can_run_out() -> None:
    renewed: list[list[int]] = []

    class Renewing:
        def renew(self, lease_ids: list[int], seconds: float) -> list[int]:
            return lease_ids

        def run(self, lease_ids: list[int]) -> list[int]:
            renewed.append(lease_ids)
            return []

    store: Any = Renewing()
    keeper = LeaseKeeper(store, store, 60, lambda gone: None, lambda: None, Outage())
    keeper.start()
    try:
        keeper.keep([1], time.monotonic())
        waits: Any = keeper._changed
        eventually(lambda: bool(waits._waiters))  # for the moment when that one is due
        keeper.keep([2], time.monotonic() - 50)
        eventually(lambda: bool(renewed))
    finally:
        keeper.stop()
    assert renewed == [[2]]


def test_a_renewal_that_failed_is_tried_again_long_before_the_lease_ends() -> None:
    class Away:
        def renew(self, lease_ids: list[int], seconds: float) -> list[int]:
            return lease_ids

        def run(self, lease_ids: list[int]) -> list[int]:
            raise StoreUnavailable("away")

    store: Any = Away()
    keeper = LeaseKeeper(store, store, 60, lambda gone: None, lambda: None, Outage())
    keeper.start()
    try:
        keeper.keep([1], time.monotonic() - 50)
        eventually(lambda: time.monotonic() < keeper._due[1])
        assert keeper._due[1] <= time.monotonic() + 4
    finally:
        keeper.stop()
