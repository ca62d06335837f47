"""Strings of strangers reach a page as text, wherever they come from."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from html import unescape
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from commandbus import (
    CommandBus,
    PermanentCommandError,
    Schedule,
    SendRequest,
    TroubleshootingQueue,
    Worker,
)
from commandbus.domain.presence import WorkerInfo
from commandbus.interfaces.web import create_dashboard
from commandbus.interfaces.web.openapi import PREFIX
from commandbus.operations.presence import report_worker
from tests.web import scene

CORPUS = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "'; drop table commandbus_command; --",
    "{{ 7 * 7 }}{% raw %}",
    "</textarea><svg onload=alert(1)>",
    "javascript:alert(1)",
    "\u202egnp.exe\u2066",
    "\x1b[31mred\x1b]0;owned\x07",
    "&lt;b&gt; &amp; %00 %0d%0ax-evil: a=b",
    "line\nbreak\r\ttab",
]
PAGES = ["/", "/domains", "/commands", "/troubleshooting", "/batches", "/processes",
         "/schedules", "/workers", "/breakers", "/audit", "/audit?view=actions", "/system"]  # fmt: skip


async def fill(bus: CommandBus, text: str) -> str:
    """The text in every place that takes any text; returns the page of a command with it."""
    from commandbus import HandlerRegistry

    registry = HandlerRegistry()

    @registry.handler("orders", "ship")
    async def ship(command: Any, context: Any) -> None:
        raise PermanentCommandError(text, text, {"text": text})

    sent = await bus.send("orders", "ship", {text: text}, tags=[text], unique_key=text[:200],
                          headers={"note": text})  # fmt: skip
    worker = Worker(bus, ["orders"], registry)
    for received in await worker.receive(batch_size=5):
        await worker.fail(received, PermanentCommandError(text, text, {"text": text}))
    await bus.create_batch([SendRequest("orders", "ship", text)], name=text, custom_data={text: text})
    await bus.acting(text).pause("orders", text)
    now = datetime.now(UTC)
    info = WorkerInfo(name=text, host=text, pid=7, runtime=text, domains=(text,), concurrency=1,
                      command_types=((text, text),), started_at=now, seen_at=now, version=text,
                      tags=(text,))  # fmt: skip
    await bus.session.run(report_worker(bus.scope, info, 0))
    await bus.acting(text).open_breaker("bank", 60, reason=text)
    return f"/commands/orders/{sent.command_id}"


@pytest.mark.parametrize("text", CORPUS)
async def test_a_page_shows_it_as_text(text: str) -> None:
    async with CommandBus("memory://") as bus:
        detail = await fill(bus, text)
        await scene.present(bus)
        app = create_dashboard(bus, open_to_this_machine=True)
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            shown = 0
            for path in [*PAGES, detail]:
                page = await client.get(path)
                assert page.status_code == 200, (path, page.text)
                check_page(page.text, text)
                shown += text in unescape(page.text)
            told = (await client.get(f"{PREFIX}{detail}")).json()["command"]
            assert told["data"] == {text: text}
            for path in ("/commands", "/audit", "/troubleshooting", "/batches", "/send", "/"):
                name = {"/commands": "q", "/audit": "actor"}.get(path, "domain")
                page = await client.get(path, params={name: text, "after": text})
                assert page.status_code in (200, 422), page.text
                check_page(page.text, text)
            for path in (f"/domains/{quote(text, safe='')}", f"/{quote(text, safe='')}"):
                page = await client.get(path)
                assert page.status_code in (200, 404, 422), page.text
                check_page(page.text, text)
            for path in (detail, "/workers", "/batches", f"/{quote(CORPUS[0], safe='')}"):
                answer = await client.get(f"{PREFIX}{path}")
                assert answer.status_code in (200, 404), answer.text
                assert "<" not in answer.text, "nobody can take a document for a page"
            if text.isprintable() and "\u202e" not in text:
                assert shown >= 4, "the text itself must be there to be seen"


def check_page(page: str, text: str) -> None:
    """Nothing of the text became markup, a style, a script, or steers the direction of writing."""
    tags = re.findall(r"<(/?[a-zA-Z][\w-]*)([^>]*)>", page)
    names = {name.strip("/").lower() for name, _ in tags}
    assert "img" not in names
    assert page.count('<script src="/static/') == page.count("<script") == 3
    for name, attributes in tags:
        quoted = re.sub(r'"[^"]*"', "", attributes)
        assert not re.search(r"\bon\w+\s*=", quoted), (name, attributes)
        assert (
            "javascript:" not in "".join(re.findall(r'(?:href|src|action)="([^"]*)"', attributes))[:11]
        )
    assert not re.search("[\u202a-\u202e\u2066-\u2069\x00-\x08\x0b\x0c\x0e-\x1f]", page)


async def test_secrets_are_hidden_and_come_back_when_a_payload_is_edited() -> None:
    async with CommandBus("memory://") as bus:
        data = {"user": "ana", "password": "s3cret", "nested": [{"api-key": "k-1"}, {"a": 1}]}
        sent = await bus.send("mail", "welcome", data, headers={"Authorization": "Bearer t-1"})
        worker = Worker(bus, ["mail"], scene.registry)
        (received,) = await worker.receive(batch_size=1)
        await worker.fail(received, PermanentCommandError("NO", "no", {"token": "t-2"}))
        members = [SendRequest("mail", "welcome", {"password": "s3cret-2"})]
        batch = await bus.create_batch(members, name="all", custom_data={"secret": "s3cret-3"})
        await bus.put_schedule(
            Schedule(name="often", domain="mail", command_type="x", cron="* * * * *", data=data)
        )
        request = SendRequest("mail", "x", headers={"Authorization": "t-1"}, tags=("token:t-2",))
        await bus.put_schedule(Schedule(name="typed", request=request, every=60))
        app = create_dashboard(bus, open_to_this_machine=True)
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            place = f"/commands/mail/{sent.command_id}"
            pages = (*(p for p in PAGES if p != "/" and "?" not in p), place,
                     f"/batches/{batch.batch_id}")  # fmt: skip
            for path in (*pages, *(PREFIX + page for page in pages)):
                told = (await client.get(path)).text
                assert not re.search("s3cret|k-1|t-1|t-2", told), path
            searched = await client.get(f"{PREFIX}/commands", params={"q": "data.password:s3cret"})
            assert searched.status_code == 422
            shown = (await client.get(PREFIX + place)).json()["command"]["data"]
            edited = shown | {"user": "eva"}
            done = await client.post(f"{PREFIX}{place}/retry", json={"data": edited, "reason": "typo"})
            assert done.status_code == 200, done.text
        record = await bus.get_command(sent.command_id)
        assert record is not None
        assert record.data == data | {"user": "eva"}
        assert await TroubleshootingQueue(bus).count() == 0
