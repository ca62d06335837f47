"""In front of the dashboard: proxies, names of hosts and Unix sockets, on real sockets."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from commandbus import CommandBus
from commandbus.interfaces.web import create_dashboard, serving
from commandbus.interfaces.web.local import OneTimeLinks
from commandbus.interfaces.web.openapi import PREFIX
from commandbus.interfaces.web.throttle import FAILURES_FREE
from tests.web.people import AS_OTTO, AS_VERA, OTTO, VERA

PATHS = ("/", f"{PREFIX}/overview", f"{PREFIX}/commands", "/metrics", "/static/style.css")


@pytest.fixture
async def bus() -> AsyncIterator[CommandBus]:
    async with CommandBus("memory://") as opened:
        await opened.send("orders", "ship", {"order": 1})
        yield opened


@asynccontextmanager
async def served(server: uvicorn.Server, *sockets: Any) -> AsyncIterator[None]:
    running = asyncio.create_task(server.serve(sockets=list(sockets) or None))
    try:
        while not server.started:
            await asyncio.sleep(0.01)
        yield
    finally:
        server.should_exit = True
        await running


@asynccontextmanager
async def on_a_socket(app: Any, path: Path) -> AsyncIterator[httpx.AsyncClient]:
    """As nginx or another user of the machine would speak to it."""
    server = uvicorn.Server(uvicorn.Config(app, uds=str(path), log_level="error"))
    async with (
        served(server),
        httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(uds=str(path)), base_url="http://localhost"
        ) as client,
    ):
        yield client


@asynccontextmanager
async def on_a_port(app: Any, source: str = "127.0.0.1") -> AsyncIterator[httpx.AsyncClient]:
    listener = serving.bind("127.0.0.1", 0)
    base = f"http://127.0.0.1:{listener.getsockname()[1]}"
    async with (
        served(serving.create_server(app), listener),
        httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(local_address=source), base_url=base
        ) as client,
    ):
        yield client


@pytest.mark.parametrize(
    "forwarded", [{}, {"x-forwarded-for": "127.0.0.1"}], ids=["plain", "forwarded"]
)
@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:8080", "[::1]"])
async def test_without_accounts_nothing_is_served_on_a_unix_socket(
    bus: CommandBus, tmp_path: Path, host: str, forwarded: dict[str, str]
) -> None:
    tokens: list[str] = []
    for app in (
        create_dashboard(bus, open_to_this_machine=True),
        create_dashboard(bus, links=OneTimeLinks(tokens.append)),
    ):
        async with on_a_socket(app, tmp_path / "dashboard.sock") as client:
            headers = {"host": host} | forwarded
            for path in (*PATHS, f"/sign-in?token={tokens[0] if tokens else ''}"):
                assert (await client.get(path, headers=headers)).status_code == 403, path
            pause = await client.post(f"{PREFIX}/domains/orders/pause", json={}, headers=headers)
            assert pause.status_code == 403
    assert not (await bus.stats("orders")).paused


async def test_with_accounts_a_unix_socket_asks_for_them(bus: CommandBus, tmp_path: Path) -> None:
    app = create_dashboard(bus, accounts=[VERA])
    async with on_a_socket(app, tmp_path / "dashboard.sock") as client:
        for headers in ({}, {"host": "localhost"}, {"x-forwarded-for": "127.0.0.1"}):
            assert (await client.get("/", headers=headers)).status_code == 401
        assert (await client.get("/", headers=AS_VERA)).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"x-forwarded-for": "127.0.0.1"},
        {"x-forwarded-for": "127.0.0.1, 203.0.113.7", "x-forwarded-proto": "https"},
        {"forwarded": "for=127.0.0.1"},
        {"host": "bus.example"},
        {"host": "127.0.0.1.evil.example"},
        {"host": "localhost.evil.example:80"},
        {"host": ""},
    ],
    ids=str,
)
async def test_without_accounts_a_proxy_and_another_name_are_refused(
    bus: CommandBus, headers: dict[str, str]
) -> None:
    async with on_a_port(create_dashboard(bus, open_to_this_machine=True)) as client:
        for path in PATHS:
            assert (await client.get(path)).status_code == 200, path
            assert (await client.get(path, headers=headers)).status_code in (400, 403), path


async def test_a_client_cannot_choose_its_address_by_a_header(bus: CommandBus) -> None:
    """Else each guess would come from an address of its own. Only 127.0.0.1 is taken for a proxy."""
    async with on_a_port(create_dashboard(bus, accounts=[VERA, OTTO]), "127.0.0.2") as client:
        answers = []
        for number in range(FAILURES_FREE + 3):
            headers = {
                "authorization": f"Bearer name-{number}.guess",
                "x-forwarded-for": f"192.0.2.{number}",
                "x-real-ip": f"192.0.2.{number}",
                "forwarded": f"for=192.0.2.{number}",
            }
            answers.append((await client.get("/", headers=headers)).status_code)
        assert answers == [401] * FAILURES_FREE + [429] * 3


async def test_clients_behind_a_proxy_have_bounds_of_their_own(bus: CommandBus) -> None:
    async with on_a_port(create_dashboard(bus, accounts=[VERA, OTTO])) as client:
        answers = []
        for number in range(FAILURES_FREE + 1):
            headers = {"authorization": f"Bearer name-{number}.guess", "x-forwarded-for": "192.0.2.1"}
            answers.append((await client.get("/", headers=headers)).status_code)
        assert answers == [401] * FAILURES_FREE + [429]
        other = AS_VERA | {"x-forwarded-for": "192.0.2.2"}
        assert (await client.get("/", headers=other)).status_code == 200


async def test_no_answer_leads_to_the_host_of_a_request(bus: CommandBus) -> None:
    """A cache in front, or a link in a message, would otherwise carry the name that a client chose."""
    evil = {"host": "evil.example", "x-forwarded-host": "evil.example", "x-forwarded-prefix": "/evil"}
    async with on_a_port(create_dashboard(bus, accounts=[OTTO])) as client:
        for path in ("/", "/sign-in", "/nowhere", "/domains/orders", f"{PREFIX}/openapi.json"):
            for who in ({}, AS_OTTO):
                answer = await client.get(path, headers=evil | who)
                assert "evil" not in answer.text, path
                assert "evil" not in str(answer.headers), path
        page = await client.get("/domains/orders", headers=AS_OTTO)
        token = re.search(r'name="form_token" value="(\w+)"', page.text)
        assert token is not None
        forged = evil | AS_OTTO | {"origin": "http://other.example"}
        answer = await client.post(
            "/domains/orders/pause", data={"form_token": token[1]}, headers=forged
        )
        assert answer.status_code == 403
