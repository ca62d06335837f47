"""Pages on a phone, over a store that has much of everything: none is longer than ten screens."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from commandbus import CommandBus, HandlerRegistry, PermanentCommandError, Schedule, SendRequest
from commandbus.domain.presence import WorkerInfo
from commandbus.operations.presence import report_worker
from tests.web import saga, scene
from tests.web.browser import CHROMIUM, browser
from tests.web.server import Served, served

pytestmark = pytest.mark.skipif(
    not CHROMIUM, reason="!!! no chromium on the path: pages were NOT tried on a phone"
)
WIDTH, HEIGHT, SCREENS_MAX = 390, 844, 10
MESSAGE = (
    "the warehouse refused the parcel: its address is not complete, and the carrier asks for a phone"
)


async def fill(bus: CommandBus) -> None:
    registry = HandlerRegistry()
    for number in range(24):

        async def fail(command: Any, context: Any, number: int = number) -> None:
            raise PermanentCommandError(
                f"WAREHOUSE_REFUSED_{number}", f"{MESSAGE} {command.command_id}"
            )

        registry.register("orders", f"ship_to_country_{number}", fail)
    await bus.send_many(
        SendRequest("orders", f"ship_to_country_{n % 24}", {"order": n, "city": "Atlantis"})
        for n in range(120)
    )
    await scene.work(bus, ("orders",), registry)
    for n in range(60):
        await bus.pause(f"domain_{n}", "the suppliers count their stock until Monday")
        await bus.send(f"domain_{n}", "report", {"n": n})
        await bus.create_batch([SendRequest("orders", "ship", {"n": n})], name=f"a batch of week {n}")
        await bus.put_schedule(
            Schedule(
                name=f"nightly-report-{n}", domain="orders", command_type="report", cron="0 3 * * *"
            )
        )
        await bus.acting("ana").open_breaker(f"warehouse-{n}", 900, reason=MESSAGE)
        await bus.session.run(report_worker(bus.scope, worker(n), 0))
    await saga.deliver(bus, "pen", "kite")


def worker(number: int) -> WorkerInfo:
    now = datetime.now(UTC)
    return WorkerInfo(
        name=f"worker-{number}", host=f"node-{number % 5}", pid=4_000 + number, runtime="asyncio",
        domains=("orders", "payments", "mail"), command_types=(("orders", "ship"), ("mail", "welcome")),
        concurrency=16, started_at=now, seen_at=now, version="0.1.0",
    )  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    store = f"sqlite:///{tmp_path_factory.mktemp('phone')}/bus.db?synchronous=off"
    with served(store, fill, registry=scene.registry) as found:
        yield found


def test_no_page_is_longer_than_ten_screens_or_wider_than_one(place: Served) -> None:
    parked = place.run(place.bus.query_commands(status="IN_TROUBLESHOOTING_QUEUE", limit=1))[0]
    process = place.run(place.bus.list_processes(limit=1))[0]
    batch = place.run(place.bus.list_batches(limit=1))[0]
    paths = ["/", "/domains", "/domains?page=2", "/domains/orders", "/commands",
             "/commands?q=status:parked", "/troubleshooting", "/troubleshooting?page=3", "/batches",
             f"/batches/{batch.batch_id}", "/processes", f"/processes/{process.process_id}",
             "/schedules", "/schedules?page=2", "/workers", "/workers?page=4", "/breakers", "/audit",
             "/audit?view=actions", "/system", "/send",
             f"/commands/orders/{parked.command_id}"]  # fmt: skip
    found: dict[str, tuple[float, int]] = {}
    with browser() as opened:
        page = opened.new_context(viewport={"width": WIDTH, "height": HEIGHT}).new_page()
        page.goto(place.link)
        for path in paths:
            page.goto(place.url + path)
            height, width = page.evaluate(
                "[document.documentElement.scrollHeight, document.documentElement.scrollWidth]"
            )
            found[path] = (round(height / HEIGHT, 1), width)
    assert len(found) == len(paths)
    assert {
        path: size for path, size in found.items() if size[0] > SCREENS_MAX or size[1] > WIDTH
    } == {}, found
