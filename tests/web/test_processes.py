"""The pages of processes: where each stands, its drawing, and what can be done about it."""

from __future__ import annotations

import re

import httpx

from commandbus import CommandBus
from commandbus.interfaces.web import create_dashboard
from commandbus.interfaces.web.openapi import PREFIX
from tests.web import saga


async def test_processes_are_listed_drawn_and_acted_upon() -> None:
    async with CommandBus("memory://") as bus:
        ids = await saga.drive(bus)
        transport = httpx.ASGITransport(app=create_dashboard(bus, open_to_this_machine=True))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            listed = (await client.get(f"{PREFIX}/processes")).json()["processes"]
            assert {p["process_id"]: p["status"] for p in listed} == {
                str(ids["good"]): "COMPLETED",
                str(ids["undone"]): "COMPENSATED",
                str(ids["stuck"]): "WAITING_FOR_TROUBLESHOOTING",
            }
            stuck = {"status": "WAITING_FOR_TROUBLESHOOTING"}
            page = (await client.get("/processes", params=stuck)).text
            assert page.count("/processes/0") == 1

            undone = (await client.get(f"/processes/{ids['undone']}")).text
            assert undone.count("<g class=") == 3, "two steps and what undid one of them"
            assert "NO_MONEY" in undone
            assert "tok_77" not in undone, "secrets of a state are hidden"
            assert 'class="way undo"' in undone

            waiting = (await client.get(f"/processes/{ids['stuck']}")).text
            assert '<g class="parked">' in waiting
            done = await client.post(f"{PREFIX}/processes/{ids['stuck']}/retry", json={})
            assert done.status_code == 200, done.text
            again = await client.post(f"{PREFIX}/processes/{ids['good']}/cancel", json={"reason": "x"})
            assert again.status_code == 409
            actions = (await client.get(f"{PREFIX}/actions")).json()["actions"]
            assert [(a["actor"], a["action"]) for a in actions] == [("local", "retry_process")]
            missing = await client.get("/processes/00000000-0000-4000-8000-000000000000")
            assert missing.status_code == 404
            assert (await client.get("/processes", params={"status": "NONSENSE"})).status_code == 422


async def test_a_process_is_offered_only_what_helps_it() -> None:
    async with CommandBus("memory://") as bus:
        ids = await saga.drive(bus, unsold=saga.Order("piano", 20_000))
        transport = httpx.ASGITransport(app=create_dashboard(bus, open_to_this_machine=True))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            pages = {name: await client.get(f"/processes/{one}") for name, one in ids.items()}
            acts = re.compile(r'action="/processes/[^/]+/(\w+)"')
            offered = {name: acts.findall(page.text) for name, page in pages.items()}
            assert offered == {
                "good": [],
                "undone": [],
                "stuck": ["retry", "cancel"],
                "unsold": ["retry", "skip"],
            }
            refused = 'release</a> could not undo reserve: <b class="mono">SOLD</b> it stands'
            assert refused in pages["unsold"].text
            assert "dispatch</a> is parked" in pages["stuck"].text
            for name, status in {"stuck": 409, "unsold": 200}.items():
                place = f"{PREFIX}/processes/{ids[name]}/skip"
                answer = await client.post(place, json={"reason": "settled by phone"})
                assert answer.status_code == status, answer.text
