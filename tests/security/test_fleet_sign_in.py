"""Sign-ins with several processes of a dashboard on one store: bounds and revocations hold for all."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from commandbus import CommandBus
from commandbus.interfaces.web import create_dashboard, fleet
from commandbus.interfaces.web.fleet import Fleet
from commandbus.interfaces.web.sessions import Keys
from commandbus.interfaces.web.stores import Stores
from commandbus.interfaces.web.throttle import FAILURES_FREE
from commandbus.operations.sign_ins import ENDED, FAILURES, TRUSTED, add_failure, end_session
from tests.security.test_sign_in import SECRET_KEY, browsing, sign_in, sign_out
from tests.web.people import OTTO, VERA

PROCESSES = 3


@pytest.fixture(params=["sqlite", "postgres"])
async def buses(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[list[CommandBus]]:
    """One bus for each process of the dashboard, all on one store."""
    url = f"sqlite:///{tmp_path}/bus.db"
    if request.param == "postgres":
        from tests.postgres.database import empty_url

        url = empty_url()
    opened = [CommandBus(url, migrate=True) for _ in range(PROCESSES)]
    for bus in opened:
        await bus.open()
    yield opened
    for bus in opened:
        await bus.close()


@pytest.fixture(autouse=True)
def long_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that no delay is over before a slow machine has made the next guess."""
    monkeypatch.setattr("commandbus.interfaces.web.throttle.DELAY_FIRST_SECONDS", 60.0)


def apps(buses: list[CommandBus], **options: Any) -> list[Any]:
    return [create_dashboard(bus, accounts=[VERA, OTTO], secret=SECRET_KEY, **options) for bus in buses]


async def kept(bus: CommandBus, kind: str) -> int:
    return len(await bus.session.run(bus.scope.store.list_documents(kind, limit=1_000)))


async def guess(app: Any, name: str, address: str) -> int:
    async with browsing(app, address) as client:
        return (await sign_in(client, name, "a wrong password")).status_code


async def test_guesses_at_one_account_are_counted_over_all_processes_and_addresses(
    buses: list[CommandBus],
) -> None:
    processes = apps(buses)
    answers = [
        await guess(processes[n % PROCESSES], VERA.name, f"192.0.2.{n + 1}")
        for n in range(FAILURES_FREE + PROCESSES)
    ]
    assert answers == [401] * FAILURES_FREE + [429] * PROCESSES


async def test_guesses_of_one_address_are_counted_over_all_processes_and_names(
    buses: list[CommandBus],
) -> None:
    processes = apps(buses)
    names = [VERA.name, OTTO.name, "nobody"]
    answers = [
        await guess(processes[n % PROCESSES], names[n % 2], "192.0.2.1") for n in range(FAILURES_FREE)
    ]
    answers += [await guess(app, names[2], "192.0.2.1") for app in processes]
    assert answers == [401] * FAILURES_FREE + [429] * PROCESSES
    assert await guess(processes[0], OTTO.name, "192.0.2.2") == 401, "others may still try"


async def test_an_owner_is_let_in_by_every_process_while_others_guess(buses: list[CommandBus]) -> None:
    processes = apps(buses)
    async with browsing(processes[0], "198.51.100.1") as client:
        assert (await sign_in(client, VERA.name, "viewer-secret")).status_code == 303
    for n in range(FAILURES_FREE + 1):
        await guess(processes[n % PROCESSES], VERA.name, f"192.0.2.{n + 1}")
    async with browsing(processes[2], "198.51.100.1") as client:
        assert (await sign_in(client, VERA.name, "viewer-secret")).status_code == 303
    assert await kept(buses[0], TRUSTED) == 1


async def test_a_session_that_was_ended_in_one_process_is_refused_by_all(
    buses: list[CommandBus], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "LOOK_SECONDS", 0.0)
    processes = apps(buses)
    async with browsing(processes[0]) as client:
        await sign_in(client, VERA.name, "viewer-secret")
        cookies = httpx.Cookies(client.cookies)
        for app in processes[1:]:
            async with browsing(app) as other:
                other.cookies = cookies
                assert (await other.get("/")).status_code == 200
        await sign_out(client)
    for app in processes:
        async with browsing(app) as other:
            other.cookies = cookies
            assert (await other.get("/")).status_code == 401


async def test_a_session_is_looked_up_once_a_second(buses: list[CommandBus]) -> None:
    now = [100.0]
    mine = Fleet(Stores(buses[0]), Keys(SECRET_KEY), lambda: now[0])
    theirs = Fleet(Stores(buses[1]), Keys(SECRET_KEY))
    await mine.check_session("s")
    await theirs.end("s", 60)
    await mine.check_session("s")
    now[0] += 1
    with pytest.raises(fleet.Refused, match="ended"):
        await mine.check_session("s")


async def test_answers_do_not_tell_accounts_from_other_names(buses: list[CommandBus]) -> None:
    processes = apps(buses)
    answers = {
        name: [
            await guess(processes[n % PROCESSES], name, f"{net}.{n + 1}")
            for n in range(FAILURES_FREE + 1)
        ]
        for name, net in ((VERA.name, "192.0.2"), ("nobody", "198.51.100"))
    }
    assert answers[VERA.name] == answers["nobody"] == [401] * FAILURES_FREE + [429]
    assert await guess(processes[0], "another", "203.0.113.1") == 401


async def test_an_address_that_has_to_wait_fills_no_store(buses: list[CommandBus]) -> None:
    processes = apps(buses)
    for n in range(20):
        await guess(processes[n % PROCESSES], f"guess {n}", "192.0.2.1")
    assert await kept(buses[0], FAILURES) == FAILURES_FREE + 1, "the names, and the address"


async def test_names_and_addresses_that_are_made_up_fill_no_store(
    buses: list[CommandBus], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "COUNTERS_MAX", 8)
    shared = Fleet(Stores(buses[0]), Keys(SECRET_KEY))
    for n in range(100):
        await shared.failed(f"2001:db8:{n:x}::1", f"made up {n}")
    assert await kept(buses[0], FAILURES) == 2 * 8


def test_names_share_a_counter_by_a_key_and_seldom() -> None:
    """A client that could compute it would choose an address or a name to hold up another one."""
    names = [f"name {n}" for n in range(1_000)]
    one, other = (Fleet(None, Keys(secret * 32)) for secret in "ab")  # type: ignore[arg-type]
    assert len({one._account(name) for name in names}) > 850
    assert sum(one._account(name) == other._account(name) for name in names) < 10
    assert {one._account(name) for name in names}.isdisjoint(one._address(name) for name in names)


async def test_what_is_due_is_forgotten(buses: list[CommandBus]) -> None:
    bus = buses[0]
    for n in range(150):
        await bus.session.run(add_failure(bus.scope, [f"old {n}"], -1.0))
        await bus.session.run(end_session(bus.scope, f"old {n}", -1.0))
    assert (await kept(bus, FAILURES), await kept(bus, ENDED)) == (0, 0)


@pytest.mark.parametrize("body", ["{", "[1]", '{"count":"x"}'])
async def test_a_count_that_cannot_be_read_is_reset(buses: list[CommandBus], body: str) -> None:
    processes, store = apps(buses), buses[0].scope.store
    await guess(processes[0], VERA.name, "192.0.2.1")
    for document in await buses[0].session.run(store.list_documents(FAILURES)):
        changed = type(document)(FAILURES, document.key, document.version, "", document.due_at, body)
        assert await buses[0].session.run(store.put_document(changed))
    assert await guess(processes[1], VERA.name, "192.0.2.1") == 401


async def test_a_store_that_is_down_keeps_no_operator_out(tmp_path: Path) -> None:
    missing = "postgresql://nobody@127.0.0.1:9/none?connect_timeout=1"
    app = create_dashboard(missing, accounts=[VERA], secret=SECRET_KEY)
    async with browsing(app) as client:
        assert (await sign_in(client, VERA.name, "viewer-secret")).status_code == 303


@pytest.mark.postgres
def test_a_worker_can_neither_count_nor_revive_sign_ins() -> None:
    from commandbus.engines.postgres.roles import role_named, roles_sql
    from tests.postgres.database import empty_url

    with psycopg.connect(empty_url(), autocommit=True) as connection:
        connection.execute(roles_sql("commandbus").encode())
        add = "insert into commandbus.document (kind, key, version, status, body) values "
        connection.execute(f"{add} ('{ENDED}', 'x', 1, '', '{{}}')".encode())
        connection.execute(f"set role {role_named('worker', 'commandbus')}".encode())
        removed = connection.execute("delete from commandbus.document where kind like 'sign%'")
        assert removed.rowcount == 0
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute(f"{add} ('{FAILURES}', 'y', 1, '', '{{}}')".encode())
