"""Figures for Prometheus: what workers and dashboards expose, and that nothing else is asked for."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from commandbus import (
    CommandBus,
    HandlerRegistry,
    PermanentCommandError,
    RetryPolicy,
    Schedule,
    SendRequest,
    TransientCommandError,
    TroubleshootingQueue,
    Worker,
)
from commandbus.domain.outcome import Succeeded
from commandbus.interfaces.web import create_dashboard
from commandbus.observe.commands import CommandFigures
from commandbus.observe.exposition import render, render_sender
from commandbus.observe.text import Exposition
from commandbus.retry import none
from commandbus.runtimes.probes import ProbeServer
from commandbus.store.records import Claimed, Settlement
from commandbus.store.sent import TYPES_MAX
from commandbus.sync import SyncCommandBus
from tests.web import saga

ROOT = Path(__file__).parents[2]
NAME = re.compile(r"\bcommandbus_[a-z_]+")
SUFFIXES = re.compile(r"_(bucket|sum|count)$")

registry = HandlerRegistry()


@registry.handler("orders", "ship", retry=RetryPolicy(2, none()))
async def ship(command: Any, context: Any) -> None:
    match command.data:
        case "permanent":
            raise PermanentCommandError("NO", "never")
        case "transient":
            raise TransientCommandError("LATER", "not now")


def ended(command_type: str, created_at: int, ran: int) -> Settlement:
    fields: dict[str, Any] = dict.fromkeys(f.name for f in msgspec.structs.fields(Claimed))
    told = {"domain": "d", "command_type": command_type, "created_at": created_at}
    return Settlement(1, 1, 1, Succeeded(), ran, claimed=Claimed(**fields | told))


async def exposed() -> str:
    """What a worker and a dashboard show together after some work."""
    async with CommandBus("memory://") as bus:
        worker = Worker(bus, "orders", registry, recycle_after=6)
        server = ProbeServer(worker)
        for data in ("good", "good", "permanent", "transient", "good"):
            await bus.send("orders", "ship", data)
        await worker.run()
        server.stop()
        await bus.send_many([SendRequest("mail", "welcome")] * 4)
        await bus.open_breaker("bank", 60)
        await saga.drive(bus)
        queue = TroubleshootingQueue(bus)
        parked = await queue.list_troubleshooting("orders")
        await queue.operator_cancel(parked[0].command_id, reason="not needed")
        await bus.put_schedule(
            Schedule(name="nightly", domain="orders", command_type="x", cron="0 3 * * *")
        )
        transport = httpx.ASGITransport(app=create_dashboard(bus, open_to_this_machine=True))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            answer = await client.get("/metrics")
            assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
            return render(worker) + answer.text


def values(text: str) -> dict[str, float]:
    rows = (line.rpartition(" ") for line in text.splitlines() if line and not line.startswith("#"))
    return {name: float(value) for name, _, value in rows}


async def test_runs_are_counted_by_type_and_outcome() -> None:
    found = values(await exposed())
    labels = 'domain="orders",type="ship"'
    assert found[f'commandbus_commands_finished_total{{{labels},outcome="completed"}}'] == 3
    assert found[f'commandbus_commands_finished_total{{{labels},outcome="parked"}}'] == 2
    assert found[f'commandbus_attempts_total{{{labels},outcome="retried"}}'] == 1
    assert found[f"commandbus_retries_total{{{labels}}}"] == 1
    assert found[f'commandbus_tsq_moves_total{{{labels},reason="EXHAUSTED"}}'] == 1
    assert found[f'commandbus_tsq_moves_total{{{labels},reason="PERMANENT"}}'] == 1
    assert found[f"commandbus_command_duration_seconds_count{{{labels}}}"] == 6
    assert found[f'commandbus_command_duration_seconds_bucket{{{labels},le="+Inf"}}'] == 6
    assert found[f"commandbus_command_queue_seconds_count{{{labels}}}"] == 5
    assert found[f"commandbus_command_end_to_end_seconds_count{{{labels}}}"] == 3
    assert found['commandbus_tsq_depth{domain="orders"}'] == 1
    assert found['commandbus_queue_oldest_age_seconds{domain="orders"}'] == 0
    assert found['commandbus_commands_ended_total{domain="orders",outcome="completed"}'] == 3


async def test_depth_age_and_breakers_are_shown_for_the_whole_fleet() -> None:
    found = values(await exposed())
    assert found['commandbus_queue_depth{domain="mail",state="ready"}'] == 4
    assert found['commandbus_queue_depth{domain="orders",state="ready"}'] == 0
    assert found['commandbus_queue_oldest_age_seconds{domain="mail"}'] > 0
    assert found['commandbus_breaker_state{breaker="bank",state="open"}'] == 1
    assert found['commandbus_breaker_state{breaker="bank",state="closed"}'] == 0
    assert found['commandbus_schedule_lag_seconds{schedule="nightly"}'] == 0


async def test_operator_actions_and_process_states_are_shown_for_the_whole_fleet() -> None:
    found = values(await exposed())
    assert found['commandbus_tsq_actions_total{domain="orders",action="cancel"}'] == 1
    assert found['commandbus_tsq_actions_total{domain="orders",action="retry"}'] == 0
    instances = {name: n for name, n in found.items() if name.startswith("commandbus_process_inst")}
    stuck = 'type="place_order",state="waiting_for_troubleshooting"'
    assert instances == {f"commandbus_process_instances{{{stuck}}}": 1}


async def test_a_process_that_only_sends_tells_what_it_sent() -> None:
    ours = 'commandbus_commands_sent_total{domain="orders",type="ship"}'
    async with CommandBus("memory://") as bus:
        await bus.send("orders", "ship")
        assert values(render_sender(bus)) == {ours: 1}
    with SyncCommandBus("memory://") as blocking:
        assert values(render_sender(blocking)) == {}
        blocking.send_many([SendRequest("orders", "ship")] * 3)
        assert values(render_sender(blocking)) == {ours: 3}


@pytest.mark.parametrize("names", ["{0} t", "d {0}"])
def test_domains_and_types_from_outside_cannot_grow_a_sender(names: str) -> None:
    places = [names.format(f"n{number}").split() for number in range(TYPES_MAX + 50)]
    with SyncCommandBus("memory://") as bus:
        bus.send_many([SendRequest(*place) for place in places])
        found = values(render_sender(bus))
    assert len(found) == TYPES_MAX + 1
    assert found['commandbus_commands_sent_total{domain="other",type="other"}'] == 50


async def test_sends_and_claims_of_a_worker_are_shown() -> None:
    found = values(await exposed())
    assert found['commandbus_commands_sent_total{domain="mail",type="welcome"}'] == 4
    claims = found["commandbus_claim_duration_seconds_count"]
    assert claims == found['commandbus_claim_duration_seconds_bucket{le="+Inf"}'] > 0
    polls = (f'commandbus_polls_total{{result="{result}"}}' for result in ("found", "empty"))
    assert claims == sum(found[name] for name in polls)
    assert found['commandbus_watchdog_recoveries_total{kind="threads"}'] == 0


async def test_every_metric_is_described() -> None:
    told = (ROOT / "docs" / "guide" / "telemetry.md").read_text(encoding="utf-8")
    for line in (await exposed()).splitlines():
        if line.startswith("# TYPE"):
            name = line.split()[2].removeprefix("commandbus_")
            assert re.search(rf"\b(commandbus_)?{name}\b", told), f"describe {name} in telemetry.md"


async def test_every_metric_of_the_dashboard_and_the_alerts_exists() -> None:
    text = await exposed()
    known = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    for file in ("grafana-dashboard.json", "alerts.yml"):
        content = (ROOT / "deploy" / file).read_text(encoding="utf-8")
        named = {SUFFIXES.sub("", name) for name in NAME.findall(content)}
        assert named, file
        assert named <= known, named - known
    assert json.loads((ROOT / "deploy" / "grafana-dashboard.json").read_text())["panels"]


async def test_the_exposition_is_well_formed() -> None:
    text = await exposed()
    for line in text.splitlines():
        assert re.fullmatch(
            r"# (HELP|TYPE) commandbus_[a-z_]+ .+|"
            r'commandbus_[a-z_]+(\{([a-z_]+="(?:[^"\\]|\\.)*",?)+\})? [-+.e\w]+',
            line,
        ), line


def test_labels_from_outside_cannot_break_a_line() -> None:
    out = Exposition()
    out.add("x", "gauge", "text", ({"domain": 'a"b\\c\nd'}, 1))
    assert out.text().splitlines()[-1] == 'commandbus_x{domain="a\\"b\\\\c\\nd"} 1'


async def test_nothing_is_counted_without_a_reader() -> None:
    async with CommandBus("memory://") as bus:
        worker = Worker(bus, "orders", registry)
        assert worker.observer is None
        assert "commandbus_command_duration_seconds" not in render(worker)


@pytest.mark.postgres
async def test_connections_to_a_server_are_counted() -> None:
    from tests.postgres.database import postgres_configuration

    async with CommandBus(postgres_configuration().url, migrate=True) as bus:
        await bus.send("orders", "ship", "good")
        worker = Worker(bus, "orders", registry, recycle_after=1)
        await worker.run()
        found = values(render(worker))
    assert found["commandbus_pool_connections_max"] >= 1
    busy = found['commandbus_pool_connections{state="busy"}']
    assert busy <= found["commandbus_pool_connections_max"]
    assert found['commandbus_pool_connections{state="reserved"}'] >= 0
    assert found["commandbus_pool_exhaustions"] == 0


def test_a_run_is_counted_in_the_bucket_of_its_time() -> None:
    figures = CommandFigures()
    late = int((time.time() + 3_600) * 1_000_000)
    figures([ended("t", late, ran) for ran in (61_000_000, 5_000, 5_001)])
    figures([ended("t", late, ran) for ran in (10_000, 0)])
    out = Exposition()
    figures.write(out)
    found = values(out.text())
    labels = 'domain="d",type="t"'
    buckets = {
        bound: found[f'commandbus_command_duration_seconds_bucket{{{labels},le="{bound}"}}']
        for bound in ("0.005", "0.01", "60.0", "+Inf")
    }
    assert buckets == {"0.005": 2, "0.01": 4, "60.0": 4, "+Inf": 5}
    total = found[f"commandbus_command_duration_seconds_sum{{{labels}}}"]
    assert total == pytest.approx(61.020001)
    assert found[f"commandbus_command_end_to_end_seconds_count{{{labels}}}"] == 5
    assert found[f"commandbus_command_end_to_end_seconds_sum{{{labels}}}"] == 0


def test_types_from_outside_cannot_grow_a_worker() -> None:
    figures = CommandFigures()
    figures([ended(f"t{number}", 0, 5) for number in range(TYPES_MAX + 50)])
    out = Exposition()
    figures.write(out)
    assert 'type="other"' in out.text()
    assert out.text().count("commandbus_retries_total{") == TYPES_MAX + 1


async def test_a_counter_that_fails_costs_no_command(caplog: pytest.LogCaptureFixture) -> None:
    def broken(settlements: object) -> None:
        raise RuntimeError("cannot count")

    async with CommandBus("memory://") as bus:
        sent = await bus.send("orders", "ship", "now")
        worker = Worker(bus, "orders", registry, recycle_after=1)
        worker.observer = broken
        await worker.run()
        found = await bus.get_command(sent.command_id)
        assert found is not None
        assert found.status == "COMPLETED"
    assert "cannot count" in caplog.text
