"""The pages of processes: where each stands, its drawing, and what can be done about it."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from uuid import UUID

import httpx

from commandbus import CommandBus, HandlerRegistry, ProcessManager
from commandbus.domain.audit import AuditEvent, AuditEventType
from commandbus.interfaces.web import create_dashboard
from commandbus.interfaces.web.openapi import PREFIX
from commandbus.interfaces.web.timelines import Segment, segments_of
from commandbus.processes import Process, WaitFor, step
from tests.web import saga
from tests.web.visitor import visitor


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
            assert set(boxes_of(undone)) == {"reserve", "charge", "release"}
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
                "stuck": ["retry", "cancel", "end"],
                "unsold": ["retry", "skip", "end"],
            }
            refused = 'release</a> could not undo reserve: <b class="mono">SOLD</b> it stands'
            assert refused in pages["unsold"].text
            assert "dispatch</a> is parked" in pages["stuck"].text
            for name, status in {"stuck": 409, "unsold": 200}.items():
                place = f"{PREFIX}/processes/{ids[name]}/skip"
                answer = await client.post(place, json={"reason": "settled by phone"})
                assert answer.status_code == status, answer.text


class Paid(Process[saga.Order]):
    @step
    def payment(self, state: saga.Order) -> WaitFor:
        return WaitFor("paid")


async def test_a_process_is_given_the_signal_that_it_waits_for_by_its_form() -> None:
    async with CommandBus("memory://") as bus, visitor(bus) as client:
        started = await ProcessManager(bus, Paid).start(saga.Order("pen", 2))
        place = f"/processes/{started.process_id}"
        page = (await client.get(place)).text
        assert 'name="signal" value="paid"' in page, "its name need not be known"
        token = page.split('name="form_token" value="')[1].split('"')[0]
        form = {"form_token": token, "signal": "paid", "data": '{"by": "ann"}'}
        assert (await client.post(f"{place}/signal", data=form)).status_code == 303
        (record,) = await bus.list_actions()
        assert (record.actor, record.action) == ("local", "signal_process")


async def test_forks_joins_and_repeated_compensations_are_drawn() -> None:
    async with CommandBus("memory://") as bus:
        good, undone = await saga.deliver(bus, "pen", "kite")
        registry = HandlerRegistry()
        registry.process(saga.Deliver)
        for declared in (registry, None):
            async with visitor(bus, registry=declared) as client:
                page = (await client.get(f"/processes/{good}")).text
                boxes = boxes_of(page)
                assert boxes["ship"][0] == boxes["notify"][0], "side by side"
                assert boxes["ship"][1] != boxes["notify"][1]
                assert boxes["charge"][0] < boxes["ship"][0] < boxes["close"][0]
                assert page.count('class="way taken"') >= 4, "two ways fork and two join"
                page = (await client.get(f"/processes/{undone}")).text
                words = re.findall(r'class="name">refund</text><text[^>]*class="word">(\w+)<', page)
                assert words == ["failed", "completed"], "both tries of the compensation"
                assert ("not run" in page) == (declared is not None)
                gantt = page.partition('class="gantt"')[2].partition("</svg>")[0]
                assert gantt.count('class="name"') == 6, "four steps and two refunds"
                assert "attempt 1" in gantt


def boxes_of(page: str) -> dict[str, tuple[float, float]]:
    found = re.findall(r'<rect x="([\d.]+)" y="([\d.]+)"[^>]*/><text[^>]*class="name">(\w+)<', page)
    return {name: (float(x), float(y)) for x, y, name in found}


def test_a_timeline_has_waits_attempts_and_parking() -> None:
    at = [datetime(2030, 1, 1, tzinfo=UTC) + timedelta(seconds=n) for n in range(10)]
    kinds = ("SENT", "RECEIVED", "RETRY_SCHEDULED", "RECEIVED", "MOVED_TO_TSQ", "OPERATOR_RETRY",
             "RECEIVED", "COMPLETED")  # fmt: skip
    trail = [
        AuditEvent("d", UUID(int=1), AuditEventType(kind), moment, {})
        for kind, moment in zip(kinds, at, strict=False)
    ]
    parts = [part.kind for part in segments_of(trail, at[9])]
    assert parts == ["waits", "failed", "waits", "failed", "parked", "waits", "completed"]
    assert [part.kind for part in segments_of(trail[:5], at[9])][-1] == "parked"
    assert segments_of(trail[:4], at[9])[-1] == Segment("running", at[3], at[9], "attempt 2 runs")
