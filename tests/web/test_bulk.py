"""Bulk actions: they go on in the background, and can be followed and stopped."""

from __future__ import annotations

import asyncio
import html
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from commandbus import CommandBus, SendRequest
from commandbus.errors import InvalidOperationError
from commandbus.interfaces.web import action_pages, actions
from commandbus.interfaces.web import bulk as module
from commandbus.interfaces.web.bulk import Bulks, Progress, new_bulk
from commandbus.interfaces.web.stores import Stores
from commandbus.operations.bulk_troubleshooting import BulkReport
from commandbus.runtimes.asyncio import facade
from tests.web import scene
from tests.web.visitor import visitor

PARKED = 1_100


async def test_all_that_match_are_retried_in_one_bulk_action_that_the_audit_names(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(actions, "BULK_SECONDS", 0.0)
    store = f"sqlite:///{tmp_path}/bus.db?synchronous=off"
    async with CommandBus(store) as bus, visitor(bus) as client:
        await bus.send_many(
            SendRequest("orders", "ship", {"order": n, "city": "Atlantis"}) for n in range(PARKED)
        )
        await scene.work(bus, ("orders",))
        page = (await client.get("/troubleshooting")).text
        assert f"All {PARKED:,} that are parked" in page
        preview = (await client.get("/commands/retry?everything=on")).text
        assert f"Retry {PARKED:,} commands" in preview
        token = preview.split('name="form_token" value="')[1].split('"')[0]
        form = {"form_token": token, "everything": "on", "reason": "the map was mended"}
        answer = await client.post("/commands/retry", data=form)
        place = answer.headers["location"]
        assert place.startswith("/bulk/")
        while 'data-poll="1000"' in (shown := (await client.get(place)).text):
            await asyncio.sleep(0.05)  # each page takes time from the action that it shows
        assert f"{PARKED:,} of {PARKED:,}" in shown
        assert "the map was mended" in shown
        assert "They are pending again." in shown, "done is not completed"
        assert (await bus.stats("orders")).parked == 0
        (record,) = await bus.list_actions(action="bulk_retry")
        assert (record.actor, record.reason) == ("local", "the map was mended")
        assert f"{PARKED:,} commands (everything)" in record.subject
        assert place in (await client.get("/troubleshooting")).text, "it is listed for a while"


async def test_a_canary_that_fails_leaves_the_rest_parked_and_the_page_says_so() -> None:
    async with CommandBus("memory://") as bus, visitor(bus) as client:
        for _ in range(5):
            await scene.park(bus)
        (group,) = (await client.get("/api/v1/troubleshooting/groups")).json()["groups"]
        which = {"group": group["fingerprint"], "domain": "orders", "command_type": "ship"}
        form = (await client.get("/commands/retry", params=which)).text
        assert 'name="canary"' in form
        assert "retry so many first" in form, "what a field is for is shown, not only on hover"
        assert "NO_SUCH_CITY</b>" in form
        assert "Atlantis is not on the map" in form
        token = form.split('name="form_token" value="')[1].split('"')[0]
        given = which | {"form_token": token, "reason": "the map may be mended", "canary": "2"}
        answer = await client.post("/commands/retry", data=given | {"patience": "0s"})
        page = (await client.get(answer.headers["location"])).text
        assert "<dt>Canary</dt><dd>2 first</dd>" in page
        assert "2 commands of the canary did not complete, so the rest stayed parked" in page
        assert page.count('<a class="mono" href="/commands?q=') == 2
        assert (await bus.stats("orders")).parked == 3


async def test_a_parked_command_leads_to_the_others_with_its_error() -> None:
    async with CommandBus("memory://") as bus, visitor(bus) as client:
        for _ in range(3):
            command_id = await scene.park(bus)
        page = (await client.get(f"/commands/orders/{command_id}")).text
        lead = page.split('class="lead"')[1].split("</p>")[0]
        assert "Atlantis is not on the map" in lead, "the error comes before what can be done"
        others = page.split(">All parked with this error<")[0].rpartition('href="')[2].rstrip('"')
        found = (await client.get(html.unescape(others))).text
        assert found.count('data-label="Command"') == 3


async def test_a_preview_of_many_matches_counts_only_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(action_pages, "COUNTED_MAX", 5)
    async with CommandBus("memory://") as bus, visitor(bus) as client:
        await bus.send_many([SendRequest("mail", "welcome", {"n": n}) for n in range(7)])
        page = (await client.get("/commands/reschedule", params={"domain": "mail"})).text
        assert "Reschedule 5+ commands</h1>" in page
        token = page.split('name="form_token" value="')[1].split('"')[0]
        given = {"form_token": token, "domain": "mail", "delay": "2h", "reason": "later"}
        assert (await client.post("/commands/reschedule", data=given)).status_code == 303
        assert (await bus.stats("mail")).scheduled == 7, "the action is for all of them"


async def test_a_word_that_fits_nothing_says_how_payloads_are_searched() -> None:
    async with CommandBus("memory://") as bus, visitor(bus) as client:
        await scene.park(bus)
        assert "data.order:706001" in (await client.get("/commands?q=706001")).text
        assert "Take a condition away" in (await client.get("/commands?q=type:none")).text


async def test_a_bulk_action_is_stopped_from_another_process_of_the_dashboard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "SAVE_SECONDS", 0.001)
    async with CommandBus("memory://") as bus:
        mine, other = Bulks(Stores(bus)), Bulks(Stores(bus))

        async def work(progress: Progress) -> Any:
            done = 0
            while progress(done, 500):
                done += 1
                await asyncio.sleep(0)
            return BulkReport(500, done, 0, stopped=True)

        bulk = new_bulk("Retry", {"Domain": "orders"}, "", "ana", "a test", 500)
        task = await mine.start(bulk, work)
        assert (await other.get(bulk.bulk_id)).state == "running"
        await other.stop(bulk.bulk_id)
        ended = await task
        assert (ended.state, ended.is_stopping) == ("stopped", True)
        with pytest.raises(InvalidOperationError, match="ended already"):
            await other.stop(bulk.bulk_id)
        assert [one.bulk_id for one in await other.list()] == [bulk.bulk_id]


def test_a_bulk_action_whose_process_is_gone_is_interrupted() -> None:
    bulk = new_bulk("Retry", {}, "", "ana", "a test", 500)
    later = datetime.now(UTC) + timedelta(minutes=1)
    assert bulk.state_at(datetime.now(UTC)) == "running"
    assert bulk.state_at(later) == "interrupted"
    assert msgspec.structs.replace(bulk, state="done").state_at(later) == "done"


async def test_a_bulk_action_that_cannot_be_begun_keeps_the_form() -> None:
    async with CommandBus("memory://") as bus, visitor(bus) as client:
        await scene.fill(bus, parked=2)
        token = (
            (await client.get("/commands/retry?domain=orders"))
            .text.split('name="form_token" value="')[1]
            .split('"')[0]
        )
        refused = await client.post(
            "/commands/complete", data={"form_token": token, "domain": "orders", "result": "{"}
        )
        assert refused.status_code == 422
        assert 'value="{"' in refused.text
        assert (await client.get("/bulk/nope")).status_code == 404


async def test_a_bulk_action_in_memory_leaves_the_loop_to_other_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(facade, "FAIR_SECONDS", 0.0)
    async with CommandBus("memory://") as bus:
        for _ in range(20):
            await bus.send("orders", "ship")
        seen: list[int] = []

        async def look() -> None:
            while True:
                seen.append((await bus.query_commands(limit=1))[0].priority)
                await asyncio.sleep(0)

        looking = asyncio.create_task(look())
        await bus.reprioritise_many(3, domain="orders")
        looking.cancel()
        assert len(seen) >= 20
