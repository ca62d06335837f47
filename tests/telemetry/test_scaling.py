"""The query for autoscalers in the guide and in deploy/ runs, and counts what waits and what runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from commandbus import CommandBus, SendRequest, Worker

ROOT = Path(__file__).parents[2]


def in_the_guide() -> str:
    page = (ROOT / "docs" / "guide" / "telemetry.md").read_text(encoding="utf-8")
    found = re.search(r"```sql\n(.*?);\n```", page, re.DOTALL)
    assert found is not None
    return found[1]


def of_keda() -> str:
    file = ROOT / "deploy" / "kubernetes" / "components" / "keda" / "scaling.yaml"
    scaled, _ = yaml.safe_load_all(file.read_text(encoding="utf-8"))
    query: str = scaled["spec"]["triggers"][0]["metadata"]["query"]
    return query


@pytest.mark.postgres
@pytest.mark.parametrize("query", [in_the_guide(), of_keda()], ids=["guide", "keda"])
async def test_the_query_for_autoscalers_counts_waiting_and_running(query: str) -> None:
    from commandbus.store.op import Statement
    from tests.postgres.database import postgres_configuration

    def count() -> Any:
        return (yield Statement(query))[0][0]

    async with CommandBus(postgres_configuration().url, migrate=True) as bus:
        await bus.send_many([SendRequest("orders", "ship")] * 5)
        await bus.send("mail", "welcome")
        await bus.send("orders", "print", group_key="invoice")
        await bus.send("orders", "print", group_key="invoice")
        worker = Worker(bus, "orders")
        (received,) = await worker.receive(batch_size=1)
        assert await bus.session.run(count()) == 7
        await worker.complete(received)
        assert await bus.session.run(count()) == 6
