"""Every route, asked by nobody, by a liar, by a viewer and by an operator."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount, Route

from commandbus import CommandBus
from commandbus.errors import ConfigurationError
from commandbus.interfaces.web import Account, Role, create_dashboard
from commandbus.interfaces.web.endpoints import ENDPOINTS
from commandbus.interfaces.web.openapi import PREFIX
from tests.web.people import AS_OTTO, AS_VERA, OTTO, VERA, bearer

ACCOUNTS = [VERA, OTTO]
PARTS = {
    "domain": "orders",
    "command_id": "0f0e0d0c-0b0a-4908-8706-050403020100",
    "batch_id": "1f1e1d1c-1b1a-4918-9716-151413121110",
    "process_id": "2f2e2d2c-2b2a-4928-a726-252423222120",
    "name": "nightly",
    "target": "bank",
    "change": "pause",
    "rest": "nowhere",
}


def concrete(path: str) -> str:
    return re.sub(r"{(\w+)(:\w+)?}", lambda part: PARTS.get(part[1], "style.css"), path)


def every_route() -> list[tuple[str, str]]:
    app = create_dashboard("memory://", accounts=ACCOUNTS)
    found: set[tuple[str, str]] = set()
    for route in app.routes:
        assert isinstance(route, Route)
        for method in (route.methods or set()) & {"GET", "POST"}:
            found.add((method, concrete(route.path)))
    return sorted(found)


PUBLIC = [("GET", "/static/nightly")]
"""What the sign-in page is made of."""
GUARDED = [
    route for route in every_route() if route not in PUBLIC and not route[1].startswith("/sign-")
]
FINITE = [route for route in GUARDED if route[1] != "/stream"]
"""The stream has no end."""


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with CommandBus("memory://") as bus:
        await bus.send("orders", "ship", {"order": 1})
        app = create_dashboard(bus, accounts=ACCOUNTS)
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="https://bus.example") as opened:
            yield opened


async def ask(client: httpx.AsyncClient, method: str, path: str, headers: dict[str, str]) -> int:
    content = b"{}" if method == "POST" else None
    kind = {"content-type": "application/json"} if path.startswith(PREFIX) else {}
    return (await client.request(method, path, content=content, headers=headers | kind)).status_code


@pytest.mark.parametrize(("method", "path"), GUARDED)
async def test_every_route_authenticates(client: httpx.AsyncClient, method: str, path: str) -> None:
    for headers in (
        {},
        bearer("vera", "operator-secret"),
        bearer("stranger", "viewer-secret"),
        {"authorization": "Bearer operator-secret"},
        {"authorization": "nonsense"},
        {"cookie": "commandbus_session=nonsense.nonsense"},
    ):
        assert await ask(client, method, path, headers) == 401, headers


@pytest.mark.parametrize(("method", "path"), FINITE)
async def test_a_viewer_sees_everything_and_changes_nothing(
    client: httpx.AsyncClient, method: str, path: str
) -> None:
    status = await ask(client, method, path, AS_VERA)
    if method == "POST" and not path.endswith("nowhere"):
        assert status == 403
    else:
        assert status in (200, 404, 405, 422), status


@pytest.mark.parametrize(("method", "path"), FINITE)
async def test_an_operator_is_let_in(client: httpx.AsyncClient, method: str, path: str) -> None:
    status = await ask(client, method, path, AS_OTTO)
    assert status not in (401, 500)
    if method == "POST" and not path.startswith(PREFIX) and not path.endswith("nowhere"):
        assert status == 403, "a form without its token is forged"


async def test_a_program_acts_with_its_token(client: httpx.AsyncClient) -> None:
    headers = AS_OTTO
    paused = await client.post(f"{PREFIX}/domains/orders/pause", json={"reason": "x"}, headers=headers)
    assert paused.status_code == 200
    actions = (await client.get(f"{PREFIX}/actions", headers=headers)).json()["actions"]
    assert [(a["actor"], a["action"], a["subject"], a["reason"]) for a in actions] == [
        ("otto", "pause", "orders", "x")
    ]


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://bus.example.evil.example"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
async def test_another_site_can_change_nothing(
    client: httpx.AsyncClient, headers: dict[str, str]
) -> None:
    headers = headers | AS_OTTO
    answer = await client.post(f"{PREFIX}/domains/orders/pause", json={}, headers=headers)
    assert answer.status_code == 403
    form = await client.post("/domains/orders/pause", data={"form_token": "x"}, headers=headers)
    assert form.status_code == 403


async def test_the_api_takes_nothing_that_a_form_can_send(client: httpx.AsyncClient) -> None:
    headers = AS_OTTO | {"content-type": "text/plain"}
    answer = await client.post(f"{PREFIX}/domains/orders/pause", content=b"{}", headers=headers)
    assert answer.status_code == 415


async def test_a_form_needs_the_token_of_its_cookie(client: httpx.AsyncClient) -> None:
    headers = AS_OTTO
    page = await client.get("/domains/orders", headers=headers)
    token = re.search(r'name="form_token" value="(\w+)"', page.text)
    assert token is not None
    cookies = client.cookies
    for cookie, sent in (("", token[1]), ("other-cookie-of-somebody", token[1])):
        client.cookies = httpx.Cookies({"commandbus_form": cookie} if cookie else {})
        refused = await client.post("/domains/orders/pause", data={"form_token": sent}, headers=headers)
        assert refused.status_code == 403
    client.cookies = cookies
    done = await client.post("/domains/orders/pause", data={"form_token": token[1]}, headers=headers)
    assert done.status_code == 303
    assert "orders is paused" in (await client.get("/domains/orders", headers=headers)).text


@pytest.mark.parametrize(
    ("client", "host", "status"),
    [
        (("127.0.0.1", 1), "localhost:8080", 200),
        (("::1", 1), "[::1]:8080", 200),
        (("127.0.0.1", 1), "127.0.0.1", 200),
        (None, "localhost", 403),  # a Unix socket
        (("", 0), "localhost", 403),
        (("10.0.0.7", 1), "localhost", 403),
        (("127.0.0.1", 1), "bus.example", 403),
        (("127.0.0.1", 1), "127.0.0.1.evil.example", 403),
        (("127.0.0.1", 1), "", 403),
    ],
)
async def test_without_accounts_only_this_machine_is_served(
    client: Any, host: str, status: int
) -> None:
    async with CommandBus("memory://") as bus:
        app = create_dashboard(bus, open_to_this_machine=True)
        transport = httpx.ASGITransport(app=app, client=client)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as opened:
            for path in ("/", f"{PREFIX}/overview"):
                assert (await opened.get(path, headers={"host": host})).status_code == status


async def test_the_surrounding_app_may_authenticate() -> None:
    async def authenticate(request: object) -> Account | None:
        name = request.headers.get("x-user")  # type: ignore[attr-defined]
        return Account(name, Role.VIEWER) if name else None

    async with CommandBus("memory://") as bus:
        dashboard = create_dashboard(bus, authenticate=authenticate)
        app = Starlette(routes=[Mount("/ops/bus", dashboard)])
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="https://shop.example") as opened:
            assert (await opened.get("/ops/bus/")).status_code == 401
            page = await opened.get("/ops/bus/", headers={"x-user": "vera"})
            assert page.status_code == 200
            assert "vera" in page.text
            assert 'href="/ops/bus/commands"' in page.text
            refs = re.findall(r'(?:href|src|action|data-stream)="([^"]*)"', page.text)
            assert all(ref.startswith(("/ops/bus/", "#")) for ref in refs), refs
            for path in (PREFIX, f"{PREFIX}/nowhere"):
                lost = await opened.get(f"/ops/bus{path}", headers={"x-user": "vera"})
                assert f"see /ops/bus{PREFIX}/openapi.json" in lost.json()["message"]


async def test_every_answer_is_guarded_by_headers(client: httpx.AsyncClient) -> None:
    headers = AS_VERA
    for path in ("/", "/nowhere", "/static/style.css", f"{PREFIX}/overview", f"{PREFIX}/nowhere"):
        answer = await client.get(path, headers=headers)
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["x-frame-options"] == "DENY"
    page = (await client.get("/", headers=headers)).text
    assert " style=" not in page
    assert " on" not in re.sub(r">[^<]*<", "><", page).replace(" only", "")
    assert "<script>" not in page


def test_a_secret_in_the_clear_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="hash_secret"):
        create_dashboard("memory://", accounts=[Account("otto", Role.OPERATOR, "operator-secret")])


def test_the_table_of_endpoints_names_each_once() -> None:
    names = [endpoint.name for endpoint in ENDPOINTS]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS"])
async def test_other_methods_and_odd_paths_authenticate(client: httpx.AsyncClient, method: str) -> None:
    for path in ("/", "/commands", f"{PREFIX}/commands", "/line%0Abreak", "/static/x/y"):
        assert (await client.request(method, path)).status_code == 401, path
        known = await client.request(method, path, headers=AS_VERA)
        assert known.status_code in (404, 405), path
