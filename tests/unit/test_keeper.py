"""What the keeper of leases is certain of."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from math import inf
from typing import Any

import pytest

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


class Scripted:
    """A store whose renewals are answered as the test says."""

    keeper: LeaseKeeper | None = None

    def __init__(self, answers: Sequence[list[int] | None]) -> None:
        self._answers = iter(answers)
        self.excused = [0.0]
        """Until when leases that end are excused, as the keeper said one after the other."""
        self.seen: list[bool] = []
        """Whether they were at each renewal."""

    def renew(self, lease_ids: list[int], seconds: float) -> None:
        return None

    def run(self, op: None) -> list[int]:
        self.seen.append(self.excused[-1] > time.monotonic())
        answer = next(self._answers)
        if answer is None:
            raise StoreUnavailable("the server is away")
        if answer is LATE:
            assert self.keeper is not None
            self.keeper.keep([1], time.monotonic() - 60)  # as if so much time had passed meanwhile
        return answer


def test_a_worker_is_excused_only_for_as_long_as_it_can_say_so_again() -> None:
    """A command that begins to hold up the process while the store is asked is not."""
    excused: list[float] = []

    class Slow:
        def renew(self, lease_ids: list[int], seconds: float) -> list[int]:
            return lease_ids

        def run(self, lease_ids: list[int]) -> list[int]:
            eventually(lambda: len(excused) > 3)
            return []

    store: Any = Slow()
    keeper = LeaseKeeper(store, store, 0.5, lambda gone: None, lambda: None, Outage(), excused.append)
    keeper.start()
    try:
        keeper.keep([1], time.monotonic() - 0.4)
        eventually(lambda: len(excused) > 4)
    finally:
        keeper.stop()
    assert max(excused) <= time.monotonic() + 0.5


RENEWED: list[int] = []
GONE, LATE, AWAY = [1], [1], None


@pytest.mark.parametrize(
    ("ages", "answers", "while_asking", "afterwards"),
    [
        ([50], [RENEWED], [True], False),
        ([50], [AWAY], [True], True),
        ([50], [LATE], [True], True),
        ([50], [GONE], [True], False),
        ([61], [GONE], [False], False),
        ([61], [AWAY], [False], False),
        ([50, 61, 61], [AWAY, AWAY, GONE], [True, True, True], True),
        ([50, 50], [AWAY, RENEWED], [True, True], True),
    ],
    ids=[
        "it is renewed", "no answer", "an answer too late", "another worker has it", "asked too late",
        "asked too late, no answer", "an outage longer than the lease", "a short outage",
    ],
)  # fmt: skip
def test_a_lease_that_ends_is_excused_if_the_store_was_asked_in_time(
    ages: list[float], answers: list[list[int] | None], while_asking: list[bool], afterwards: bool
) -> None:
    scripted = Scripted(answers)
    store: Any = scripted
    keeper = LeaseKeeper(
        store, store, 60, lambda gone: None, lambda: None, Outage(), scripted.excused.append
    )
    scripted.keeper = keeper
    keeper.start()

    def has_asked(times: int) -> bool:
        return len(scripted.seen) == times and keeper._due.get(1, inf) > time.monotonic()

    try:
        for number, age in enumerate(ages, 1):
            keeper.keep([1], time.monotonic() - age)
            eventually(partial(has_asked, number))
    finally:
        keeper.stop()
    assert scripted.seen == while_asking
    assert (scripted.excused[-1] > time.monotonic()) == afterwards


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
