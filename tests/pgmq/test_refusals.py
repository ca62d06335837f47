"""What the transport cannot keep is refused when it is asked for, with a way out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from commandbus import CommandStatus, SendRequest
from commandbus.engines.postgres.sending import COPY_MIN
from commandbus.errors import InvalidOperationError, RateLimited
from commandbus.testing import Harness
from tests.pgmq.database import pgmq_configuration

pytestmark = [pytest.mark.postgres, pytest.mark.pgmq]


@pytest.fixture(params=["asyncio", "threads"])
def bus(request: pytest.FixtureRequest) -> Iterator[Harness]:
    harness = pgmq_configuration().open(request.param)
    yield harness
    harness.close()


@pytest.mark.parametrize("options", [{"group_key": "customer 7"}, {"requires": ["gpu"]}])
def test_what_only_some_may_take_is_refused(bus: Harness, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOperationError, match="leave them out, or open the bus without"):
        bus.send("orders", "ship", 1, **options)
    assert bus.stats().depth == 0


@pytest.mark.parametrize("options", [{"group_key": "customer 7"}, {"requires": ["gpu"]}])
def test_one_of_many_is_refused_with_all(bus: Harness, options: dict[str, Any]) -> None:
    requests = [SendRequest("orders", "ship", n) for n in range(COPY_MIN)]
    with pytest.raises(InvalidOperationError, match="transport='pgmq'"):
        bus.send_many([*requests, SendRequest("orders", "ship", **options)])
    assert bus.stats().depth == 0


@pytest.mark.parametrize("options", [{"concurrency": 1}, {"rate": 5}])
def test_limits_of_what_runs_are_refused(bus: Harness, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOperationError, match="only sends can be limited"):
        bus.call(bus.bus.set_limit, "orders", **options)
    assert not bus.call(bus.bus.list_limits)


def test_sends_can_be_limited(bus: Harness) -> None:
    bus.call(bus.bus.set_limit, "orders", per_sender=True, rate=1, per=60)
    bus.send("orders", "ship", sender="shop 1")
    with pytest.raises(RateLimited):
        bus.send("orders", "ship", sender="shop 1")


def test_unique_keys_are_kept(bus: Harness) -> None:
    first = bus.send_result("orders", "ship", 1, unique_key="order 1")
    again = bus.send_result("orders", "ship", 2, unique_key="order 1")
    assert (again.duplicate, again.command_id) == (True, first.command_id)
    worker = bus.worker("orders")
    bus.call(worker.complete, bus.take(worker))
    assert bus.get(first.command_id).status is CommandStatus.COMPLETED
    assert not bus.send_result("orders", "ship", 3, unique_key="order 1").duplicate
