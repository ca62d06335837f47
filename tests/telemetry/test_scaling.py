"""The query for autoscalers in the guide runs, and counts what waits and what runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from commandbus import CommandBus, SendRequest, Worker

GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "telemetry.md"


@pytest.mark.postgres
async def test_the_query_for_autoscalers_counts_waiting_and_running() -> None:
    from commandbus.store.op import Statement
    from tests.postgres.database import postgres_configuration

    found = re.search(r"```sql\n(.*?);\n```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None

    def count() -> Any:
        return (yield Statement(found[1]))[0][0]

    async with CommandBus(postgres_configuration().url, migrate=True) as bus:
        await bus.send_many([SendRequest("orders", "ship")] * 5)
        await bus.send("mail", "welcome")
        worker = Worker(bus, "orders")
        (received,) = await worker.receive(batch_size=1)
        assert await bus.session.run(count()) == 5
        await worker.complete(received)
        assert await bus.session.run(count()) == 4
