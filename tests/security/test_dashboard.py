"""Attacks on the dashboard: proxies, other users of the machine, odd requests, too many requests."""

from __future__ import annotations

import asyncio
import json
import re
import resource
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Mount

from commandbus import CommandBus, SendRequest
from commandbus.errors import ConfigurationError
from commandbus.interfaces.web import Account, create_dashboard, serving
from commandbus.interfaces.web.local import OneTimeLinks
from commandbus.interfaces.web.openapi import PREFIX
from commandbus.interfaces.web.reads import DOMAINS_MAX
from commandbus.interfaces.web.refusals import Refused
from commandbus.interfaces.web.stores import Stores
from commandbus.interfaces.web.stream import STREAMS_MAX, STREAMS_PER_ACCOUNT_MAX, Stream
from commandbus.interfaces.web.timeseries import Figures
from commandbus.sync import SyncCommandBus
from commandbus.testing import eventually
from tests.cli.helpers import PROGRAM, clean_environment
from tests.web.people import AS_OTTO, AS_VERA, OTTO, VERA
from tests.web.visitor import visitor


@pytest.fixture
async def bus() -> AsyncIterator[CommandBus]:
    async with CommandBus("memory://") as opened:
        await opened.send("orders", "ship", {"order": 1})
        yield opened


@asynccontextmanager
async def browsing(
    app: Any, client: tuple[str, int] | None = ("127.0.0.1", 1), base: str = "http://localhost:8080"
) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app, raise_app_exceptions=False, client=client)  # type: ignore[arg-type]
    async with httpx.AsyncClient(transport=transport, base_url=base) as opened:
        yield opened


# Without accounts.

FORWARDED = [
    {"x-forwarded-for": "203.0.113.7"},
    {"x-forwarded-host": "bus.example"},
    {"x-forwarded-proto": "https"},
    {"forwarded": "for=203.0.113.7"},
    {"x-real-ip": "203.0.113.7"},
    {"via": "1.1 proxy"},
    {"cf-connecting-ip": "203.0.113.7"},
]


def test_a_dashboard_without_accounts_has_to_be_asked_for() -> None:
    with pytest.raises(ConfigurationError, match="open_to_this_machine"):
        create_dashboard("memory://")
    with pytest.raises(ConfigurationError, match="in one way"):
        create_dashboard("memory://", accounts=[VERA], open_to_this_machine=True)
    with pytest.raises(ConfigurationError, match=r"accounts=Path\('accounts.toml'\)"):
        create_dashboard("memory://", accounts="accounts.toml")  # type: ignore[arg-type]


@pytest.mark.parametrize("headers", FORWARDED)
async def test_what_came_through_a_proxy_is_refused(bus: CommandBus, headers: dict[str, str]) -> None:
    links = OneTimeLinks(lambda token: None)
    for app in (create_dashboard(bus, open_to_this_machine=True), create_dashboard(bus, links=links)):
        async with browsing(Starlette(routes=[Mount("/ops", app)])) as client:
            for path in ("/ops/", f"/ops{PREFIX}/overview", "/ops/static/style.css", "/ops/sign-in"):
                assert (await client.get(path, headers=headers)).status_code == 403, path


async def test_a_loopback_address_alone_is_not_enough(bus: CommandBus) -> None:
    """As another user of the machine, a proxy without headers, or a program that fetches addresses."""
    tokens: list[str] = []
    app = create_dashboard(bus, links=OneTimeLinks(tokens.append))
    async with browsing(app) as stranger:
        for method, path in (("GET", "/"), ("GET", f"{PREFIX}/commands"), ("GET", "/stream")):
            assert (await stranger.request(method, path)).status_code == 401, path
        pause = await stranger.post(f"{PREFIX}/domains/orders/pause", json={})
        assert pause.status_code == 401
        for guess in ("", "x", tokens[0][:-1], f"{tokens[0]}x", "é"):
            answer = await stranger.get("/sign-in", params={"token": guess})
            assert answer.status_code in (401, 403)
        assert not any(name.startswith("commandbus_session") for name in stranger.cookies)
        assert (await stranger.head("/sign-in", params={"token": tokens[0]})).status_code == 401
    assert len(tokens) == 1, "guesses use nothing up"


async def test_a_link_lets_one_browser_in_and_the_next_one_is_announced(bus: CommandBus) -> None:
    tokens: list[str] = []
    app = create_dashboard(bus, links=OneTimeLinks(tokens.append))
    async with browsing(app) as one, browsing(app) as other:
        entered = await one.get("/sign-in", params={"token": tokens[0]})
        assert (entered.status_code, entered.headers["location"]) == (303, "/")
        cookie = entered.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        assert tokens[0] not in str(entered.headers), "the token is in no further address"
        page = await one.get("/")
        assert page.status_code == 200
        assert "local" in page.text
        done = await one.post(f"{PREFIX}/domains/orders/pause", json={})
        assert done.status_code == 200
        again = await other.get("/sign-in", params={"token": tokens[0]})
        assert again.status_code == 403
        assert "used already" in again.text
        assert (await other.get("/sign-in", params={"token": tokens[1]})).status_code == 303
        assert (await other.get("/")).status_code == 200


async def test_dashboards_on_two_ports_have_sessions_of_their_own(bus: CommandBus) -> None:
    tokens: list[str] = []
    app = create_dashboard(bus, links=OneTimeLinks(tokens.append))
    async with browsing(app) as client:
        await client.get("/sign-in", params={"token": tokens[0]})
        assert list(client.cookies) == ["commandbus_session_8080"]


# Odd requests.

GUARDS = ("content-security-policy", "x-content-type-options", "x-frame-options", "permissions-policy")


@pytest.mark.parametrize(
    "headers",
    [
        [(b"authorization", b"Basic \xff")],
        [(b"authorization", b"Bearer \xff\xfe")],
        [(b"authorization", b"Bearer")],
        [(b"authorization", b"\x80")],
        [(b"cookie", b"commandbus_session=\xff.\xff")],
    ],
)
async def test_odd_credentials_are_answered_with_401(bus: CommandBus, headers: Any) -> None:
    async with browsing(create_dashboard(bus, accounts=[VERA]), base="https://bus.example") as client:
        for path in ("/", f"{PREFIX}/overview", "/nowhere"):
            answer = await client.get(path, headers=headers)
            assert answer.status_code == 401, path
            assert all(name in answer.headers for name in GUARDS)


async def test_deep_documents_and_odd_origins_are_answered_with_400(bus: CommandBus) -> None:
    deep = b'{"domain":"orders","command_type":"ship","data":' + b"[" * 9_000 + b"]" * 9_000 + b"}"
    kind = {"content-type": "application/json"}
    async with visitor(bus) as client:
        for path, body in (("/commands", deep), ("/commands", deep[:8_000])):
            answer = await client.post(f"{PREFIX}{path}", content=body, headers=kind)
            assert answer.status_code == 400, answer.text
        for origin in ("http://[::1", "http://[", "http://a]b"):
            headers = kind | {"origin": origin}
            answer = await client.post(f"{PREFIX}/domains/orders/pause", content=b"{}", headers=headers)
            assert answer.status_code in (400, 403), answer.text
            assert all(name in answer.headers for name in GUARDS)


async def test_a_mistake_of_ours_is_answered_with_the_guarding_headers(bus: CommandBus) -> None:
    async def authenticate(request: Request) -> Account | None:
        raise RuntimeError("hunter2")

    app = create_dashboard(bus, authenticate=authenticate)  # type: ignore[arg-type]
    async with browsing(app, base="https://bus.example") as client:
        for path in ("/", f"{PREFIX}/overview"):
            answer = await client.get(path)
            assert answer.status_code == 500
            assert "hunter2" not in answer.text
            assert all(name in answer.headers for name in (*GUARDS, "strict-transport-security"))


async def test_cookies_are_secure_and_plain_http_is_given_up_behind_tls(bus: CommandBus) -> None:
    app = create_dashboard(bus, accounts=[OTTO])
    async with browsing(app, base="https://bus.example") as client:
        page = await client.get("/domains/orders", headers=AS_OTTO)
        assert page.headers["strict-transport-security"] == "max-age=31536000"
        token = re.search(r'name="form_token" value="(\w+)"', page.text)
        assert token is not None
        fields = {"form_token": token[1]}
        done = await client.post("/domains/orders/pause", data=fields, headers=AS_OTTO)
        assert done.status_code == 303
        for answer in (page, done):
            assert all("secure" in line.lower() for line in answer.headers.get_list("set-cookie"))
    async with browsing(app, base="http://bus.example") as client:
        page = await client.get("/", headers=AS_OTTO)
        assert "strict-transport-security" not in page.headers


# Too much.


async def test_lists_of_large_payloads_are_bounded(bus: CommandBus) -> None:
    large = {"text": "x" * 200_000}
    for _ in range(10):
        await bus.send_many([SendRequest("orders", "ship", large)] * 20)
    async with visitor(bus) as client:
        for path in ("/commands", "/troubleshooting", "/audit"):
            page = await client.get(f"{PREFIX}{path}", params={"limit": 200})
            assert page.status_code == 200
            assert len(page.content) < 2_000_000, path
        listed = (await client.get(f"{PREFIX}/commands", params={"limit": 200})).json()["commands"]
        assert len(listed) == 200
        assert listed[0]["data"] == {"$left_out": "200,011 bytes"}
        one = await client.get(f"{PREFIX}/commands/orders/{listed[0]['command_id']}")
        assert one.json()["command"]["data"] == large


async def test_many_domains_are_bounded_and_those_with_trouble_are_shown(
    bus: CommandBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bus.send_many([SendRequest(f"d{number:04}", "ship", delay=3_600) for number in range(1_000)])
    await bus.send("zz-busy", "ship")
    async with visitor(bus) as client:
        overview = (await client.get(f"{PREFIX}/overview")).json()
        shown = [view["domain"] for view in overview["domains"]]
        assert len(shown) == DOMAINS_MAX
        assert "zz-busy" in shown
        assert overview["left_out"] == 1_002 - DOMAINS_MAX
        for path in ("/", "/domains"):
            assert "more with less to do are not shown" in (await client.get(path)).text


async def test_an_account_has_a_few_streams_and_all_together_have_a_bound(bus: CommandBus) -> None:
    stream = Stream(Figures(Stores(bus)))
    opened: list[Any] = []

    async def allow() -> bool:
        return True

    async def listen(name: str) -> None:
        stream.check(name)
        events = stream.events(name, allow)
        opened.append(events)
        await anext(events)

    try:
        for _ in range(STREAMS_PER_ACCOUNT_MAX):
            await listen("vera")
        with pytest.raises(Refused) as refused:
            await listen("vera")
        assert refused.value.status == 429
        for number in range(STREAMS_MAX - STREAMS_PER_ACCOUNT_MAX):
            await listen(f"name-{number // STREAMS_PER_ACCOUNT_MAX}")
        with pytest.raises(Refused):
            await listen("otto")
        await opened.pop(0).aclose()
        await listen("otto")
    finally:
        for events in opened:
            await events.aclose()


async def test_streams_that_are_asked_for_at_once_have_the_same_bound(bus: CommandBus) -> None:
    stream = Stream(Figures(Stores(bus)))

    async def allow() -> bool:
        return True

    asked = []
    for _ in range(4 * STREAMS_PER_ACCOUNT_MAX):
        stream.check("vera")  # none has begun, so all of them pass
        asked.append(stream.events("vera", allow))
    begun = [await anext(events, None) for events in asked]
    try:
        assert sum(first is not None for first in begun) == STREAMS_PER_ACCOUNT_MAX
    finally:
        for events in asked:
            await events.aclose()  # type: ignore[attr-defined]


async def test_a_stream_ends_when_its_account_is_removed(bus: CommandBus) -> None:
    stream = Stream(Figures(Stores(bus)))
    allowed = True

    async def is_allowed() -> bool:
        return allowed

    events = stream.events("vera", is_allowed)
    assert "hello" in await anext(events)
    assert "changed" in await asyncio.wait_for(anext(events), 20)
    allowed = False
    await bus.send("orders", "ship")
    with pytest.raises(StopAsyncIteration):
        await asyncio.wait_for(anext(events), 20)


class Running:
    """`commandbus dashboard` with few descriptors."""

    def __init__(self, port: int, log: Path, process: subprocess.Popen[bytes]) -> None:
        self.port, self.log, self.process = port, log, process

    def connect(self, source: str = "127.0.0.1") -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), 20, source_address=(source, 0))

    def get(self, path: str) -> tuple[int, float]:
        began = time.monotonic()
        answer = httpx.get(f"http://127.0.0.1:{self.port}{path}", timeout=30)
        return answer.status_code, time.monotonic() - began


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    with SyncCommandBus(f"sqlite:///{tmp_path}/bus.db") as bus:
        bus.send("orders", "ship")
    log = tmp_path / "output.log"
    file = tmp_path / "accounts.toml"
    file.touch(0o600)
    file.write_text(f'[[account]]\nname = "vera"\nsecret = "{VERA.secret}"\n')

    def bound() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))

    with log.open("w") as out:
        options = ["--url", "sqlite:///bus.db", "--port", "0", "--accounts", file.name]
        process = subprocess.Popen(
            [*PROGRAM, "dashboard", *options],
            cwd=tmp_path, env=clean_environment(), stdout=out, stderr=subprocess.STDOUT,
            preexec_fn=bound,
        )  # fmt: skip
    try:
        told = eventually(lambda: re.search(r"http://[\d.]+:(\d+)", log.read_text()), 30)
        yield Running(int(told[1]), log, process)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()


HALF = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: "


SLOW_BODY = (
    b"POST /sign-in HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/x-www-form-urlencoded\r\n"
    b"Content-Length: 5000\r\n\r\nname="
)


@pytest.mark.parametrize("request_begun", [HALF, SLOW_BODY], ids=["head", "body"])
def test_a_thousand_slow_requests_do_not_keep_a_person_out(
    running: Running, request_begun: bytes
) -> None:
    def begin(_: int) -> socket.socket:
        slow = running.connect("127.0.0.2")
        with suppress(OSError):  # the server may close it meanwhile
            slow.sendall(request_begun)
        return slow

    with ExitStack() as stack:
        # Many at a time: the system tries a connection for which there is no room again a second later.
        with ThreadPoolExecutor(50) as crowd:
            for slow in crowd.map(begin, range(1_000)):
                stack.enter_context(slow)
        for path in ("/sign-in", "/static/style.css", "/sign-in"):
            status, seconds = running.get(path)
            assert status in (200, 401), (path, running.log.read_text())
            assert seconds < 8
        answer = httpx.get(
            f"http://127.0.0.1:{running.port}{PREFIX}/overview", headers=AS_VERA, timeout=20
        )
        assert json.loads(answer.text)["domains"][0]["domain"] == "orders"
    assert running.log.stat().st_size < 20_000


UNREAD = b"GET /static/style.css HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 300
"""Answers of six megabytes, more than all buffers on the way hold."""


def never_reading(port: int) -> socket.socket:
    slow = socket.socket()
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    slow.bind(("127.0.0.2", 0))
    slow.settimeout(20)
    slow.connect(("127.0.0.1", port))
    return slow


def test_clients_that_read_no_answer_do_not_keep_a_person_out(running: Running) -> None:
    with ExitStack() as stack:
        for _ in range(200):
            with suppress(OSError):  # the server may close it meanwhile
                stack.enter_context(never_reading(running.port)).sendall(UNREAD)
        for path in ("/sign-in", "/static/style.css"):
            status, seconds = running.get(path)
            assert status in (200, 401), (path, running.log.read_text())
            assert seconds < 8
    assert running.log.stat().st_size < 20_000


async def test_a_client_that_reads_no_answer_is_closed(
    bus: CommandBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "READ_SECONDS", 0.2)
    listener = serving.bind("127.0.0.1", 0)
    port = listener.getsockname()[1]
    server = serving.create_server(create_dashboard(bus, open_to_this_machine=True))
    serve = asyncio.create_task(server.serve(sockets=[listener]))
    slow = await asyncio.to_thread(never_reading, port)
    try:
        await asyncio.to_thread(slow.sendall, UNREAD)
        began = time.monotonic()
        while server.server_state.connections or time.monotonic() < began + 0.2:
            await asyncio.sleep(0.05)
            assert time.monotonic() < began + 15, "the server still waits for its reader"
    finally:
        slow.close()
        server.should_exit = True
        await serve


def test_a_slow_head_and_a_silent_connection_are_closed(running: Running) -> None:
    with running.connect() as slow, running.connect() as silent, running.connect() as second:
        slow.sendall(HALF)
        second.sendall(b"GET /sign-in HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert second.recv(12) == b"HTTP/1.1 401"
        began = time.monotonic()
        second.sendall(HALF)
        for number in range(4):
            try:
                slow.sendall(b"x")
            except OSError:
                break
            time.sleep(0.2 * number)
        for connection in (slow, silent, second):
            connection.settimeout(20)
            assert drained(connection), "closed by the server"
        assert time.monotonic() - began < 15


def test_an_open_stream_ends_quietly_with_the_server(running: Running) -> None:
    address = f"http://127.0.0.1:{running.port}/stream"
    with httpx.stream("GET", address, headers=AS_VERA, timeout=20) as answer:
        assert next(answer.iter_lines()) == "retry: 3000"
        running.process.send_signal(signal.SIGINT)
        assert running.process.wait(20) == 0
    assert "Traceback" not in running.log.read_text()


def drained(connection: socket.socket) -> bool:
    """Whether the connection ends, after what is left of an answer."""
    try:
        while connection.recv(65_536):
            pass
    except ConnectionError:
        return True
    return True


async def test_a_slow_body_is_given_up(bus: CommandBus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("commandbus.interfaces.web.admission.BODY_SECONDS_MAX", 0.05)

    async def dripping() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.sleep(30)

    async with visitor(bus) as client:
        headers = {"content-type": "application/json"}
        path = f"{PREFIX}/domains/orders/pause"
        answer = await client.post(path, content=dripping(), headers=headers)
        assert answer.status_code == 408
