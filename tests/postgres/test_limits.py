"""Groups over processes on one server, one of them killed; and what a plain claim is spared."""

from __future__ import annotations

from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from commandbus import SendRequest
from commandbus.store.records import ClaimRequest
from commandbus.sync import SyncCommandBus
from tests.os_processes import journal
from tests.os_processes.lab import Child, wait_until
from tests.os_processes.test_limits import check_group
from tests.postgres.database import empty_url

pytestmark = pytest.mark.postgres


@pytest.fixture
def url() -> str:
    return empty_url()


def begun_by(effects: Path, worker: str) -> bool:
    return any(effect["worker"] == worker for effect in journal.read(effects))


@pytest.mark.parametrize("runtime", ["asyncio", "threads"])
def test_one_of_a_group_at_a_time_in_order_with_a_killed_process(
    url: str, tmp_path: Path, runtime: str
) -> None:
    effects = tmp_path / "effects.jsonl"
    config = {
        "role": "worker", "runtime": runtime, "url": url, "domain": "work", "effects": str(effects),
        "concurrency": 4, "visibility_timeout": 1.0,
    }  # fmt: skip
    children = [Child("tests.os_processes.child", config) for _ in range(3)]
    try:
        names = [child.expect("ready")["name"] for child in children]
        with SyncCommandBus(url) as bus:
            requests = [
                SendRequest("work", "member", [n % 5, n // 5], group_key=f"g{n % 5}")
                for n in range(400)
            ]
            bus.send_many(requests)
            wait_until(partial(begun_by, effects, names[0]), "it has begun something")
            children[0].kill()
            wait_until(lambda: bus.stats("work").completed == 400, "all ended")
        histories: dict[int, list[dict[str, Any]]] = defaultdict(list)
        for effect in journal.read(effects):
            histories[effect["data"][0]].append(effect)
        assert len(histories) == 5
        for history in histories.values():
            check_group(history, {names[0]})
    finally:
        for child in children:
            if child.process.poll() is None:
                child.kill()
            elif child.process.stdout is not None and not child.process.stdout.closed:
                child.wait()
    with psycopg.connect(url) as connection:
        for table in ("held", "permit", "queue", "lease"):
            left = connection.execute(f"select count(*) from commandbus.{table}").fetchone()
            assert left == (0,), table


def test_plain_commands_never_pass_a_gate(url: str) -> None:
    with SyncCommandBus(url) as bus:
        bus.send_many([SendRequest("work", "note", n) for n in range(300)])
        bus.send("work", "note")
        with psycopg.connect(url) as connection:
            for table in ("held", "permit", "touch", "partition"):
                rows = connection.execute(f"select count(*) from commandbus.{table}").fetchone()
                assert rows == (0,), table
            gated = connection.execute("select gated from commandbus.domain").fetchall()
            assert gated == [(False,)]


def test_a_chain_ends_before_a_locked_member(url: str) -> None:
    """It may be let go again, and must not have been overtaken then."""
    with SyncCommandBus(url, migrate=True) as bus, psycopg.connect(url) as somebody:
        bus.send_many([SendRequest("d", "t", n, group_key="k") for n in range(5)])
        request = ClaimRequest(("d",), 1, "w", 30.0, followers=10, chain=10)
        somebody.execute(
            "select 1 from commandbus.held"
            " where seq = (select min(seq) + 2 from commandbus.held) for update"
        )
        claimed = bus.session.run(bus.engine.store.claim(request)).claimed
        assert [one.data for one in claimed] == ["0", "1"]


def test_a_claim_that_finds_work_waits_for_no_other_that_opens_gates(url: str) -> None:
    request = ClaimRequest(("d",), 1, "w", 30.0)
    with SyncCommandBus(url) as bus, psycopg.connect(url) as other, ThreadPoolExecutor(1) as threads:
        bus.set_limit("d", "limited", concurrency=1)
        bus.send("d", "limited")
        bus.send("d", "plain")
        for _ in range(2):  # a lock is a row that stays: the first call adds it
            other.commit()
            other.execute("select commandbus.lock_mutex('admit d', true)")
        claiming = threads.submit(bus.session.run, bus.engine.store.claim(request))
        try:
            claimed = claiming.result(timeout=10).claimed
        finally:
            other.rollback()
        assert [one.command_type for one in claimed] == ["plain"]
