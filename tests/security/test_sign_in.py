"""Attacks on signing in: guessing, timing, stolen and revoked sessions, weak passwords."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from commandbus import CommandBus
from commandbus.errors import ConfigurationError
from commandbus.interfaces.web import Account, Role, create_dashboard, hash_secret
from commandbus.interfaces.web.accounts import AccountsFile, fixed, read_accounts
from commandbus.interfaces.web.auth import AccountAuthenticator
from commandbus.interfaces.web.hashing import Hasher, hash_with, proves, scheme_of
from commandbus.interfaces.web.openapi import PREFIX
from commandbus.interfaces.web.refusals import Refused
from commandbus.interfaces.web.sessions import SESSION_SECONDS, Keys, Sessions
from commandbus.interfaces.web.throttle import DELAY_MAX_SECONDS, FAILURES_FREE, Throttle
from tests.web.people import AS_OTTO, AS_VERA, OTTO, QUICK, VERA, account, bearer

SECRET_KEY = "k" * 40


@asynccontextmanager
async def browsing(app: Any, address: str = "192.0.2.1") -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=app, client=(address, 1))
    async with httpx.AsyncClient(transport=transport, base_url="https://bus.example") as client:
        yield client


async def sign_in(
    client: httpx.AsyncClient, name: str, password: str, place: str = "/"
) -> httpx.Response:
    page = await client.get(place)
    token = re.search(r'name="form_token" value="(\w+)"', page.text)
    assert token is not None
    following = re.search(r'name="next" value="([^"]*)"', page.text)
    fields = {"form_token": token[1], "name": name, "password": password}
    if following:
        fields["next"] = following[1].replace("&amp;", "&")
    return await client.post("/sign-in", data=fields)


async def sign_out(client: httpx.AsyncClient) -> httpx.Response:
    page = (await client.get("/")).text
    token = re.search(r'name="form_token" value="(\w+)"', page)
    assert token is not None
    return await client.post("/sign-out", data={"form_token": token[1]})


@pytest.fixture
async def bus() -> AsyncIterator[CommandBus]:
    async with CommandBus("memory://") as opened:
        await opened.send("orders", "ship", {"order": 1})
        yield opened


# Signing in and out.


async def test_a_browser_signs_in_and_goes_on_where_it_was(bus: CommandBus) -> None:
    async with browsing(create_dashboard(bus, accounts=[VERA])) as client:
        asked = await client.get("/commands?q=status:parked")
        assert asked.status_code == 401
        assert "Basic" not in asked.headers["www-authenticate"], "no dialogue of the browser"
        wrong = await sign_in(client, "vera", "wrong-secret", "/commands?q=status:parked")
        assert wrong.status_code == 401
        assert 'value="/commands?q=status:parked"' in wrong.text
        assert 'value="vera"' in wrong.text
        done = await sign_in(client, "vera", "viewer-secret", "/commands?q=status:parked")
        assert (done.status_code, done.headers["location"]) == (303, "/commands?q=status:parked")
        cookie = done.headers["set-cookie"].lower()
        assert all(word in cookie for word in ("httponly", "samesite=strict", "secure", "max-age"))
        assert (await client.get("/")).status_code == 200


@pytest.mark.parametrize(
    "place",
    ["//evil.example", "https://evil.example", "/\\evil.example", "/\t/evil.example", "evil", ""],
)
async def test_a_sign_in_leads_to_no_other_site(bus: CommandBus, place: str) -> None:
    async with browsing(create_dashboard(bus, accounts=[VERA])) as client:
        token = re.search(r'name="form_token" value="(\w+)"', (await client.get("/")).text)
        assert token is not None
        fields = {"form_token": token[1], "name": "vera", "password": "viewer-secret", "next": place}
        done = await client.post("/sign-in", data=fields)
        assert (done.status_code, done.headers["location"]) == (303, "/")


async def test_a_forged_sign_in_is_refused(bus: CommandBus) -> None:
    async with browsing(create_dashboard(bus, accounts=[VERA])) as client:
        fields = {"form_token": "x", "name": "vera", "password": "viewer-secret"}
        assert (await client.post("/sign-in", data=fields)).status_code == 403
        evil = {"origin": "https://evil.example"}
        assert (await client.post("/sign-in", data=fields, headers=evil)).status_code == 403
        assert not any(name.startswith("commandbus_session") for name in client.cookies)


async def test_an_old_cookie_is_useless_after_signing_out(bus: CommandBus) -> None:
    async with browsing(create_dashboard(bus, accounts=[VERA])) as client:
        await sign_in(client, "vera", "viewer-secret")
        stolen = client.cookies["commandbus_session"]
        gone = await sign_out(client)
        assert gone.status_code == 303
        assert gone.headers["clear-site-data"] == '"cache"'
        assert (await client.get("/")).status_code == 401
        client.cookies = httpx.Cookies({"commandbus_session": stolen})
        assert (await client.get("/")).status_code == 401


async def test_signing_out_cannot_be_forged(bus: CommandBus) -> None:
    async with browsing(create_dashboard(bus, accounts=[VERA])) as client:
        await sign_in(client, "vera", "viewer-secret")
        assert (await client.post("/sign-out", data={"form_token": "x"})).status_code == 403
        assert (await client.get("/")).status_code == 200


def request_with(cookie: str) -> Any:
    headers = [(b"host", b"bus.example"), (b"cookie", f"commandbus_session={cookie}".encode())]
    from starlette.requests import Request

    return Request({"type": "http", "headers": headers, "scheme": "https", "path": "/", "method": "GET",
                    "query_string": b"", "server": ("bus.example", 443)})  # fmt: skip


def test_a_session_expires_and_cannot_be_made_up() -> None:
    from starlette.responses import Response

    now = [1_000_000.0]
    sessions, response = Sessions(Keys(SECRET_KEY), lambda: now[0]), Response()
    sessions.begin(request_with(""), response, VERA, "/")
    cookie = response.headers["set-cookie"].partition("=")[2].partition(";")[0].strip('"')
    known = {"vera": VERA}.get
    assert sessions.find(request_with(cookie), known) == VERA
    body, _, signature = cookie.partition(".")
    for other in (
        f"{body}A.{signature}",
        f"{body}.{signature[:-1]}{'1' if signature[-1] == '0' else '0'}",
        f"{body}.",
        "",
        "é",
        "x" * 5_000,
    ):
        assert sessions.find(request_with(other), known) is None
    assert Sessions(Keys("o" * 40)).find(request_with(cookie), known) is None
    now[0] += SESSION_SECONDS
    assert sessions.find(request_with(cookie), known) is None


async def test_processes_of_one_app_accept_each_others_forms_and_sessions(bus: CommandBus) -> None:
    one = create_dashboard(bus, accounts=[OTTO], secret=SECRET_KEY)
    other = create_dashboard(bus, accounts=[OTTO], secret=SECRET_KEY)
    async with browsing(one) as client, browsing(other) as second:
        await sign_in(client, "otto", "operator-secret")
        second.cookies = client.cookies
        page = (await client.get("/domains/orders")).text
        token = re.search(r'name="form_token" value="(\w+)"', page)
        assert token is not None
        done = await second.post("/domains/orders/pause", data={"form_token": token[1]})
        assert done.status_code == 303
    with pytest.raises(ConfigurationError, match="32 characters"):
        create_dashboard(bus, accounts=[OTTO], secret="short")


async def test_a_form_of_one_account_is_refused_for_another(bus: CommandBus) -> None:
    eva = account("eva", Role.OPERATOR, "another-secret")
    async with browsing(create_dashboard(bus, accounts=[OTTO, eva])) as client:
        await sign_in(client, "otto", "operator-secret")
        token = re.search(
            r'name="form_token" value="(\w+)"', (await client.get("/domains/orders")).text
        )
        assert token is not None
        await sign_out(client)
        await sign_in(client, "eva", "another-secret")
        refused = await client.post("/domains/orders/pause", data={"form_token": token[1]})
        assert refused.status_code == 403


# Guessing.


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_delays_grow_per_address_and_per_account() -> None:
    clock = Clock()
    throttle = Throttle(clock)
    for _ in range(FAILURES_FREE):
        with throttle.attempt("192.0.2.1", "vera"):
            throttle.failed("192.0.2.1", "vera")
    waits = []
    for _ in range(10):
        with pytest.raises(Refused) as refused, throttle.attempt("192.0.2.1", "vera"):
            raise AssertionError("not to be checked")
        assert refused.value.status == 429
        assert refused.value.retry_after is not None
        waits.append(refused.value.retry_after)
        clock.now += refused.value.retry_after
        with throttle.attempt("192.0.2.1", "vera"):
            throttle.failed("192.0.2.1", "vera")
    assert waits[:4] == [1.0, 2.0, 4.0, 8.0]
    assert waits[-1] == DELAY_MAX_SECONDS
    with pytest.raises(Refused), throttle.attempt("192.0.2.1", "another"):
        raise AssertionError("the address has to wait for every account")
    with pytest.raises(Refused), throttle.attempt("192.0.2.2", "vera"):
        raise AssertionError("the account has to wait for every address")
    with throttle.attempt("192.0.2.2", "otto"):
        pass
    clock.now += 1_000
    with throttle.attempt("192.0.2.1", "vera"):
        pass


def test_guesses_do_not_lock_an_owner_out() -> None:
    throttle = Throttle(Clock())
    throttle.succeeded("192.0.2.9", "vera")
    for number in range(50):
        throttle.failed(f"192.0.2.{number % 8}", "vera")
    assert is_let_try(throttle, "192.0.2.9", "vera")
    assert not is_let_try(throttle, "192.0.2.10", "vera")


def is_let_try(throttle: Throttle, address: str, name: str) -> bool:
    try:
        with throttle.attempt(address, name):
            return True
    except Refused:
        return False


def test_the_addresses_of_one_ipv6_network_count_as_one() -> None:
    throttle = Throttle(Clock())
    for number in range(FAILURES_FREE):
        throttle.failed(f"2001:db8::{number:x}", f"name-{number}")
    with pytest.raises(Refused), throttle.attempt("2001:db8::ffff", "vera"):
        raise AssertionError("not to be checked")


async def test_many_wrong_passwords_are_answered_with_429_logged_and_counted(
    bus: CommandBus, caplog: pytest.LogCaptureFixture
) -> None:
    app = create_dashboard(bus, accounts=[OTTO, VERA])
    async with browsing(app) as client, browsing(app, "192.0.2.2") as other:
        with caplog.at_level(logging.WARNING, "commandbus.dashboard"):
            answers = [(await sign_in(client, "otto", "wrong-password")) for _ in range(8)]
        statuses = [answer.status_code for answer in answers]
        assert statuses[:FAILURES_FREE] == [401] * FAILURES_FREE
        assert statuses[-1] == 429
        assert int(answers[-1].headers["retry-after"]) >= 1
        assert caplog.text.count("a sign-in as 'otto' from 192.0.2.1 failed") == FAILURES_FREE
        metrics = (await other.get("/metrics", headers=AS_VERA)).text
        assert 'commandbus_dashboard_sign_ins_total{outcome="failed"} 5' in metrics
        actions = (await other.get(f"{PREFIX}/actions", headers=AS_VERA)).json()["actions"]
        failed = [a for a in actions if a["action"] == "sign_in_failed"]
        assert {(a["subject"], a["reason"]) for a in failed} == {("otto", "from 192.0.2.1")}


async def test_an_unknown_name_is_neither_logged_nor_recorded(
    bus: CommandBus, caplog: pytest.LogCaptureFixture
) -> None:
    async with browsing(create_dashboard(bus, accounts=[OTTO])) as client:
        with caplog.at_level(logging.DEBUG):
            assert (await sign_in(client, "my-password-by-mistake", "x")).status_code == 401
        assert "my-password-by-mistake" not in caplog.text
        assert "an unknown name" in caplog.text
        assert not await bus.list_actions()


async def test_signing_in_is_on_record(bus: CommandBus) -> None:
    async with browsing(create_dashboard(bus, accounts=[OTTO])) as client:
        await sign_in(client, "otto", "operator-secret")
        (action,) = await bus.list_actions()
        assert (action.actor, action.action, action.reason) == ("otto", "sign_in", "from 192.0.2.1")


async def test_a_guess_of_a_token_costs_one_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    async def prove(self: Hasher, secret: str, kept: str) -> bool:
        tried.append(kept)
        return False

    monkeypatch.setattr(Hasher, "proves", prove)
    people = [account(f"name-{number}", Role.VIEWER, "viewer-secret") for number in range(20)]
    for token in ("name-7.guess-guess", "guess", "stranger.guess"):
        tried.clear()
        async with (
            CommandBus("memory://") as bus,
            browsing(create_dashboard(bus, accounts=people)) as c,
        ):
            headers = {"authorization": f"Bearer {token}"}
            assert (await c.get("/", headers=headers)).status_code == 401
            assert len(tried) == 1


async def test_names_with_dots_have_tokens_too(bus: CommandBus) -> None:
    people = [account("a", Role.VIEWER, "short-short-1"), account("a.b", Role.VIEWER, "long.long-long")]
    async with browsing(create_dashboard(bus, accounts=people)) as client:
        for name, secret in (("a", "short-short-1"), ("a.b", "long.long-long")):
            assert (await client.get("/", headers=bearer(name, secret))).status_code == 200


async def test_an_unknown_name_takes_as_long_as_a_wrong_password() -> None:
    slow = "scrypt$ln=12,r=8,p=1"
    authenticator = AccountAuthenticator(
        Keys(), fixed([Account("vera", Role.VIEWER, hash_with(slow, "viewer-secret"))])
    )
    with pytest.raises(Refused):
        await authenticator.sign_in("192.0.2.99", "first", "x")
    taken: dict[str, list[float]] = {"vera": [], "stranger": []}
    for number in range(4):
        for name, times in taken.items():
            began = time.perf_counter()
            with pytest.raises(Refused) as refused:
                await authenticator.sign_in(f"192.0.2.{number}", name, "wrong-wrong-wrong")
            assert refused.value.status == 401
            times.append(time.perf_counter() - began)
    known, unknown = (statistics.median(times) for times in taken.values())
    assert unknown > known / 3, (known, unknown)


async def test_forty_guesses_at_once_do_not_hold_up_another_address() -> None:
    """Only two of one address are checked at a time, so another one waits for two hashes at most."""
    running: list[str] = []
    release = asyncio.Event()

    class Slow(Hasher):
        async def proves(self, secret: str, kept: str) -> bool:
            if secret == "viewer-secret":
                return True
            running.append(secret)
            await release.wait()
            return False

    authenticator = AccountAuthenticator(Keys(), fixed([VERA]))
    authenticator._hasher = Slow()
    guesses = [
        asyncio.create_task(authenticator.sign_in("192.0.2.1", "vera", "guess")) for _ in range(40)
    ]
    await asyncio.wait(guesses, timeout=0.1)
    assert len(running) == 2
    assert (await authenticator.sign_in("192.0.2.2", "vera", "viewer-secret")).name == "vera"
    release.set()
    refused = await asyncio.gather(*guesses, return_exceptions=True)
    assert sorted({error.status for error in refused if isinstance(error, Refused)}) == [401, 429]


async def test_hashing_has_a_bounded_queue() -> None:
    hasher = Hasher()
    kept = hash_with("scrypt$ln=14,r=8,p=1", "viewer-secret")
    asked = [asyncio.create_task(hasher.proves("guess", kept)) for _ in range(60)]
    answers = await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), 60)
    assert sum(isinstance(answer, Refused) and answer.status == 503 for answer in answers) > 30
    assert False in answers


# Hashes and passwords.


def test_a_hash_holds_its_parameters() -> None:
    strong = hash_secret("correct horse battery")
    assert scheme_of(strong) == "scrypt$ln=17,r=8,p=1"
    assert proves("correct horse battery", strong)
    assert not proves("correct horse batterz", strong)
    fips = hash_secret("correct horse battery", algorithm="pbkdf2")
    assert scheme_of(fips) == "pbkdf2-sha256$i=600000"
    assert proves("correct horse battery", fips)
    assert not proves("", fips)


@pytest.mark.parametrize(
    "kept",
    ["", "scrypt$00$00", "md5$ln=1$00$00", f"{QUICK}$00$00", f"{QUICK}$zz$zz", "clear-text-word"],
)
def test_an_invalid_hash_is_refused(kept: str) -> None:
    with pytest.raises(ConfigurationError, match="hash_secret"):
        fixed([Account("vera", Role.VIEWER, kept)])


@pytest.mark.parametrize(
    ("secret", "name"),
    [
        ("password", ""), ("short", ""), ("eleven-char", ""), ("password1234", ""),
        ("Password-Password", ""), ("123456789012345", ""), ("aaaaaaaaaaaaaaaa", ""),
        ("Administrator1", ""), ("anastasia-bell", "anastasia-bell"), ("vera-vera-vera", "vera"),
        ("x" * 2_000, ""),
    ],
)  # fmt: skip
def test_weak_passwords_are_refused(secret: str, name: str) -> None:
    with pytest.raises(ConfigurationError, match=r"characters|easy to guess"):
        hash_secret(secret, name=name)


def test_two_accounts_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="'vera'"):
        fixed([VERA, VERA])


# The file of accounts.


def write(path: Path, *people: Account) -> None:
    """As an editor does: a new file in the place of the old one."""
    entries = (
        f'[[account]]\nname = "{a.name}"\nrole = "{a.role}"\nsecret = "{a.secret}"\n' for a in people
    )
    draft = path.with_suffix(".draft")
    draft.write_text("".join(entries))
    draft.chmod(0o600)
    draft.replace(path)


async def test_a_removed_account_is_out_with_the_next_request(bus: CommandBus, tmp_path: Path) -> None:
    file = tmp_path / "accounts.toml"
    write(file, VERA, OTTO)
    async with browsing(create_dashboard(bus, accounts=file)) as client:
        await sign_in(client, "otto", "operator-secret")
        assert (await client.get("/")).status_code == 200
        assert (await client.get(f"{PREFIX}/overview", headers=AS_OTTO)).status_code == 200
        write(file, VERA)
        assert (await client.get("/")).status_code == 401
        assert (await client.get(f"{PREFIX}/overview", headers=AS_OTTO)).status_code == 401
        assert (await client.get(f"{PREFIX}/overview", headers=AS_VERA)).status_code == 200


async def test_a_new_password_and_a_new_role_count_at_once(bus: CommandBus, tmp_path: Path) -> None:
    file = tmp_path / "accounts.toml"
    write(file, OTTO)
    async with browsing(create_dashboard(bus, accounts=file)) as client:
        await sign_in(client, "otto", "operator-secret")
        write(file, Account("otto", Role.VIEWER, OTTO.secret))
        assert "viewer" in (await client.get("/")).text
        pause = await client.post(f"{PREFIX}/domains/orders/pause", json={}, headers=AS_OTTO)
        assert pause.status_code == 403
        write(file, account("otto", Role.VIEWER, "another-password"))
        assert (await client.get("/")).status_code == 401


async def test_a_file_that_cannot_be_read_lets_no_one_in(bus: CommandBus, tmp_path: Path) -> None:
    file = tmp_path / "accounts.toml"
    write(file, VERA)
    async with browsing(create_dashboard(bus, accounts=file)) as client:
        for spoil in (lambda: file.write_text("not toml ["), lambda: file.chmod(0o644), file.unlink):
            write(file, VERA)
            assert (await client.get("/", headers=AS_VERA)).status_code == 200
            spoil()
            for _ in range(2):
                answer = await client.get("/", headers=AS_VERA)
                assert answer.status_code == 503
                assert "accounts cannot be read" in answer.text
                assert "store" not in answer.text
        write(file, VERA)
        assert (await client.get("/", headers=AS_VERA)).status_code == 200


@pytest.mark.skipif(os.name != "posix", reason="modes of files")
def test_a_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "accounts.toml"
    write(file, VERA)
    for mode in (0o644, 0o604, 0o602, 0o660):
        file.chmod(mode)
        with pytest.raises(ConfigurationError, match="chmod 600"):
            read_accounts(file)
    file.chmod(0o640)
    assert AccountsFile(file)()["vera"] == VERA
