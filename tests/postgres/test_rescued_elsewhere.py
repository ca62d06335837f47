"""Commands that one process takes back are found by the claims of another, whatever its bounds say."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

import pytest

from commandbus.store.records import Claimed, ClaimRequest
from commandbus.store.suspects import NONE, SuspectLimit
from commandbus.testing import Configuration, Harness
from commandbus.testing.harness import DOMAIN
from tests.pgmq.database import pgmq_configuration
from tests.postgres.database import postgres_configuration

LEASE_SECONDS = 30.0


@pytest.fixture(
    params=[
        pytest.param(postgres_configuration, marks=pytest.mark.postgres),
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
