"""Pages at first sight: what they show before anybody has asked for anything."""

from __future__ import annotations

import asyncio
import html
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from starlette.routing import Route

from commandbus import (
    CommandBus,
    HandlerRegistry,
    PermanentCommandError,
    Schedule,
    TroubleshootingQueue,
    Worker,
)
from commandbus.interfaces.actions.table import ACTIONS, WORKER
from commandbus.interfaces.web import create_dashboard
from commandbus.interfaces.web.failure_groups import FRESH_SECONDS_MAX
from commandbus.operations.presence import report_worker
from commandbus.operations.restarts import record_restart
from commandbus.records import WorkerInfo, WorkerRestart
from commandbus.testing import FakeClock
from tests.web import saga, scene
from tests.web.visitor import visitor


async def test_every_page_tells_beside_the_menu_how_many_wait_for_a_person() -> None:
    async with CommandBus("memory://") as bus, visitor(bus) as client:
        await saga.drive(bus)
        for place in ("/", "/processes", "/audit"):
            assert '<b>1<span class="unseen"> parked</span></b>' in (await client.get(place)).text


async def test_failure_groups_are_shown_ten_at_a_time_with_the_true_count_of_all() -> None:
    async with CommandBus("memory://") as bus, visitor(bus) as client:
        registry = HandlerRegistry()
        for number in range(23):

            async def fail(command: Any, context: Any, number: int = number) -> None:
                raise PermanentCommandError(f"CODE_{number:02}", "refused")

            registry.register("orders", f"ship{number}", fail)
            for _ in range(number + 1):
                await bus.send("orders", f"ship{number}")
        await scene.work(bus, ("orders",), registry)
        page = (await client.get("/troubleshooting")).text
        assert "<b>276</b> commands wait for an operator, in 23 groups" in page
        assert shown_codes(page) == [f"CODE_{number:02}" for number in range(22, 12, -1)]
        assert 'rel="next" href="/troubleshooting?page=2">Next</a>' in page
        page = (await client.get("/troubleshooting?page=3")).text
        assert shown_codes(page) == ["CODE_02", "CODE_01", "CODE_00"]
        preview = (await client.get("/commands/retry?everything=on")).text
        assert '<a href="/troubleshooting" aria-current="page">' in preview
        assert 'rel="prev" href="/troubleshooting?page=2">Previous</a>' in page
        assert (await client.get("/troubleshooting?page=0")).status_code == 422


def shown_codes(page: str) -> list[str]:
    return re.findall(r'<b class="mono">(CODE_\d+)</b>', page)


async def test_a_count_of_groups_is_kept_for_a_moment_and_not_past_an_action() -> None:
    async with CommandBus("memory://") as bus, visitor(bus) as client:
        queue, groups = TroubleshootingQueue(bus), "/api/v1/troubleshooting/groups"

        first, second = await scene.park(bus), await scene.park(bus)
        known = (await client.get(groups)).json()
        assert known["count"] == 2
        place = f"/api/v1/commands/orders/{first}/retry"
        assert (await client.post(place, json={"reason": "mended"})).status_code == 200
        counted = (await client.get(groups)).json()
        assert counted["count"] == 1, "an action of this dashboard is counted at once"
        await queue.operator_retry(second, reason="by another program")
        deadline = asyncio.get_running_loop().time() + FRESH_SECONDS_MAX + 2
        while (later := (await client.get(groups)).json())["count"]:
            assert later["counted_at"] == counted["counted_at"], "kept, and of the moment that it says"
            assert asyncio.get_running_loop().time() < deadline
            await asyncio.sleep(0.05)
        assert later["counted_at"] > counted["counted_at"]


async def test_an_empty_store_shows_how_to_begin_instead_of_empty_charts() -> None:
    async with CommandBus("memory://") as bus, visitor(bus) as client:
        page = (await client.get("/")).text
        assert "commandbus send orders" in page
        assert "<figure " not in page
        await bus.send("orders", "ship")
        async with visitor(bus) as another:
            assert "<figure " in (await another.get("/")).text


async def test_with_an_app_one_begins_with_a_form() -> None:
    async with CommandBus("memory://") as bus, visitor(bus, registry=scene.registry) as client:
        assert 'href="/send">Send one</a>' in (await client.get("/")).text
        form = '<input type="hidden" name="domain" value="mail">'
        assert form in (await client.get("/send")).text, "the first of those that there are"
        assert form not in (await client.get("/send?domain=orders&type=ship")).text


async def test_a_worker_is_shown_with_its_tags_and_a_router_with_its_processes() -> None:
    now = datetime.now(UTC)
    worker = WorkerInfo(
        "w", "h", 1, "asyncio", ("video",), (("video", "cut"),), 4, now, now, "1", ("gpu",)
    )
    router = WorkerInfo("r", "h", 2, "asyncio", ("a.replies",), (), 1, now, now, "1", (), ("a",))
    async with CommandBus("memory://") as bus, visitor(bus) as client:
        for info in (worker, router):
            await bus.session.run(report_worker(bus.scope, info, 0))
        page = (await client.get("/workers")).text
        assert page.count("command type") == 1
        assert "has gpu" in page
        assert 'href="/processes?process_type=a">drives a</a>' in page


async def test_the_audit_shows_comments_and_assignees() -> None:
    async with CommandBus("memory://") as bus, visitor(bus) as client:
        await scene.fill(bus)
        parked = (await bus.query_commands(status="IN_TROUBLESHOOTING_QUEUE", limit=1))[0]
        desk = TroubleshootingQueue(bus)
        await desk.acting("ana").comment(parked.command_id, "asked the customer")
        await desk.acting("ana").assign(parked.command_id, "ben")
        page = (await client.get("/audit")).text
        assert '<td data-label="Details">asked the customer</td>' in page
        assert '<td data-label="Details">to ben</td>' in page


async def test_a_command_that_ended_is_shown_once_and_in_short() -> None:
    async with CommandBus("memory://") as bus, visitor(bus) as client:
        await saga.drive(bus)
        ended = (await bus.query_commands(status="COMPLETED", limit=1))[0]
        page = (await client.get(f"/commands/{ended.domain}/{ended.command_id}")).text
        assert "COMPLETED at" not in page


async def test_a_domain_shows_its_limits_and_how_to_change_them() -> None:
    async with CommandBus("memory://") as bus, visitor(bus) as client:
        await bus.send("mail", "digest")
        await bus.set_limit("mail", "digest", rate=5)
        page = (await client.get("/domains/mail")).text
        assert '<td data-label="Rate" class="num">5 per second</td>' in page
        assert 'action="/limits/mail/clear"' in page
        assert '<input type="hidden" name="command_type" value="digest">' in page
        assert 'name="concurrency"' in (await client.get("/limits/mail/set")).text
        token = page.split('name="form_token" value="')[1].split('"')[0]
        form = {"form_token": token, "command_type": "digest"}
        assert (await client.post("/limits/mail/clear", data=form)).status_code == 303
        assert not await bus.list_limits()


async def test_a_domain_offers_what_is_done_to_its_commands_schedules_limits_and_workers() -> None:
    async with CommandBus("memory://") as bus, visitor(bus) as client:
        await scene.present(bus)
        await bus.send("orders", "ship")
        for n in range(7):
            await bus.put_schedule(
                Schedule(name=f"nightly-{n}", domain="orders", command_type="ship", every=60)
            )
        limits: dict[str, Any] = {
            "ship": {"concurrency": 4},
            "bill": {"rate": 100, "per": 3_600, "burst": 5},
        }
        for command_type, options in limits.items():
            await bus.set_limit("orders", command_type, **options)
        page = html.unescape((await client.get("/domains/orders")).text)
        actions = [action for action in ACTIONS if action.many or action.subject is WORKER]
        assert len(actions) >= 10
        for action in actions:
            place = f"{action.list_path}?domain=orders"
            assert f'href="{place}"' in page
            answer = await client.get(place)
            assert answer.status_code == 200
            assert ("No command fits" in answer.text) or 'name="domain" value="orders"' in answer.text
        assert 'href="/schedules/nightly-4/edit"' in page
        assert '<a href="/schedules">2 more</a>' in page
        added = (await client.get("/schedules/add?domain=orders")).text
        assert 'name="domain" value="orders"' in added
        before = list(await bus.list_limits("orders"))
        edits = re.findall(r'href="(/limits/orders/set[?][^"]+)"', page)
        assert len(edits) == 2
        for place in edits:
            form = (await client.get(place)).text
            fields = dict(re.findall(r'<input[^>]*name="(\w+)"[^>]*? value="([^"]*)"', form))
            answer = await client.post("/limits/orders/set", data=fields)
            assert answer.status_code == 303, "it can be sent as it is"
        assert list(await bus.list_limits("orders")) == before


async def test_attempts_are_counted_out_of_what_is_left_only_while_there_are_more() -> None:
    async with CommandBus("memory://") as bus, visitor(bus) as client:
        parked, sent = await scene.park(bus), (await bus.send("orders", "ship")).command_id
        facts = (await client.get(f"/commands/orders/{parked}")).text
        assert "<dt>Attempts</dt><dd>1</dd>" in facts, "a handler may have a maximum of its own"
        assert "<dt>Attempts</dt><dd>0 of 3</dd>" in (await client.get(f"/commands/orders/{sent}")).text
        rows = (await client.get("/commands")).text
        assert rows.count('<span class="faint">/3</span>') == 1


async def test_a_form_that_does_not_fit_keeps_what_was_entered() -> None:
    async with CommandBus("memory://") as bus, visitor(bus) as client:
        page = (await client.get("/schedules/add")).text
        token = page.split('name="form_token" value="')[1].split('"')[0]
        form = {"form_token": token, "name": "nightly", "domain": "mail", "command_type": "digest"}
        refused = await client.post("/schedules/add", data=form | {"every": "soon"})
        assert refused.status_code == 422
        assert "must be a duration" in refused.text
        assert 'value="nightly"' in refused.text
        done = await client.post("/schedules/add", data=form | {"every": "2h", "overlap": "skip"})
        assert done.status_code == 303
        record = await bus.get_schedule("nightly")
        assert record is not None
        assert (record.schedule.every, record.schedule.overlap) == (7200, "skip")
        shown = (await client.get("/schedules/nightly/edit")).text
        assert 'value="7200"' in shown
        assert "<option selected>skip</option>" in shown


async def test_a_purge_needs_the_name_of_its_domain() -> None:
    async with CommandBus("memory://") as bus, visitor(bus) as client:
        await bus.send("mail", "digest")
        page = (await client.get("/domains/mail/purge")).text
        assert "To confirm, type mail" in page
        token = page.split('name="form_token" value="')[1].split('"')[0]
        for word, status in (("orders", 422), ("mail", 303)):
            form = {"form_token": token, "confirm": word, "reason": "a test"}
            assert (await client.post("/domains/mail/purge", data=form)).status_code == status
        assert not await bus.list_domains()


async def test_an_error_keeps_the_form_and_what_was_entered() -> None:
    async with CommandBus("memory://") as bus, visitor(bus, registry=scene.registry) as client:
        await scene.fill(bus)
        parked = (await bus.query_commands(status="IN_TROUBLESHOOTING_QUEUE", domain="orders"))[0]
        place = f"/commands/orders/{parked.command_id}"
        token = (await client.get(place)).text.split('name="form_token" value="')[1].split('"')[0]
        for payload, told in (('{"order": ', "is not JSON"), ('{"order": "x"}', "order")):
            form = {"form_token": token, "data": payload, "reason": "meant Cork"}
            refused = await client.post(f"{place}/retry", data=form)
            assert refused.status_code == 422
            assert told in refused.text
            assert payload.replace('"', "&#34;") in refused.text
            assert 'value="meant Cork"' in refused.text
            assert f'action="{place}/retry"' in refused.text
        form = {"form_token": token, "delay": "soon", "reason": "later", "domain": "mail"}
        refused = await client.post("/commands/reschedule", data=form)
        assert refused.status_code == 422
        assert "must be a duration" in refused.text
        assert 'value="soon"' in refused.text
        assert 'value="later"' in refused.text
        assert (await client.get(f"{place}/retry")).text.count("Atlantis") > 0


async def test_no_page_is_hidden_by_that_of_a_subject_with_its_name() -> None:
    app = create_dashboard("memory://", open_to_this_machine=True)
    routes = [
        route for route in app.routes if isinstance(route, Route) and "GET" in (route.methods or ())
    ]
    fixed = [route.path for route in routes if not route.param_convertors]
    for path in fixed:
        first = next(route for route in routes if route.path_regex.match(path))
        assert first.path == path, f"{path} is answered by {first.path}"
    assert "/domain/pause" in fixed


async def test_a_domain_is_paused_before_anything_is_sent_to_it() -> None:
    async with CommandBus("memory://") as bus, visitor(bus) as client:
        assert 'href="/domain/pause">Pause a domain …</a>' in (await client.get("/domains")).text
        page = (await client.get("/domain/pause")).text
        assert 'name="domain"' in page
        assert '<a href="/domains" aria-current="page">' in page
        token = page.split('name="form_token" value="')[1].split('"')[0]
        form = {"form_token": token, "domain": "mail", "new": "on", "reason": "not yet"}
        answer = await client.post("/domain/pause", data=form)
        assert answer.headers["location"] == "/domains/mail"
        assert (await bus.stats("mail")).paused
        await bus.resume("mail")
        assert 'name="new"' not in (await client.get("/domains/mail")).text, "there it is no question"


async def test_an_unknown_domain_is_not_found() -> None:
    async with CommandBus("memory://") as bus, visitor(bus) as client:
        await bus.send("mail", "digest")
        answer = await client.get("/domains/nope")
        assert answer.status_code == 404
        assert "There is no domain &#39;nope&#39;" in answer.text
        assert (await client.get("/domains/mail")).status_code == 200


async def test_a_worker_shows_what_its_slots_run_its_memory_and_recent_crashes() -> None:
    ran, go = asyncio.Event(), asyncio.Event()
    registry = HandlerRegistry()

    @registry.handler("video", "cut")
    async def cut(command: Any, context: Any) -> None:
        ran.set()
        await go.wait()

    async with CommandBus("memory://") as bus, visitor(bus) as client:
        sent = await bus.send("video", "cut")
        worker = Worker(bus, ["video"], registry, concurrency=3)
        running = asyncio.create_task(worker.run())
        await ran.wait()
        restart = WorkerRestart("w-9", "h", 1, datetime.now(UTC), "the event loop was blocked")
        await bus.session.run(record_restart(bus.scope, restart))
        page = (await client.get("/workers")).text
        go.set()
        await worker.stop()
        await running
        assert "1 of 3 busy" in page
        assert f'href="/commands/video/{sent.command_id}">cut</a>' in page
        assert re.search(r">\d+ MB<|>\d+\.\d MB<", page) or not Path("/proc/self/statm").exists()
        assert "restarted: the event loop was blocked" in page


async def test_a_command_whose_worker_died_is_among_the_crashes_with_its_cause() -> None:
    clock = FakeClock(datetime.now(UTC))
    async with CommandBus("memory://", clock=clock) as bus, visitor(bus) as client:
        sent = await bus.send("video", "cut")
        first, second = (Worker(bus, ["video"], scene.registry) for _ in range(2))
        assert await first.receive(batch_size=1)
        clock.advance(40)
        assert await second.receive(batch_size=1)
        page = (await client.get("/workers")).text
        crashes = page.partition("<h2>Crashes and restarts</h2>")[2]
        told = rf'<td data-label="Worker">{first.name}</td><td data-label="Cause">[^<]{{10,}}<'
        assert re.search(told, crashes), crashes
        assert f'href="/commands/video/{sent.command_id}">cut</a>' in crashes


async def test_a_filter_is_saved_as_a_view_and_deleted() -> None:
    async with CommandBus("memory://") as bus, visitor(bus) as client:
        await bus.send("mail", "digest")
        place = "/commands?q=domain:mail+status:pending"
        page = (await client.get(place)).text
        token = page.split('name="form_token" value="')[1].split('"')[0]
        form = {"form_token": token, "name": "mail & <b>", "q": "domain:mail status:pending"}
        assert (await client.post("/views/save", data=form)).status_code == 303
        assert (await client.post("/views/save", data=form | {"name": ""})).status_code == 422
        page = (await client.get("/commands")).text
        assert ">mail &amp; &lt;b&gt;</a>" in page
        assert 'href="/commands?q=domain%3Amail+status%3Apending"' in page
        assert "Delete the view mail" in (await client.get(place)).text
        assert (await client.post("/views/delete", data=form)).status_code == 303
        assert (await client.post("/views/delete", data=form)).status_code == 404
        acts = [record.action for record in await bus.list_actions()]
        assert acts == ["delete_view", "save_view"]


async def test_workers_are_asked_by_buttons_and_forms() -> None:
    async with CommandBus("memory://") as bus, visitor(bus) as client:
        await scene.present(bus)
        page = (await client.get("/workers")).text
        token = page.split('name="form_token" value="')[1].split('"')[0]
        form = {"form_token": token, "workers": "worker-1"}
        assert (await client.post("/workers/quiet", data=form)).status_code == 303
        page = (await client.get("/workers")).text
        assert "not heard yet: asked to be quiet by" in page
        assert page.count('action="/workers/quiet') == 2
        assert 'action="/workers/resume?workers=worker-1"' in page
        stop = (await client.get("/workers/stop?workers=worker-1")).text
        assert 'name="workers" value="worker-1"' in stop
        assert (await client.post("/workers/stop", data=form)).status_code == 422, "without a reason"
        assert (await client.post("/workers/stop", data=form | {"reason": "sick"})).status_code == 303
        assert "asked to stop by" in (await client.get("/workers")).text
        wrong = await client.post("/workers/concurrency", data=form | {"concurrency": "many"})
        assert (wrong.status_code, "must be a number" in wrong.text) == (422, True)
        unknown = await client.post("/workers/quiet", data=form | {"workers": "worker-9"})
        assert (unknown.status_code, "There is no worker" in unknown.text) == (404, True)
        metrics = (await client.get("/metrics")).text
        assert 'commandbus_fleet_workers{state="running"} 3' in metrics
        assert 'commandbus_fleet_slots{domain="orders"} 8' in metrics
