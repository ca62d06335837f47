"""Live pages in a real browser: what a person holds stays in place while commands arrive."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from commandbus import CommandBus, ProcessManager, SendRequest, TroubleshootingQueue
from tests.web import saga, scene
from tests.web.browser import CHROMIUM, browser
from tests.web.server import Served, served
from tests.web.test_processes import Paid

pytestmark = pytest.mark.skipif(
    not CHROMIUM, reason="!!! no chromium on the path: live pages were NOT tried in a browser"
)


async def fill(bus: CommandBus) -> None:
    await scene.fill(bus)
    await saga.deliver(bus, "pen", "kite")
    await scene.present(bus)
    await bus.pause("later")
    await bus.send_many(SendRequest("later", "ship", {"order": n}) for n in range(12))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("live")
    store = f"sqlite:///{folder}/bus.db?synchronous=off"
    with served(store, fill, registry=scene.registry) as found:
        yield found


@pytest.fixture(scope="module")
def page(place: Served) -> Iterator[Any]:
    problems: list[str] = []
    with browser() as opened:
        found = opened.new_context(timezone_id="Asia/Tokyo").new_page()
        found.on("console", lambda m: problems.append(m.text) if m.type == "error" else None)
        found.on("pageerror", lambda error: problems.append(str(error)))
        found.goto(place.link)
        yield found
    assert problems == []


def test_new_commands_wait_in_a_bar_and_move_no_row_focus_or_selection(
    page: Any, place: Served
) -> None:
    page.goto(f"{place.url}/commands?q=domain:later")
    for _ in range(3):
        page.keyboard.press("j")
    focused = page.evaluate("document.activeElement.href")
    rows = page.locator("#commands tbody tr")
    third = rows.nth(2).get_attribute("data-key")
    rows.nth(1).locator("input[type=checkbox]").check()
    page.evaluate(
        "document.getSelection().selectAllChildren(document.querySelectorAll('#commands .mono')[4])"
    )
    selected = page.evaluate("String(document.getSelection())")
    page.evaluate("document.querySelectorAll('#commands tbody tr a.strong')[2].focus()")
    page.evaluate(
        "document.getSelection().selectAllChildren(document.querySelectorAll('#commands .mono')[4])"
    )
    place.run(place.bus.send_many(SendRequest("later", "ship", {"order": n}) for n in range(3)))
    page.wait_for_selector(".news >> text=3 new")
    assert rows.count() == 12
    assert rows.nth(2).get_attribute("data-key") == third
    assert page.evaluate("document.activeElement.href") == focused
    assert page.evaluate("String(document.getSelection())") == selected != ""
    assert rows.nth(1).locator("input[type=checkbox]").is_checked()
    canceled = place.run(place.bus.cancel(third, reason="a test", domain="later"))
    assert canceled == "CANCELED"
    page.wait_for_selector(f"[data-key='{third}'] .status.canceled")
    page.click(".news")
    assert rows.count() == 15
    assert rows.nth(5).get_attribute("data-key") == third
    assert rows.nth(4).locator("input[type=checkbox]").is_checked()
    assert page.locator(".news").count() == 0


def test_the_title_of_a_hidden_tab_tells_that_more_is_parked(page: Any, place: Served) -> None:
    hide = """hidden => {
        Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
        document.dispatchEvent(new Event("visibilitychange"));
    }"""
    from playwright.sync_api import expect

    parked = place.run(TroubleshootingQueue(place.bus).count())
    context = page.context.browser.new_context()
    tab = context.new_page()
    tab.clock.install()
    tab.goto(place.link)
    tab.goto(f"{place.url}/workers")
    title = tab.title()
    assert title.startswith(f"({parked}) Workers")
    tab.evaluate(hide, True)
    place.run(scene.park(place.bus))
    for _ in range(40):  # the count may be some seconds old, and the clock of the tab runs ahead
        with tab.expect_response("**/troubleshooting/count"):
            tab.clock.fast_forward(16_000)
        if tab.title().startswith("●"):
            break
        place.run(asyncio.sleep(0.25))
    expect(tab).to_have_title(f"● ({parked + 1}) {title.split(') ')[1]}")
    tab.evaluate(hide, False)
    expect(tab).to_have_title(f"({parked + 1}) {title.split(') ')[1]}")
    context.close()


def test_a_page_without_its_server_says_so_also_to_screen_readers(page: Any, place: Served) -> None:
    from playwright.sync_api import expect

    context = page.context.browser.new_context()
    tab = context.new_page()
    tab.route("**/stream", lambda route: route.abort())
    tab.goto(place.link)
    button = tab.locator("#live")
    expect(button).to_have_text("lost")
    expect(button).to_have_attribute("aria-label", "The server does not answer; pause live updates")
    tab.unroute("**/stream")
    tab.reload()
    expect(button).to_have_text("live")
    expect(button).to_have_attribute("aria-label", "Live updates are on; pause them")
    button.click()
    expect(button).to_have_attribute("aria-label", "Live updates are paused; resume them")
    context.close()


def test_no_name_of_a_step_is_cut_off(page: Any, place: Served) -> None:
    started = place.run(ProcessManager(place.bus, Paid).start(saga.Order("pen", 2)))
    page.goto(f"{place.url}/processes/{started.process_id}")
    names = page.locator(".gantt .name")
    assert names.all_text_contents() == ["payment"]
    assert names.first.evaluate("name => name.getBBox().x") >= 0


def test_what_is_copied_often_has_a_button(page: Any, place: Served) -> None:
    from playwright.sync_api import expect

    context = page.context.browser.new_context(permissions=["clipboard-read", "clipboard-write"])
    tab = context.new_page()
    tab.goto(place.link)
    parked = place.run(place.bus.query_commands(status="IN_TROUBLESHOOTING_QUEUE", limit=1))[0]
    tab.goto(f"{place.url}/commands/{parked.domain}/{parked.command_id}")
    line = f"commandbus show {parked.command_id}"
    for name, text in (("the id", str(parked.command_id)), ("the command line", line)):
        button = tab.get_by_role("button", name=f"Copy {name}", exact=True).first
        button.click()
        expect(button).to_have_text("Copied")
        assert tab.evaluate("navigator.clipboard.readText()") == text
    context.close()


def test_times_follow_the_zone_of_the_browser_and_the_theme_stays(page: Any, place: Served) -> None:
    page.goto(f"{place.url}/commands")
    stamp = page.get_attribute("#commands time", "datetime")
    assert "Asia/Tokyo" in page.get_attribute("#commands time", "title")
    page.click(".preferences summary")
    page.select_option("[data-prefer=times]", "utc")
    assert page.inner_text("#commands time >> nth=0") == stamp[:19].replace("T", " ") + " UTC"
    page.select_option("[data-prefer=theme]", "dark")
    page.reload()
    assert page.get_attribute("html", "data-theme") == "dark"
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(18, 19, 22)"
    page.click(".preferences summary")
    page.select_option("[data-prefer=times]", "ago")
    page.select_option("[data-prefer=theme]", "auto")


PAGES = ("/", "/domains/orders", "/schedules/add", "/workers", "/breakers", "/system", "/send")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_pages_meet_wcag_aa(page: Any, place: Served, theme: str) -> None:
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright",
        reason="!!! axe-playwright-python is not installed: accessibility was NOT checked",
    ).Axe()
    page.emulate_media(color_scheme=theme)
    parked = place.run(place.bus.query_commands(status="IN_TROUBLESHOOTING_QUEUE", domain="orders"))[0]
    process = place.run(place.bus.list_processes(limit=1))[0]
    rules: dict[str, Any] = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]}
    if theme == "dark":  # only colours differ
        rules = {"runOnly": {"type": "rule", "values": ["color-contrast"]}}
    others = (f"/commands/orders/{parked.command_id}", f"/processes/{process.process_id}")
    problems: list[tuple[str, str, str]] = []
    lists = ("/commands?limit=5", "/troubleshooting?limit=5", "/audit?limit=5", "/processes?limit=5")
    for path in (*PAGES, *lists, *others) if theme == "light" else (*PAGES[:2], *others):
        page.goto(place.url + path)
        for found in axe.run(page, options=rules).response["violations"]:
            problems += [(path, found["id"], node["html"][:200]) for node in found["nodes"][:3]]
    assert problems == []


def test_a_chart_tells_its_values_by_key_and_zooms_into_a_range(page: Any, place: Served) -> None:
    page.goto(f"{place.url}/")
    page.focus("svg[data-chart]")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    assert "completed" in page.inner_text(".chart-tip")
    assert page.locator("svg[data-chart] .cursor[visibility=visible]").count() == 4
    box = page.locator("svg[data-chart]").first.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.8, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.98, box["y"] + 60)
    page.mouse.up()
    page.wait_for_url("**/?from=*&to=*")
    assert page.locator("svg[data-chart]").count() > 0
    assert page.locator(".range summary[aria-current]").count() == 1


def test_rows_are_chosen_with_shift_and_all_at_once(page: Any, place: Served) -> None:
    page.goto(f"{place.url}/troubleshooting?limit=6")
    boxes = page.locator("input[name=command_ids]")
    assert not page.locator(".acts-bar").is_visible()
    boxes.nth(1).click()
    boxes.nth(4).click(modifiers=["Shift"])
    assert page.inner_text(".chosen-count") == "4 chosen"
    page.check(".choose-all")
    assert page.inner_text(".chosen-count") == "6 chosen"
    page.check("[name=everything]")
    parked = page.inner_text(".chosen-count").split()[1]
    page.click(".acts-bar >> text=Retry")
    page.wait_for_url("**/commands/retry?everything=on")
    assert f"Retry {parked} commands" in page.inner_text("h1")
