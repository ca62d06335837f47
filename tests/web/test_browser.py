"""The dashboard in a real browser: what an operator does, under a prefix."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from commandbus import CommandBus, SendRequest
from commandbus.interfaces import search
from commandbus.testing import eventually
from tests.support.extent import EVERYTHING
from tests.web import scene
from tests.web.browser import CHROMIUM, browser
from tests.web.people import OTTO
from tests.web.server import Served, served

pytestmark = pytest.mark.skipif(
    not CHROMIUM, reason="!!! no chromium on the path: the dashboard was NOT tried in a browser"
)
PARKED = 500


async def fill(bus: CommandBus) -> None:
    await scene.fill(bus, parked=PARKED)
    await scene.present(bus)


@pytest.fixture(scope="module")
def opened() -> Iterator[Any]:
    with browser() as found:
        yield found


MOUNTED = pytest.param("/ops/bus", id="mounted")
ALONE = pytest.param("", id="alone")


# A prefix is what links and forms can miss; test_live.py and test_phone.py have a dashboard alone.
@pytest.fixture(scope="module", params=[ALONE, MOUNTED] if EVERYTHING else [MOUNTED])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("web")
    store = f"sqlite:///{folder}/bus.db?synchronous=off"
    with served(store, fill, prefix=request.param, registry=scene.registry) as found:
        yield found


@pytest.fixture
def page(opened: Any, place: Served) -> Iterator[Any]:
    context = opened.new_context()
    found = context.new_page()
    problems: list[str] = []
    found.on("console", lambda m: problems.append(m.text) if m.type == "error" else None)
    found.on("pageerror", lambda error: problems.append(str(error)))
    found.goto(place.link)
    yield found
    context.close()
    assert problems == []


def number(text: str) -> int:
    return int(re.sub(r"\D", "", text))


def test_the_overview_moves_while_a_load_runs(page: Any, place: Served) -> None:
    page.goto(f"{place.url}/")
    before = number(page.inner_text("#completed"))
    charts = page.inner_html("#charts")

    async def load() -> None:
        for n in range(8):
            order = {"order": n, "city": "Oslo"}
            await place.bus.send_many([SendRequest("orders", "ship", order)] * 20)
            await scene.work(place.bus, ("orders",))
            await asyncio.sleep(0.3)

    loading = place.begin(load())
    eventually(lambda: before < number(page.inner_text("#completed")))
    loading.result(60)
    eventually(lambda: before + 160 <= number(page.inner_text("#completed")))
    assert page.inner_html("#charts") != charts


def test_a_parked_command_is_found_mended_and_retried(page: Any, place: Served) -> None:
    page.goto(f"{place.url}/commands")
    page.keyboard.press("/")
    page.keyboard.type("status:parked domain:orders data.city:Atlantis")
    page.keyboard.press("Enter")
    page.wait_for_url("**/commands?q=status*")
    page.click("#commands a.strong")
    page.wait_for_url("**/commands/orders/*")
    assert "NO_SUCH_CITY" in page.inner_text("#error")
    area = page.locator("#retry textarea")
    area.fill(area.input_value().replace("Atlantis", "Cork"))
    page.fill("#retry input[name=reason]", "meant Cork")
    page.click("text=Retry with this payload")
    page.wait_for_selector(".notice")
    assert "sent back to work" in page.inner_text(".notice")
    place.run(scene.work(place.bus, ("orders",)))
    page.wait_for_selector("#state .status.completed")
    page.wait_for_selector("#trail >> text=Retried by hand")
    assert "by local meant Cork" in page.inner_text("#trail")
    assert page.locator("#acting #cancel").count() == 0, "what has ended cannot be canceled"
    assert "Attempts\n1\n" in page.inner_text("#facts"), "no attempt is left of one that has ended"
    assert "Result" in page.inner_text("#contents")
    assert page.locator("#error").count() == 0


def test_unsent_input_stays(page: Any, place: Served) -> None:
    parked = place.run(place.bus.query_commands(status="IN_TROUBLESHOOTING_QUEUE", domain="orders"))
    page.goto(f"{place.url}/commands/orders/{parked[0].command_id}")
    page.fill("#retry input[name=reason]", "not yet")
    page.click("#error summary")
    page.evaluate(
        "document.addEventListener('updated', () => (window.updates = 1 + (window.updates || 0)))"
    )
    place.run(place.bus.send("orders", "ship", {"order": 1, "city": "Oslo"}))
    eventually(lambda: page.evaluate("window.updates || 0"))
    assert page.input_value("#retry input[name=reason]") == "not yet"
    assert page.locator("#error details[open]").count() == 0
    place.run(scene.work(place.bus, ("orders",)))


def test_a_search_goes_on_until_it_finds(
    page: Any, place: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "SEARCH_SECONDS", 0.0)
    monkeypatch.setattr(search, "SCAN_FIRST", 20)
    page.goto(f"{place.url}/commands?q=data.order:3")
    page.wait_for_selector("tbody a >> text=ship")
    assert "after=" in page.url, "the first piece had it"
    page.wait_for_selector("text=Stop searching", state="detached")


def test_five_hundred_are_retried_with_a_reason(page: Any, place: Served) -> None:
    page.goto(f"{place.url}/troubleshooting?domain=orders")
    parked = number(page.inner_text("#groups .big"))
    assert parked >= PARKED
    page.click("#groups tr:has-text('NO_SUCH_CITY') >> text=Retry …")
    page.wait_for_url("**/commands/retry*")
    assert number(page.inner_text("h1").split("Retry")[1]) == parked
    page.click("button.main")
    assert "/commands/retry" in page.url, "a reason is required"
    page.fill("input[name=reason]", "the map was mended")
    page.click("button.main")
    # One that takes longer than a second shows its progress instead of a notice.
    page.wait_for_selector(".notice, #bulk .status.completed")
    shown = page.inner_text(".notice" if page.query_selector(".notice") else "#bulk .lead span + span")
    assert number(shown.split(" of ")[0]) == parked
    page.goto(f"{place.url}/audit?event=OPERATOR_RETRY&actor=local")
    assert "the map was mended" in page.inner_text("table")
    place.run(scene.work(place.bus, ("orders",)))


def test_a_paused_domain_is_why_a_command_waits(page: Any, place: Served) -> None:
    page.goto(f"{place.url}/domains/orders")
    page.fill("input[name=reason]", "stocktaking")
    page.click("text=Pause orders")
    page.wait_for_selector(".notice")
    sent = place.run(place.bus.send("orders", "ship", {"order": 1, "city": "Graz"}))
    page.goto(f"{place.url}/commands/orders/{sent.command_id}")
    assert "'orders' is paused: stocktaking" in page.inner_text("#state")
    page.goto(f"{place.url}/domains/orders")
    page.click("text=Resume orders")
    page.wait_for_selector(".notice")
    eventually(lambda: not place.run(place.bus.stats("orders")).paused)
    place.run(scene.work(place.bus, ("orders",)))


def test_a_command_is_sent_from_the_form_of_its_type(page: Any, place: Served) -> None:
    page.goto(f"{place.url}/send")
    page.click("text=ship")
    page.fill("input[name='field:order']", "77")
    page.fill("input[name='field:city']", "Lyon")
    page.check("input[name='field:express']")
    page.click("main button.main")
    page.wait_for_url("**/commands/orders/*")
    record = place.run(place.bus.get_command(page.url.rpartition("/")[2]))
    assert record.data == {"order": 77, "city": "Lyon", "express": True, "weight": 1.0}
    assert record.headers == {"sent_by": "local"}


def test_input_and_selection_survive_a_refresh(page: Any, place: Served) -> None:
    page.goto(f"{place.url}/commands")
    page.fill("#filter", "half a tho")
    page.focus("#filter")
    sent = place.run(place.bus.send("mail", "welcome", {"user": 5}))
    page.wait_for_selector(".news")
    assert page.input_value("#filter") == "half a tho"
    assert page.evaluate("document.activeElement.id") == "filter"
    page.click(".news")
    page.wait_for_selector(f"#commands [title='{sent.command_id}']")


def test_pages_are_complete_without_a_script(opened: Any, place: Served) -> None:
    context = opened.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(place.link)
    assert page.locator("figure svg").count() == 4
    page.click("nav >> text=Commands")
    page.fill("#filter", "status:completed domain:payments")
    page.click("text=Filter")
    page.wait_for_selector("#commands tbody tr")
    assert "payments" in page.inner_text("#commands")
    context.close()


def test_nothing_sticks_out_of_a_phone(opened: Any, place: Served) -> None:
    context = opened.new_context(viewport={"width": 390, "height": 844})
    page = context.new_page()
    page.goto(place.link)
    parked = place.run(place.bus.query_commands(limit=1))[0]
    detail = f"/commands/{parked.domain}/{parked.command_id}"
    paths = ["/", "/domains", "/commands", "/troubleshooting", "/batches", "/schedules", "/workers",
             "/breakers", "/audit", "/system", "/send", detail]  # fmt: skip
    for path in paths:
        page.goto(place.url + path)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, path
    context.close()


def test_a_person_signs_in_and_out(opened: Any, tmp_path: Path) -> None:
    async def nothing(bus: CommandBus) -> None:
        await bus.send("orders", "ship")

    with served(f"sqlite:///{tmp_path}/bus.db", nothing, prefix="/ops", accounts=[OTTO]) as place:
        context = opened.new_context()
        page = context.new_page()
        page.goto(f"{place.url}/commands?q=status:pending")
        page.fill("input[name=name]", "otto")
        page.fill("input[name=password]", "wrong-secret")
        page.keyboard.press("Enter")
        page.wait_for_selector(".problem")
        page.fill("input[name=password]", "operator-secret")
        page.keyboard.press("Enter")
        page.wait_for_selector("#commands")
        assert page.url == f"{place.url}/commands?q=status:pending"
        page.click("text=Sign out")
        page.wait_for_selector("input[name=password]")
        page.goto(f"{place.url}/")
        assert page.locator("input[name=password]").count() == 1
        context.close()
