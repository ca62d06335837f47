"""Commands that one process returns are found by the claims of another, whatever its bounds say."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

import pytest

from commandbus.store.records import Claimed, ClaimRequest
from commandbus.store.suspects import NONE, SuspectLimit
from commandbus.testing import Configuration, Harness
from commandbus.testing.harness import DOMAIN
from commandbus.worker.releases import release
from tests.pgmq.database import pgmq_configuration
from tests.postgres.database import postgres_configuration

LEASE_SECONDS = 30.0
TABLES = [pytest.param(postgres_configuration, marks=pytest.mark.postgres)]


@pytest.fixture(
    params=[
        *TABLES,
        pytest.param(pgmq_configuration, marks=[pytest.mark.postgres, pytest.mark.pgmq]),
    ],
    ids=["postgres", "pgmq"],
)
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[Harness, Harness]]:
    """Two processes on one database."""
    configuration: Configuration = request.param()
    one, other = configuration.open("threads"), configuration.open("threads")
    yield one, other
    other.close()
    one.close()


def claim(bus: Harness, suspects: SuspectLimit | None, limit: int) -> list[Claimed]:
    request = ClaimRequest((DOMAIN,), limit, "w", LEASE_SECONDS, suspects=suspects)
    return list(bus.run(bus.store.claim(request)).claimed)


def test_a_rescue_by_another_process_is_followed_by_a_look_without_bounds(
    pair: tuple[Harness, Harness],
) -> None:
    one, other = pair
    lost = one.send()
    assert [c.command_id for c in claim(one, None, 1)] == [lost]
    one.advance(LEASE_SECONDS + 1)
    backlog = [one.send() for _ in range(3)]
    with_bounds = ClaimRequest((DOMAIN,), 1, "w", LEASE_SECONDS, sweep=False, suspects=NONE)
    claimed = other.run(other.store.claim(with_bounds)).claimed
    assert [c.command_id for c in claimed] == backlog[:1]
    # Looks without bounds are slow here, as beside many dead rows: the next one is due much later.
    bounds = other.store.context.bounds
    bounds._walk_from[DOMAIN] = bounds._fresh_until[DOMAIN] = inf
    assert [c.command_id for c in claim(one, NONE, 1)] == backlog[1:2]
    assert [c.command_id for c in claim(other, SuspectLimit(8), 1)] == [lost]


class Clock:
    """A clock by which each look takes as long as the server stands still."""

    def __init__(self) -> None:
        self.now, self.frozen_seconds = 0.0, 0.0

    def __call__(self) -> float:
        self.now += self.frozen_seconds
        return self.now


def test_returned_work_is_hidden_for_a_second_at_most_after_a_server_stood_still(
    pair: tuple[Harness, Harness],
) -> None:
    one, other = pair
    first = one.send()
    (held,) = claim(one, None, 1)
    assert held.command_id == first
    backlog = [one.send() for _ in range(6)]
    clock = other.store.context.monotonic = Clock()
    clock.frozen_seconds = 60.0
    assert [c.command_id for _ in range(3) for c in claim(other, None, 1)] == backlog[:3]
    clock.frozen_seconds = 0.0
    one.run(one.store.settle([release(held, "")]))
    clock.now += 1.0
    assert [c.command_id for c in claim(other, None, 1)] == [first]


@pytest.mark.parametrize("pair", TABLES, indirect=True)
def test_returned_work_for_certain_workers_is_looked_for_everywhere(
    pair: tuple[Harness, Harness],
) -> None:
    """It lies in a part of the queue of its own, with bounds of its own."""
    one, other = pair
    request = ClaimRequest((DOMAIN,), 1, "w", LEASE_SECONDS, tags=("gpu",))
    first, *backlog = [one.send(requires=["gpu"]) for _ in range(4)]
    (held,) = one.run(one.store.claim(request)).claimed
    other.store.context.monotonic = Clock()  # which stands still: no bounds grow old
    (claimed,) = other.run(other.store.claim(request)).claimed
    assert (held.command_id, claimed.command_id) == (first, backlog[0])
    one.run(one.store.settle([release(held, "")]))
    (claimed,) = other.run(other.store.claim(request)).claimed
    assert claimed.command_id == first


@pytest.mark.parametrize("pair", TABLES, indirect=True)
def test_a_look_for_one_priority_puts_no_look_everywhere_off(pair: tuple[Harness, Harness]) -> None:
    one, other = pair
    first, *_ = [one.send() for _ in range(12)]
    (held,) = claim(one, None, 1)
    assert held.command_id == first
    clock = other.store.context.monotonic = Clock()
    claim(other, None, 1)
    one.run(one.store.settle([release(held, "")]))
    woken = ClaimRequest((DOMAIN,), 1, "w", LEASE_SECONDS, skip_sweep=True)
    urgent = ClaimRequest((DOMAIN,), 1, "w", LEASE_SECONDS, priority=1)
    found = []
    for _ in range(4):
        clock.now += 0.02
        assert not other.run(other.store.claim(urgent)).claimed
        found += [c.command_id for c in other.run(other.store.claim(woken)).claimed]
    assert first in found
